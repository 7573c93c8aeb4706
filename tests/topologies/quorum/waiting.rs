//! What callers learn at the end of a wait, and of renewals at the same time.

use super::minority::ProxiedQuorum;
use super::*;

/// The last poll of a wait has less time than a command may take, and its end says nothing about the servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_that_ends_in_a_poll_names_the_holder() {
    let quorum = ProxiedQuorum::start();
    let patience = Duration::from_secs(5);
    let (first, second) = (
        quorum.connect(patience).await,
        quorum.connect(patience).await,
    );
    let held = first.lock(NAME).acquire().await.unwrap();
    for proxy in &quorum.proxies {
        proxy.delay_round_trip(Duration::from_millis(20));
    }
    // Three replies follow each other, and then a pause, so most of these waits end in a poll.
    for ms in (60..140).step_by(5) {
        let request = second.lock(NAME).wait(Duration::from_millis(ms));
        let error = request.acquire().await.unwrap_err();
        assert!(
            matches!(
                &error,
                LockError::Timeout {
                    holder: Some(_),
                    ..
                }
            ),
            "{ms} ms: {error:?}"
        );
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_at_the_same_time_all_succeed() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let held = Arc::new(locks.lock(NAME).acquire().await.unwrap());
    for _ in 0..20 {
        let renewals = (0..4).map(|_| {
            let held = Arc::clone(&held);
            tokio::spawn(async move { held.renew().await })
        });
        for renewal in renewals.collect::<Vec<_>>() {
            renewal.await.unwrap().unwrap();
        }
    }
}

#[test]
fn call_outside_of_a_runtime_is_an_error() {
    let quorum = Quorum::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (locks, held) = runtime.block_on(async {
        let locks = quorum.connect().await;
        let held = locks.lock("other").acquire().await.unwrap();
        (locks, held)
    });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let acquiring = std::pin::pin!(locks.lock(NAME).try_acquire());
    let std::task::Poll::Ready(Err(error)) = acquiring.poll(&mut context) else {
        panic!("the call waits");
    };
    assert!(matches!(error, LockError::NoRuntime), "{error:?}");
    drop(held);
    runtime.block_on(locks.shutdown()).unwrap();
}
