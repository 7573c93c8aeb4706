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
    for ms in (800..880).step_by(10) {
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

/// Two of five servers restart at once, and forget the lock. They do not count for the waiter, and count for the holder
/// again after its next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_lock_and_its_waiter_survive_the_restart_of_two_servers() {
    let quorum = Quorum::start();
    let ttl = Duration::from_secs(3);
    let locks = quorum.try_connect(|it| it.quarantine(ttl)).await.unwrap();
    let request = || locks.lock(NAME).ttl(ttl).wait(WAIT);
    let held = request().acquire().await.unwrap();
    let token = fencing_token(&held);
    eventually_async(SOON, async || quorum.holders() == 5).await;
    let waiter = tokio::spawn(request().acquire());
    for server in &quorum.0[..2] {
        server.kill9();
    }
    for server in &quorum.0[..2] {
        server.restart();
    }
    eventually_async(SOON, async || quorum.holders() == 5).await;
    held.renew().await.unwrap();
    assert!(!held.is_lost() && !waiter.is_finished());
    held.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(fencing_token(&next) > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_to_a_frozen_majority_ends_in_time() {
    let quorum = Quorum::start();
    for server in &quorum.0[..3] {
        server.stop();
    }
    let timeout = Duration::from_millis(400);
    let began = Instant::now();
    let connecting = quorum.try_connect(|it| it.command_timeout(timeout));
    let error = connecting.await.unwrap_err();
    assert!(began.elapsed() < 5 * timeout, "{:?}", began.elapsed());
    assert!(
        matches!(error, LockError::NoQuorum { granted: 2, .. }),
        "{error:?}"
    );
    for server in &quorum.0[..3] {
        server.cont();
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
