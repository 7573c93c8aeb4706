//! Values of names never become labels, and keys are hidden on demand.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockManager, LockName, distributed_lock, lock_name};
use test_support::RedisServer;
use test_support::fixtures::{SOON, ms};
use tests::{connect, lost_in_time};

use super::{alone, recorder, subscriber};

#[distributed_lock(name = "labelled:{order}", manager = locks)]
async fn ship(locks: &LockManager, order: u32) -> Result<(), LockError> {
    Ok(())
}

#[test]
fn names_never_contain_values() {
    alone(async {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        for order in 0..1_000 {
            ship(&locks, order).await.unwrap();
        }
        for order in 0..20 {
            let named = lock_name!("macro:{order}");
            drop(locks.lock(named).acquire().await.unwrap());
            let request = locks.lock(format!("labelled:secret:{order}"));
            drop(request.acquire().await.unwrap());
        }
        let totals = recorder::totals();
        let names: BTreeSet<_> = totals
            .keys()
            .flat_map(|(_, labels)| labels)
            .filter(|(key, _)| key == "distributed_lock.name")
            .map(|(_, value)| value.as_str())
            .collect();
        let of_this_test = |name: &&&str| name.starts_with("labelled") || name.starts_with("macro");
        let ours: Vec<_> = names.iter().filter(of_this_test).collect();
        assert_eq!(ours, [&"labelled:{order}", &"macro:{order}"]);
        assert!(names.contains("_OTHER"));
        let series = totals.iter().filter(|((metric, labels), _)| {
            let name = ("distributed_lock.name".into(), "labelled:{order}".into());
            metric == "distributed_lock.acquire.duration" && labels.contains(&name)
        });
        let series: Vec<_> = series.collect();
        assert_eq!(series.len(), 1, "{series:?}");
        assert_eq!(*series[0].1, 1_000, "{series:?}");
    });
}

#[test]
fn redacted_keys_are_in_no_event() {
    alone(async {
        let server = RedisServer::start();
        let seen = Arc::new(Mutex::new(String::new()));
        let observed = Arc::clone(&seen);
        let builder =
            LockManager::builder()
                .redact_keys()
                .observer(move |event: &LockEvent<'_>| {
                    let text = format!("{event:?}\n");
                    observed.lock().unwrap().push_str(&text);
                });
        let locks = builder.connect(&server.url()).await.unwrap();
        let before = subscriber::events(|_| true).len();
        let name = "patient:SECRET";
        let request = || {
            locks
                .lock(LockName::from(name).with_template("patient:{id}"))
                .ttl(ms(600))
        };
        let held = request().acquire().await.unwrap();
        let error = request().wait(ms(20)).acquire().await.unwrap_err();
        assert!(error.to_string().contains("SECRET"), "errors have the key");
        server.cli(&["DEL", &format!("lock:{name}")]);
        lost_in_time(&held).await;
        drop(held);
        locks.shutdown().await.unwrap();
        test_support::eventually(SOON, || {
            subscriber::events(|event| event.name == "lock.lost")
                .iter()
                .any(|event| event.fields.get("key") == Some("patient:{id}"))
        });
        for event in &subscriber::events(|_| true)[before..] {
            let text = format!("{event:?}");
            assert!(!text.contains("SECRET"), "{text}");
        }
        for (_, span) in subscriber::spans(|_| true) {
            assert!(!format!("{span:?}").contains("SECRET"), "{span:?}");
        }
        // An observer can read the error that the caller gets. The lock of an event has no key.
        let seen = seen.lock().unwrap();
        assert!(seen.contains("LockId { name: \"patient:{id}\", key: \"patient:{id}\""));
        assert!(!seen.contains("key: \"lock:patient:SECRET\", .."));
    });
}
