//! What a manager reports of sets and downgrades.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockManager, LockManagerBuilder, LossReason};
use test_support::fixtures::{KEY, LONG, NAME, SOON};
use test_support::{RedisServer, eventually_async};
use tests::one_attempt;

/// The ends of acquires and holds: the event, the key, and the kind of the lock.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn observed(&self) -> LockManagerBuilder {
        let seen = Arc::clone(&self.0);
        one_attempt(LockManager::builder()).observer(move |event: &LockEvent<'_>| {
            let (name, lock) = match event {
                LockEvent::Granted { lock, .. } => ("granted".to_owned(), lock),
                LockEvent::NotAcquired { lock, outcome, .. } => (format!("{outcome:?}"), lock),
                LockEvent::HoldEnded { lock, outcome, .. } => (format!("ended {outcome:?}"), lock),
                LockEvent::ReleaseFailed { lock, .. } => ("release failed".to_owned(), lock),
                LockEvent::Lost { lock, reason, .. } => (format!("lost {reason:?}"), lock),
                _ => return,
            };
            let line = format!("{name} {} {}", lock.key(), lock.kind());
            seen.lock().unwrap().push(line);
        })
    }

    async fn connect(&self, server: &RedisServer) -> LockManager {
        self.observed().connect(&server.url()).await.unwrap()
    }

    /// Returns the lines since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// The outcome of a set that was not acquired is that of the lock that was the cause.
#[tokio::test]
async fn set_without_its_locks_reports_the_lock_that_was_the_cause() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let locks = seen.connect(&server).await;
    let held = locks.lock("b").ttl(LONG).acquire().await.unwrap();
    seen.take();
    for names in [["b", "c"], ["a", "b"]] {
        let set = locks.lock_all(names).read().try_acquire().await;
        assert!(set.unwrap().is_none());
        assert_eq!(seen.take(), ["Contended lock:b read"]);
    }
    server.cli(&["SET", "{lock:c}:h", "text", "PX", "60000"]);
    let set = locks.lock_all(["a", "c"]).read().try_acquire().await;
    assert!(matches!(set, Err(LockError::ForeignKey { .. })), "{set:?}");
    assert_eq!(seen.take(), ["Failed lock:c read"]);
    drop(held);
}

#[tokio::test]
async fn set_that_sends_nothing_is_reported() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let locks = seen.connect(&server).await;
    let pair = || locks.lock_all(["a", "b"]);
    let inside = locks.lock("b").run(async |_| pair().acquire().await);
    let error = inside.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LockError::WouldDeadlock { .. }),
        "{error:?}"
    );
    let lines = seen.take();
    assert!(
        lines.contains(&"Contended lock:b exclusive".to_owned()),
        "{lines:?}"
    );

    let ended = seen.connect(&server).await;
    ended.shutdown().await.unwrap();
    let error = ended.lock_all(["a", "b"]).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::ShuttingDown), "{error:?}");
    assert_eq!(seen.take(), ["Failed lock:a exclusive"]);

    server.kill9();
    eventually_async(SOON, async || {
        // Finds the connection broken.
        let _error = locks.lock("z").acquire().await;
        !locks.health().is_connected
    })
    .await;
    seen.take();
    for wait in [Duration::ZERO, Duration::from_millis(100)] {
        let error = pair().wait(wait).acquire().await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        assert_eq!(seen.take(), ["Failed lock:a exclusive"]);
    }
}

/// A downgrade is the end of one hold, and an acquire of the read lock.
#[tokio::test]
async fn downgrade_reports_a_read_lock() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let locks = seen.connect(&server).await;
    let writer = locks.lock(NAME).acquire().await.unwrap();
    seen.take();
    let reader = writer.downgrade().await.unwrap();
    let both = ["granted lock:job read", "ended Released lock:job exclusive"];
    assert_eq!(seen.take(), both);
    reader.release().await.unwrap();
    assert_eq!(seen.take(), ["ended Released lock:job read"]);
}

/// A ticket is the end of one hold, and its resume is an acquire of its own.
#[tokio::test]
async fn ticket_reports_two_holds() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let locks = seen.connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    seen.take();
    let ticket = held.into_ticket(LONG).await.unwrap();
    assert_eq!(seen.take(), ["ended Ticket lock:job exclusive"]);
    let resumed = locks.resume(ticket.clone()).await.unwrap();
    assert_eq!(seen.take(), ["granted lock:job exclusive"]);
    resumed.release().await.unwrap();
    assert_eq!(seen.take(), ["ended Released lock:job exclusive"]);
    locks.resume(ticket).await.unwrap_err();
    assert_eq!(seen.take(), ["Failed lock:job exclusive"]);

    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["DEL", KEY]);
    seen.take();
    let error = held.into_ticket(LONG).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    let lines = seen.take();
    assert!(!lines.contains(&"release failed".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&format!("lost Removed {KEY} exclusive")),
        "{lines:?}"
    );
}

/// Another client took the key, or uses the key of the readers.
#[tokio::test]
async fn failed_downgrade_tells_what_became_of_the_lock() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let locks = seen.connect(&server).await;
    let replacements: [(&[&str], LossReason); 2] = [
        (&["DEL", KEY], LossReason::Removed),
        (&["LPUSH", KEY, "1"], LossReason::Replaced),
    ];
    for (command, expected) in replacements {
        let writer = locks.lock(NAME).acquire().await.unwrap();
        server.cli(&["DEL", KEY]);
        server.cli(command);
        seen.take();
        let error = writer.downgrade().await.unwrap_err();
        assert!(
            matches!(&error, LockError::Lost { reason, .. } if *reason == expected),
            "{error:?}"
        );
        let lines = seen.take();
        assert!(!lines.contains(&"release failed".to_owned()), "{lines:?}");
        let lost = format!("lost {expected:?} {KEY} exclusive");
        assert!(lines.contains(&lost), "{lines:?}");
        server.cli(&["DEL", KEY]);
    }
    let writer = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["SET", "{lock:job}:h", "text"]);
    seen.take();
    let error = writer.downgrade().await.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error:?}");
    // The lock was held all the time, and is released in the background.
    let lines = seen.take();
    let expected = ["Failed lock:job read", "ended Released lock:job exclusive"];
    assert_eq!(lines, expected);
    eventually_async(SOON, async || server.cli(&["EXISTS", KEY]).integer() == 0).await;
}
