//! The instances as threads of this process, for `--in-process`.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::BoxError;
use crate::demo::Demo;
use crate::event::Event;
use crate::instance::DRAIN;
use crate::shop::Shop;

/// Starts an instance with a runtime of its own.
pub(crate) fn start(demo: &Arc<Demo>, number: usize) -> Result<JoinHandle<()>, BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let (events, mut told) = mpsc::unbounded_channel();
    let (locks, store) = (demo.locks.clone(), Arc::clone(&demo.store));
    let shop = Arc::new(Shop::new(number, locks, store, events.clone()));
    let listening = Arc::clone(demo);
    tokio::spawn(async move {
        while let Some(event) = told.recv().await {
            listening.on_event(number, event, Instant::now());
        }
    });
    let demo = Arc::clone(demo);
    Ok(std::thread::spawn(move || {
        if let Err(error) = runtime.block_on(serve(&demo, &shop, &events)) {
            eprintln!("flash-sale: instance {number}: {error}");
        }
        demo.on_stopped(number);
    }))
}

async fn serve(
    demo: &Demo,
    shop: &Arc<Shop>,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pid = std::process::id();
    events.send(Event::Ready { pid, address })?;
    let ended = demo.ended();
    let serving = axum::serve(listener, shop.router()).with_graceful_shutdown(demo.ended());
    let serving = serving.into_future();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        // It may end first, because the same signal ends both. It must not be polled again then.
        served = &mut serving => return Ok(served?),
        () = ended => {}
    }
    let served = timeout(DRAIN, serving).await;
    Ok(served.map_err(|_| "some requests did not end in time")??)
}
