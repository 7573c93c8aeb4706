//! A process that holds one lock and answers questions about it, for tests that suspend, freeze,
//! kill or fork it. Its arguments name one of these jobs, and it writes JSON lines:
//!
//! - `hold NAME TTL WAIT` acquires the lock (times in milliseconds, a wait of zero is one attempt)
//!   and writes `{"held": TOKEN}`. It answers each line on stdin by
//!   `{"lost": .., "remaining_ms": ..}`, and writes `{"notified": true}` when it learns of the loss.
//! - `fork HELD CHILDREN COUNT`, with the shim that forks preloaded, acquires `HELD` locks, forks
//!   `CHILDREN` times, and acquires `COUNT` more locks in the parent and in each child. A child first
//!   uses all that it has from its parent, and writes the outcomes, `{"forked": [..]}`. All write
//!   `{"acquired": COUNT}` before they wait for the end of stdin.
//! - `fork-busy CHILDREN`, with the same shim, forks while other threads of the parent use
//!   everything that the child then drops. Each child writes `{"dropped": true}` after that.
//! - `fork-in-body`, with the same shim, forks in the body of a lock while a future waits for another
//!   lock. The child ends the body, after one poll more, and the wait. Then it writes what its copies
//!   of the subscriber and the observer of its parent got, `{"read": [..]}`.
//! - `current COUNT` calls `LockManager::current_or_connect` this many times at once. It writes the time and the
//!   error of each call, `{"calls": [{"ms": .., "error": ..}], "annotated": ..}`; the latter is for a
//!   function with the attribute that waits 200 ms. For each line on stdin it calls once more, and
//!   writes `{"again": "connected"}` or the error, and whether `LockManager::current` found a manager before and after
//!   that, `"without_io": [false, true]`.
//! - `standstill` begins to connect on one runtime, which is then blocked, connects on another
//!   one, and writes how long that took, `{"ms": .., "outcome": .., "later": ..}`; the last one is
//!   for the first runtime after it goes on.
//! - `shut-down` calls on the handle of a runtime that was shut down, of each flavor, and writes the
//!   outcomes, `{"shut_down": [..]}`.
//!
//! The server is the one that `DISTRIBUTED_LOCK_URL` names.

use std::fmt::Debug;
use std::future::Future;
use std::io::{self, BufRead};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use lock_core::telemetry::{LockEvent, LockObserver};
use lock_core::{LockError, LockGuard, LockManager, Renew, distributed_lock};
use serde_json::{Value, json};
use test_support::child::{Arguments, say, wait_for_end_of_input};
use test_support::fixtures::{current_thread_runtime, multi_thread_runtime};
use tests::connect_to_env;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

fn main() {
    let mut arguments = Arguments::new();
    match arguments.text().as_str() {
        "hold" => hold(&arguments.text(), arguments.millis(), arguments.millis()),
        "fork" => fork(arguments.number(), arguments.number(), arguments.number()),
        "fork-busy" => fork_busy(arguments.number()),
        "fork-in-body" => fork_in_body(),
        "current" => current(arguments.number()),
        "standstill" => standstill(),
        "shut-down" => shut_down(),
        other => panic!("no job named `{other}`"),
    }
}

fn hold(name: &str, ttl: Duration, wait: Duration) {
    current_thread_runtime().block_on(async {
        let locks = connect_to_env().await;
        let mut request = locks.lock(name).ttl(ttl);
        if !wait.is_zero() {
            request = request.wait(wait);
        }
        let held = request.acquire().await.expect("the lock is granted");
        let watch = held.watch();
        // A thread of its own replies, so that no other work delays a reply.
        std::thread::spawn(move || {
            for _line in io::stdin().lock().lines() {
                say(&json!({
                    "lost": watch.is_lost(),
                    "remaining_ms": watch.remaining().as_millis().to_string(),
                }));
            }
            std::process::exit(0);
        });
        let token = held.fencing_token().expect("the lock has a fencing token");
        say(&json!({ "held": token.as_u64() }));
        held.lost().await;
        say(&json!({ "notified": true }));
        std::future::pending::<()>().await;
    });
}

fn standstill() {
    let outcome = |manager: Result<LockManager, LockError>| match manager {
        Ok(_) => "connected".to_owned(),
        Err(error) => error.to_string(),
    };
    let (blocked, other) = (current_thread_runtime(), current_thread_runtime());
    // One poll begins to connect, and no reply can be there yet.
    let mut first = Box::pin(LockManager::current_or_connect());
    blocked.block_on(std::future::poll_fn(|cx| {
        assert!(
            first.as_mut().poll(cx).is_pending(),
            "connecting needs a reply"
        );
        std::task::Poll::Ready(())
    }));
    let started = Instant::now();
    let outcome_of_other = outcome(other.block_on(LockManager::current_or_connect()));
    let took = started.elapsed();
    let later = outcome(blocked.block_on(first));
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    say(&json!({ "ms": ms, "outcome": outcome_of_other, "later": later }));
    wait_for_end_of_input();
}

fn shut_down() {
    let mut outcomes = Vec::new();
    let staying = current_thread_runtime();
    let locks = staying.block_on(connect_to_env());
    let threads = multi_thread_runtime(1);
    for ended in [current_thread_runtime(), threads] {
        let handle = ended.handle().clone();
        ended.shutdown_background();
        let current = handle.block_on(LockManager::current_or_connect());
        let connected = handle.block_on(locks.lock("job").acquire());
        outcomes.extend([current.err(), connected.err()].map(|error| match error {
            Some(error) => error.to_string(),
            None => "the call succeeded".to_owned(),
        }));
    }
    say(&json!({ "shut_down": outcomes }));
    wait_for_end_of_input();
}

fn fork(held: u32, children: u32, count: u32) {
    let runtime = current_thread_runtime();
    let (locks, held) = runtime.block_on(async {
        let locks = connect_to_env().await;
        let mut guards = Vec::new();
        // Frequent renewals keep the background worker busy, so that it does not wait for work when
        // the process forks.
        for number in 0..held {
            let request = locks.lock(format!("held:{number}"));
            let request = request.renew(Renew::Every(Duration::from_millis(10)));
            guards.push(request.acquire().await.expect("the lock is free"));
        }
        (locks, guards)
    });
    let is_child = (0..children).any(|_| std::os::unix::process::parent_id() == 0);
    let own = if is_child {
        let outcomes = runtime.block_on(call_after_fork(locks, held));
        say(&json!({ "forked": outcomes }));
        // The parent shares the runtime's system handles, so the child must not drop the runtime.
        std::mem::forget(runtime);
        current_thread_runtime()
    } else {
        std::mem::forget((locks, held));
        runtime
    };
    own.block_on(async {
        let locks = connect_to_env().await;
        let process = std::process::id();
        let mut kept = Vec::new();
        for number in 0..count {
            let guard = locks.lock(format!("{process}:{number}")).acquire().await;
            kept.push(guard.expect("the lock is free"));
        }
        say(&json!({ "acquired": count }));
        wait_for_end_of_input();
        std::process::exit(0);
    });
}

/// Returns the outcomes of all calls that a child can make on values of its parent.
async fn call_after_fork(locks: LockManager, mut held: Vec<LockGuard>) -> Vec<String> {
    fn text<T: Debug>(outcome: &Result<T, LockError>) -> String {
        match outcome {
            Err(LockError::Forked) => "Err(Forked)".to_owned(),
            other => format!("{other:?}"),
        }
    }
    let wait = Duration::from_secs(1);
    let outcomes = vec![
        text(&locks.lock("other").acquire().await),
        text(&locks.lock("other").try_acquire().await),
        text(&locks.lock("other").wait(wait).acquire().await),
        text(&locks.lock("other").run(async |_| ()).await),
        text(&held[0].renew().await),
        text(&held.pop().expect("there are many guards").release().await),
    ];
    // The parent still holds the locks.
    drop((held, locks));
    outcomes
}

fn fork_busy(children: u32) {
    let runtime = multi_thread_runtime(4);
    let (locks, held) = runtime.block_on(async {
        let locks = connect_to_env().await;
        let mut held = Vec::new();
        for number in 0..4 {
            let request = locks.lock(format!("held:{number}"));
            let request = request.renew(Renew::Every(Duration::from_millis(10)));
            held.push(Arc::new(request.acquire().await.expect("the lock is free")));
        }
        (locks, held)
    });
    let listen = |guard: &Arc<LockGuard>| {
        let mut lost = guard.lost();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut lost).poll(&mut context).is_pending());
        lost
    };
    for (number, guard) in held.iter().enumerate() {
        let (guard, locks) = (Arc::clone(guard), locks.clone());
        runtime.spawn(async move {
            loop {
                for _ in 0..2_000 {
                    drop(listen(&guard));
                }
                let own = locks.lock(format!("busy:{number}")).acquire().await;
                drop(own);
            }
        });
        runtime.spawn(async {
            loop {
                for _ in 0..2_000 {
                    LockManager::current_or_connect()
                        .await
                        .expect("the server runs");
                }
                tokio::task::yield_now().await;
            }
        });
    }
    for _ in 0..children {
        let listeners: Vec<_> = held.iter().map(listen).collect();
        let spare = runtime.block_on(locks.lock("spare").wait(Duration::from_secs(5)).acquire());
        let spare = spare.expect("the lock is free");
        if std::os::unix::process::parent_id() == 0 {
            drop((listeners, spare));
            let health = locks.health();
            let is_alone = health.held == 0 && !health.is_connected && !health.is_worker_alive;
            say(&json!({ "dropped": true, "alone": is_alone, "locked": lock_in_child() }));
            std::process::exit(0);
        }
    }
    wait_for_end_of_input();
    std::process::exit(0);
}

/// Locks with the manager that a forked child makes for itself.
fn lock_in_child() -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .expect("a runtime needs no other thread")
        .block_on(async {
            let locks = LockManager::current_or_connect()
                .await
                .expect("the server runs");
            let name = format!("child:{}", std::process::id());
            let held = locks.lock(name).acquire().await.expect("the lock is free");
            held.release().await.is_ok()
        })
}

/// Notes each call that a forked child makes.
#[derive(Clone)]
struct ParentsReader {
    parent: u32,
    calls: Arc<Mutex<Vec<String>>>,
}

impl ParentsReader {
    fn note(&self, call: impl Into<String>) {
        if std::process::id() != self.parent {
            self.calls
                .lock()
                .expect("no reader panics")
                .push(call.into());
        }
    }
}

impl LockObserver for ParentsReader {
    fn on_event(&self, event: &LockEvent<'_>) {
        self.note(format!("{event:?}"));
    }
}

impl Subscriber for ParentsReader {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.note(format!("new span {}", attributes.metadata().name()));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.note("record");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.note(format!("event {}", event.metadata().name()));
    }

    fn enter(&self, _: &Id) {
        self.note("enter");
    }

    fn exit(&self, _: &Id) {
        self.note("exit");
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.note("clone span");
        id.clone()
    }

    fn try_close(&self, _: Id) -> bool {
        self.note("close");
        false
    }
}

fn fork_in_body() {
    let reader = ParentsReader {
        parent: std::process::id(),
        calls: Arc::default(),
    };
    let subscriber = reader.clone();
    tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
    // In memory, so that the child can go on polling without the parent's connections.
    let locks = LockManager::builder()
        .observer(reader.clone())
        .in_memory()
        .expect("valid settings");
    let runtime = current_thread_runtime();
    let is_child = runtime.block_on(async {
        let busy = locks.lock("busy").acquire().await.expect("it is free");
        let wait = Duration::from_millis(50);
        let mut waiting = Box::pin(locks.lock("busy").wait(wait).acquire());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending(), "it is held");
        let body = async |_: &LockGuard| {
            let is_child = std::os::unix::process::parent_id() == 0;
            tokio::task::yield_now().await;
            is_child
        };
        let is_child = locks.lock("body").run(body).await.expect("it is free");
        waiting.await.expect_err("it is held");
        drop(busy);
        is_child
    });
    drop(locks);
    if is_child {
        let calls = reader.calls.lock().expect("no reader panics");
        say(&json!({ "read": *calls }));
        std::process::exit(0);
    }
    wait_for_end_of_input();
    std::process::exit(0);
}

#[distributed_lock(name = "annotated", wait = "200ms")]
async fn annotated() -> Result<(), LockError> {
    Ok(())
}

/// Returns the time of a call and its error.
async fn timed<T>(call: impl Future<Output = Result<T, LockError>>) -> Value {
    let started = Instant::now();
    let error = call.await.err().map(|error| error.to_string());
    json!({ "ms": started.elapsed().as_millis().to_string().parse::<u64>().ok(), "error": error })
}

fn current(count: u32) {
    let runtime = multi_thread_runtime(2);
    runtime.block_on(async {
        let annotated = timed(annotated()).await;
        let calls: Vec<_> = (0..count)
            .map(|_| tokio::spawn(timed(LockManager::current_or_connect())))
            .collect();
        let mut outcomes = Vec::new();
        for call in calls {
            outcomes.push(call.await.expect("no call panics"));
        }
        say(&json!({ "calls": outcomes, "annotated": annotated }));
        for _line in io::stdin().lock().lines() {
            let before = LockManager::current().is_ok();
            let again = match LockManager::current_or_connect().await {
                Ok(_) => "connected".to_owned(),
                Err(error) => error.to_string(),
            };
            let after = LockManager::current().is_ok();
            say(&json!({ "again": again, "without_io": [before, after] }));
        }
    });
}
