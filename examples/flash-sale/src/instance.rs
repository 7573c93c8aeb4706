//! A shop instance as a process of its own.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockManager;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::event::Event;
use crate::options::InstanceOptions;
use crate::shop::Shop;
use crate::{BoxError, PREFIX, store};

/// How long the open requests have at the end. They take at most the wait and a slow payment.
pub(crate) const DRAIN: Duration = Duration::from_millis(1500);

/// How long the locks of requests that did not end in time have to be released.
pub(crate) const RELEASE: Duration = Duration::from_millis(500);

/// Serves until SIGTERM, or until the demo has ended.
pub(crate) async fn run(options: InstanceOptions) -> Result<(), BoxError> {
    let store = store::open(&options.database).await?;
    let locks = LockManager::builder()
        .prefix(PREFIX)
        .label(label(options.number))
        .shutdown_timeout(RELEASE)
        .connect(&options.redis)
        .await?;
    let (events, mut told) = mpsc::unbounded_channel();
    let shop = Arc::new(Shop::new(
        options.number,
        locks.clone(),
        store,
        events.clone(),
    ));

    // Threads and not tasks, because stdin and stdout block.
    std::thread::spawn(move || {
        while let Some(event) = told.blocking_recv() {
            let Ok(line) = serde_json::to_string(&event) else {
                continue;
            };
            // Fails when the demo has ended.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    });
    let (end, mut ended) = watch::channel(());
    let paused = Arc::clone(&shop);
    std::thread::spawn(move || {
        for command in std::io::stdin().lock().lines().map_while(Result::ok) {
            match command.as_str() {
                "arm" => paused.pause.arm(),
                "disarm" => paused.pause.disarm(),
                "continue" => paused.pause.end(),
                _ => {}
            }
        }
        // The demo has ended.
        drop(end);
    });

    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pid = std::process::id();
    events.send(Event::Ready { pid, address })?;
    let (accepting, mut refusing) = watch::channel(());
    let serving = axum::serve(listener, shop.router()).with_graceful_shutdown(async move {
        // Fails when `accepting` is dropped: that is the signal.
        let _ = refusing.changed().await;
    });
    let mut serving = std::pin::pin!(serving.into_future());
    tokio::select! {
        served = &mut serving => return Ok(served?),
        _ = terminate.recv() => {}
        _ = ended.changed() => {}
    }
    // Stop accepting, let the open requests end, also a paused one, then release what they leave.
    shop.pause.end();
    drop(accepting);
    match timeout(DRAIN, serving).await {
        Ok(served) => served?,
        Err(_) => eprintln!(
            "flash-sale: instance {}: some requests did not end in time",
            options.number
        ),
    }
    locks.shutdown().await?;
    Ok(())
}

/// The name of an instance in the lock.
pub(crate) fn label(number: usize) -> String {
    format!("instance-{number}")
}

/// The number of the instance with this label.
pub(crate) fn instance_of(label: &str) -> Option<usize> {
    label.strip_prefix("instance-")?.parse().ok()
}
