//! Waiting is bounded, and ends when the condition holds.

use std::sync::Arc;
use std::thread;

use test_support::fixtures::{SOON, ms};
use test_support::{eventually, eventually_async, eventually_some};

#[test]
fn eventually_ends_when_the_condition_holds() {
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let other = Arc::clone(&done);
    let setter = thread::spawn(move || other.store(true, std::sync::atomic::Ordering::SeqCst));
    eventually(SOON, || done.load(std::sync::atomic::Ordering::SeqCst));
    setter.join().unwrap();
    let mut checks = 0;
    let answer = eventually_some(SOON, || {
        checks += 1;
        (checks == 3).then_some(checks)
    });
    assert_eq!(answer, 3);
}

#[test]
#[should_panic(expected = "did not hold within 20ms")]
fn eventually_panics_after_its_bound() {
    eventually(ms(20), || false);
}

#[tokio::test]
async fn eventually_async_lets_other_tasks_run() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move { sender.send(()) });
    let mut receiver = Some(receiver);
    eventually_async(SOON, async || {
        receiver.as_mut().is_some_and(|r| r.try_recv().is_ok())
    })
    .await;
    receiver.take();
}
