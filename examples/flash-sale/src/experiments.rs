//! What the buttons of an instance do: freeze it or kill it in the middle of a purchase.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::broadcast::Receiver;
use tokio::time::{sleep, timeout};

use crate::demo::{Demo, Report};
use crate::event::Event;
use crate::model::{State, Tone};
use crate::processes::{Instances, signal};
use crate::verdict::Phase;

/// How long an instance is frozen: longer than its lease of 2 s.
const FREEZE: Duration = Duration::from_secs(5);

/// How long a chosen instance may take to get a purchase, and how often that is tried. The wait for
/// the lock is 1 s.
const NEXT_PURCHASE: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 3;

/// How long a new sale runs before the experiment, at most.
const BEGINNING: Duration = Duration::from_secs(1);

/// Stops the process of an instance between its read and its write, and lets it continue later.
pub(crate) async fn freeze(demo: &Arc<Demo>, instances: &Instances, number: usize) {
    let Some((pid, token)) = pause_purchase(demo, instances, number).await else {
        return;
    };
    signal(pid, Signal::STOP);
    let begin = Instant::now();
    demo.model().on_frozen(number, token);
    tokio::select! {
        () = sleep(FREEZE) => {}
        // The end of the demo wakes the instance.
        () = demo.ended() => return,
    }
    if demo.model().instance(number).state != State::Frozen {
        // It was killed meanwhile.
        return;
    }
    instances.command(number, "continue").await;
    demo.model().on_woken(number, begin.elapsed());
    signal(pid, Signal::CONT);
}

/// Kills the process of an instance between its read and its write.
pub(crate) async fn kill(demo: &Arc<Demo>, instances: &Instances, number: usize) {
    let (state, pid) = {
        let mut model = demo.model();
        let instance = model.instance(number);
        (instance.state, instance.pid)
    };
    if let (State::Frozen, Some(pid)) = (state, pid) {
        signal(pid, Signal::KILL);
        let text = format!("Instance {number} was killed while it was frozen.");
        demo.model().instance(number).state = State::Stopped;
        demo.model().notice(Tone::Info, text);
        return;
    }
    let Some((pid, token)) = pause_purchase(demo, instances, number).await else {
        return;
    };
    signal(pid, Signal::KILL);
    demo.model().on_killed(number, token, Instant::now());
}

/// Waits until a purchase of the instance is between its read and its write. Returns the process and
/// the token of the purchase.
async fn pause_purchase(
    demo: &Arc<Demo>,
    instances: &Instances,
    number: usize,
) -> Option<(u32, Option<u64>)> {
    let mut told = demo.subscribe();
    sell_some(demo).await;
    let pid = demo.model().instance(number).pid?;
    instances.command(number, "arm").await;
    for _ in 0..ATTEMPTS {
        if let Ok(token) = timeout(NEXT_PURCHASE, paused(&mut told, number)).await {
            return token.map(|token| (pid, token));
        }
        sell_some(demo).await;
    }
    instances.command(number, "disarm").await;
    let mut model = demo.model();
    if model.instance(number).state == State::Chosen {
        model.instance(number).state = State::Serving;
        let text = format!("Instance {number} got no purchase; nothing was done.");
        model.notice(Tone::Info, text);
    }
    None
}

/// Returns the token of the paused purchase, or `None` when the instance has ended.
async fn paused(told: &mut Receiver<Report>, number: usize) -> Option<Option<u64>> {
    loop {
        match told.recv().await {
            Ok(Report::Event(of, Event::Paused { token })) if of == number => return Some(token),
            Ok(Report::Stopped(of)) if of == number => return None,
            Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
            Err(_) => return None,
        }
    }
}

/// Starts a sale if there is none with stock, and lets it sell a fifth of its stock.
async fn sell_some(demo: &Arc<Demo>) {
    let is_over = {
        let model = demo.model();
        model.sale.phase != Phase::Selling || model.sale.totals.left <= 0
    };
    if !is_over {
        return;
    }
    if let Err(error) = demo.open_sale(Phase::Selling).await {
        eprintln!("flash-sale: {error}");
        return;
    }
    let mut changes = demo.view();
    let sold = changes.wait_for(|_| {
        let sale = demo.model().sale;
        sale.totals.sold * 5 >= u64::from(sale.items)
    });
    // When that takes too long, the experiment begins with less sold.
    let _ = timeout(BEGINNING, sold).await;
}
