//! Times that replace those of the code.

use std::time::{Duration, Instant};

use lock_core::config::Override;
use lock_core::error::InvalidSetting;
use lock_core::{LockError, LockManager, LockName, distributed_lock, lock_name};
use test_support::RedisServer;
use test_support::fixtures::{SLACK, ms, time_to_expiry};
use tests::Trace;

use crate::connect;

const TEMPLATE: &str = "order:{order_id}";
const SECOND: Duration = Duration::from_secs(1);

#[distributed_lock(name = "order:{order_id}", ttl = "30s", wait = "20s", manager = locks)]
async fn ship(
    locks: &LockManager,
    server: &RedisServer,
    order_id: u64,
) -> Result<Duration, LockError> {
    Ok(time_to_expiry(server, "lock:order:7"))
}

/// Waits for a lock that is held, and returns how long that took.
async fn time_of_a_wait(locks: &LockManager, server: &RedisServer) -> Duration {
    let begun = Instant::now();
    let error = ship(locks, server, 7).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    begun.elapsed()
}

#[tokio::test]
async fn an_override_beats_the_attribute() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let left = ship(&locks, &server, 7).await.unwrap();
    assert!(left > SECOND * 20, "{left:?}");
    let times = Override::new().ttl(SECOND * 5).wait(ms(200));
    locks.set_overrides([(TEMPLATE, times)]).unwrap();
    let left = ship(&locks, &server, 7).await.unwrap();
    assert!(left <= SECOND * 5, "{left:?}");
    // `lock_name!` and `with_template` give templates too. The override comes before the builder.
    let request = || {
        locks
            .lock(LockName::from("order:7").with_template(TEMPLATE))
            .ttl(SECOND * 30)
    };
    let held = request().acquire().await.unwrap();
    assert!(time_to_expiry(&server, "lock:order:7") <= SECOND * 5);
    let took = time_of_a_wait(&locks, &server).await;
    assert!(
        (ms(200)..ms(200) + ms(250) + SLACK).contains(&took),
        "{took:?}"
    );
    // `try_acquire` never waits.
    assert!(request().try_acquire().await.unwrap().is_none());
    let order_id = 8;
    let named = locks.lock(lock_name!("order:{order_id}")).acquire().await;
    assert!(time_to_expiry(&server, "lock:order:8") <= SECOND * 5);
    drop(named);

    // A held lock keeps its times, also when it is renewed.
    locks
        .set_overrides([(TEMPLATE, Override::new().ttl(SECOND * 50))])
        .unwrap();
    held.renew().await.unwrap();
    assert!(time_to_expiry(&server, "lock:order:7") <= SECOND * 5);
    held.release().await.unwrap();
    let left = ship(&locks, &server, 7).await.unwrap();
    assert!(left > SECOND * 40, "{left:?}");

    // An invalid list changes nothing.
    let invalid = locks.set_overrides([("a", Override::new()), (TEMPLATE, times)]);
    assert!(matches!(
        invalid,
        Err(LockError::Invalid(InvalidSetting::Override { .. }))
    ));
    assert!(ship(&locks, &server, 7).await.unwrap() > SECOND * 40);
    let none: [(&str, Override); 0] = [];
    locks.set_overrides(none).unwrap();
    let left = ship(&locks, &server, 7).await.unwrap();
    assert!((SECOND * 20..SECOND * 31).contains(&left), "{left:?}");
}

/// Plain names, and other templates, have no override.
#[tokio::test(start_paused = true)]
async fn an_override_is_for_its_template_only() {
    let times = Override::new().max_hold(SECOND * 40);
    let locks = LockManager::builder()
        .overrides([(TEMPLATE, times)])
        .in_memory()
        .unwrap();
    let plain = locks.lock("order:1").acquire().await.unwrap();
    let templated = locks.lock(LockName::from("order:2").with_template(TEMPLATE));
    let templated = templated.acquire().await.unwrap();
    tokio::time::sleep(SECOND * 41).await;
    assert!(!plain.is_lost());
    assert!(templated.is_lost());
}

#[tokio::test(start_paused = true)]
async fn unused_override_is_reported_once_with_the_nearest_template() {
    let (trace, _tracing) = Trace::begin();
    let times = Override::new().wait(SECOND);
    let locks = LockManager::builder()
        .overrides([("ordr:{order_id}", times), ("used", times)])
        .in_memory()
        .unwrap();
    let call = async |name: &str, template| {
        let request = locks.lock(LockName::from(name).with_template(template));
        drop(request.acquire().await.unwrap());
    };
    call("order:1", TEMPLATE).await;
    call("used", "used").await;
    tokio::time::sleep(SECOND * 599).await;
    call("order:1", TEMPLATE).await;
    assert!(locks.health().unused_overrides.is_empty());
    assert_eq!(trace.count("no call has used this override"), 0);
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(locks.health().unused_overrides, ["ordr:{order_id}"]);
    for _ in 0..2 {
        call("order:1", TEMPLATE).await;
    }
    assert_eq!(trace.count("no call has used this override"), 1);
    trace.assert_says("template=\"ordr:{order_id}\"");
    trace.assert_says("nearest=\"order:{order_id}\"");
}
