//! The spans `lock.acquire` and `lock.hold`, their fields and their parents.

use lock_core::{LockError, LockGuard, LockManager, LockName, distributed_lock};
use test_support::fixtures::{KEY, LONG, NAME, SOON, ms};
use test_support::{RedisServer, eventually_async};
use tests::{connect, lost_in_time, one_attempt, start_waiter};
use tracing::Instrument;

use super::subscriber::RecordedSpan;
use super::{alone, subscriber, tables};

/// Returns the only span with this name and this template.
fn only(name: &str, template: &str) -> (u64, RecordedSpan) {
    let mut found = subscriber::spans(|span| {
        span.name == name && span.fields.get("distributed_lock.name") == Some(template)
    });
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[distributed_lock(name = "spans:attribute:{id}", manager = locks)]
async fn work(locks: &LockManager, id: u32) -> Result<(), LockError> {
    tokio::task::yield_now().await;
    tracing::info_span!(target: "telemetry", "inner").in_scope(|| ());
    Ok(())
}

#[test]
fn spans_have_the_fields_of_the_table() {
    alone(async {
        let server = RedisServer::start();
        let tagged = one_attempt(LockManager::builder()).holder_tag(|| Some("trace-7".into()));
        let locks = tagged.connect(&server.url()).await.unwrap();
        let request = || {
            locks
                .lock(LockName::from(NAME).with_template("spans:fields"))
                .ttl(LONG)
        };
        let held = request().acquire().await.unwrap();
        let failing = locks
            .lock(LockName::from(NAME).with_template("spans:failing"))
            .wait(ms(700));
        failing.acquire().await.unwrap_err();
        let waiting = locks
            .lock(LockName::from(NAME).with_template("spans:waiting"))
            .wait(SOON);
        let waiter = start_waiter(&server, waiting, 1).await;
        held.release().await.unwrap();
        let token = held_token(waiter.await.unwrap().unwrap()).await;

        let (_, acquire) = only("lock.acquire", "spans:waiting");
        let get = |field| acquire.fields.get(field);
        assert_eq!(get("otel.kind"), Some("client"));
        assert_eq!(get("otel.name"), Some("acquire spans:waiting"));
        assert_eq!(get("distributed_lock.outcome"), Some("acquired"));
        assert_eq!(get("distributed_lock.queue_position"), Some("0"));
        assert_eq!(get("distributed_lock.fencing_token"), Some(&*token));
        assert_eq!(get("db.system.name"), Some("redis"));
        assert_eq!(get("server.address"), Some("127.0.0.1"));
        let port = server.port().to_string();
        assert_eq!(get("server.port"), Some(&*port));
        assert!(
            get("distributed_lock.wait_ms")
                .unwrap()
                .parse::<u64>()
                .is_ok()
        );
        assert_eq!(get("error.type"), None);
        assert!(acquire.is_closed);

        let (_, failed) = only("lock.acquire", "spans:failing");
        assert_eq!(
            failed.fields.get("distributed_lock.outcome"),
            Some("timeout")
        );
        assert_eq!(failed.fields.get("error.type"), Some("timeout"));
        let tag = failed.fields.get("distributed_lock.holder.tag");
        assert_eq!(tag, Some("trace-7"));

        let (_, span) = only("lock.hold", "spans:fields");
        assert_eq!(span.fields.get("otel.kind"), Some("internal"));
        assert_eq!(
            span.fields.get("distributed_lock.outcome"),
            Some("released")
        );
        assert_eq!(span.fields.get("distributed_lock.renewals"), Some("0"));
        assert!(span.fields.get("distributed_lock.hold_ms").is_some());
        assert!(span.is_closed);

        for (name, known) in tables::span_fields() {
            for (_, span) in subscriber::spans(|span| span.name == name) {
                for field in span.fields.0.keys() {
                    let is_known = known.contains(field) || field.starts_with("otel.");
                    assert!(is_known, "{name}: {field}");
                }
            }
        }
    });
}

async fn held_token(held: LockGuard) -> String {
    let token = held.fencing_token().unwrap().to_string();
    held.release().await.unwrap();
    token
}

#[test]
fn bodies_run_inside_the_span_of_the_lock() {
    alone(async {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let outer = tracing::info_span!(target: "telemetry", "outer");
        let number = outer.id().unwrap().into_u64();
        let body = async |_: &LockGuard| {
            tokio::task::yield_now().await;
            tracing::info_span!(target: "telemetry", "inner").in_scope(|| ());
        };
        let run = locks
            .lock(LockName::from("run").with_template("spans:run"))
            .run(body);
        run.instrument(outer.clone()).await.unwrap();
        work(&locks, 7).instrument(outer).await.unwrap();
        for template in ["spans:run", "spans:attribute:{id}"] {
            let (_, acquire) = only("lock.acquire", template);
            assert_eq!(acquire.parent, Some(number), "{template}");
            let (hold_number, hold) = only("lock.hold", template);
            assert_eq!(hold.parent, Some(number), "{template}");
            let inner =
                subscriber::spans(|span| span.name == "inner" && span.parent == Some(hold_number));
            assert_eq!(inner.len(), 1, "{template}");
            assert!(hold.is_closed, "{template}");
        }
    });
}

/// The background worker finds the loss, and the trace of the request shows it.
#[test]
fn loss_is_an_event_of_the_holders_span() {
    alone(async {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let request = locks
            .lock(LockName::from(NAME).with_template("spans:lost"))
            .ttl(ms(600));
        let held = request.acquire().await.unwrap();
        let watch = held.watch();
        let (number, _) = only("lock.hold", "spans:lost");
        server.cli(&["DEL", KEY]);
        lost_in_time(&held).await;
        let is_reported = || {
            let lost = |event: &subscriber::RecordedEvent| {
                event.name == "lock.lost" && event.span == Some(number)
            };
            !subscriber::events(lost).is_empty()
        };
        eventually_async(SOON, async || is_reported()).await;
        let (_, span) = only("lock.hold", "spans:lost");
        assert!(!span.is_closed, "the guard still exists");
        drop(held);
        // A handle that only watches does not keep the span open. The worker that found the loss may
        // still have it open for a moment.
        eventually_async(SOON, async || only("lock.hold", "spans:lost").1.is_closed).await;
        let (_, span) = only("lock.hold", "spans:lost");
        assert_eq!(span.fields.get("distributed_lock.outcome"), Some("lost"));
        drop(watch);
    });
}
