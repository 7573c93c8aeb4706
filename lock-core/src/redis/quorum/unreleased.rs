//! Releases that a server of a quorum has not confirmed, although a majority has. They are repeated until the
//! server confirms them, or until the lease has expired there. Otherwise a minority would keep the lock for the
//! rest of its lease, and fewer other servers could fail in that time.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::Notify;

use crate::store::Store;
use crate::sync::Mutex;
use lock_protocol::acquisition::Failure;
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::owner_id::OwnerId;

/// One pipeline of this length occupies the server for about a millisecond.
const MAX_BATCH: usize = 100;

/// The releases that one server has to confirm.
#[derive(Debug, Default)]
pub(super) struct Unreleased {
    releases: Mutex<HashMap<OwnerId, OpenRelease>>,
    added: Notify,
}

#[derive(Debug)]
struct OpenRelease {
    request: ReleaseRequest,
    due: Moment,
    /// An acquire without a reply may take effect until then, so an earlier confirmation is not the last one.
    acquire_ends_at: Option<Moment>,
    /// By then the lease has expired at the server.
    expires_at: Moment,
}

/// What there is to send.
enum Due {
    Now(Vec<OpenRelease>),
    At(Moment),
    Nothing,
}

impl Unreleased {
    /// Repeats the release until it is confirmed. `acquire_ends_at` is the last moment at which an acquire of this
    /// owner id may take effect, if one has no reply.
    pub(super) fn add(
        &self,
        request: ReleaseRequest,
        acquire_ends_at: Option<Moment>,
        command_timeout: Duration,
    ) {
        let now = Clock::System.now();
        let latest = acquire_ends_at.unwrap_or(now);
        let request = ReleaseRequest {
            origin: None,
            ..request
        };
        let release = OpenRelease {
            expires_at: latest.plus(command_timeout).plus(request.ttl.as_duration()),
            due: now,
            acquire_ends_at,
            request,
        };
        let replaced = self
            .releases
            .lock()
            .insert(release.request.owner_id, release);
        drop(replaced);
        self.added.notify_one();
    }

    fn take_due(&self, now: Moment) -> Due {
        let mut releases = self.releases.lock();
        let expired = releases.extract_if(|_, release| release.expires_at <= now);
        let expired: Vec<_> = expired.collect();
        let due = releases.extract_if(|_, release| release.due <= now);
        let due: Vec<_> = due.take(MAX_BATCH).map(|(_, release)| release).collect();
        let next = releases.values().map(|release| release.due).min();
        drop(releases);
        drop(expired);
        match next {
            _ if !due.is_empty() => Due::Now(due),
            Some(next) => Due::At(next),
            None => Due::Nothing,
        }
    }

    fn put_back(&self, releases: Vec<OpenRelease>) {
        let mut all = self.releases.lock();
        for release in releases {
            all.entry(release.request.owner_id).or_insert(release);
        }
    }
}

impl OpenRelease {
    /// Returns when to send it again after a confirmation; `None` if it was the last one.
    fn after_confirmation(&self, sent: Moment) -> Option<Moment> {
        self.acquire_ends_at.filter(|ends_at| sent <= *ends_at)
    }
}

/// Repeats the releases that this server has not confirmed, for as long as the future is polled.
pub(super) async fn repeat(unreleased: &Unreleased, server: &dyn Store, command_timeout: Duration) {
    let mut backoff = Backoff::new(Jitter::from_os());
    loop {
        let added = unreleased.added.notified();
        match unreleased.take_due(Clock::System.now()) {
            Due::Nothing => added.await,
            Due::At(at) => {
                let pause = at.since(Clock::System.now());
                let _added_or_elapsed = tokio::time::timeout(pause, added).await;
            }
            Due::Now(due) => {
                let sent = Clock::System.now();
                let requests: Vec<_> = due.iter().map(|release| &release.request).collect();
                let released = server.release_all(&requests, command_timeout);
                let results = released.await;
                let mut left = Vec::new();
                let mut pause = None;
                for (mut release, result) in due.into_iter().zip(results) {
                    let again_at = match result {
                        Ok(_) => {
                            backoff.reset();
                            release.after_confirmation(sent)
                        }
                        Err(error) if error.class().is_transient() => {
                            let pause = *pause.get_or_insert_with(|| backoff.pause());
                            Some(Clock::System.now().plus(pause))
                        }
                        // Another attempt would fail in the same way.
                        Err(_) => None,
                    };
                    if let Some(again_at) = again_at {
                        release.due = again_at;
                        left.push(release);
                    }
                }
                unreleased.put_back(left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::cleanup::ReleaseSubject;
    use lock_protocol::key::{LockKey, LockName};
    use lock_protocol::ttl::Ttl;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn request() -> ReleaseRequest {
        ReleaseRequest {
            key: LockKey::new("", &LockName::from("k")).unwrap(),
            owner_id: OwnerId::random(),
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
            entries: Vec::new(),
            origin: None,
            unconfirmed: None,
            keep: lock_protocol::cleanup::Keep::Nothing,
            subject: ReleaseSubject::Guard,
            kind: crate::Kind::Exclusive,
            label: "".into(),
        }
    }

    fn due(unreleased: &Unreleased, now: Moment) -> Vec<OpenRelease> {
        match unreleased.take_due(now) {
            Due::Now(due) => due,
            Due::At(_) | Due::Nothing => Vec::new(),
        }
    }

    #[test]
    fn release_is_repeated_until_it_is_confirmed_after_the_last_acquire() {
        let unreleased = Unreleased::default();
        let ends_at = Clock::System.now().plus(TIMEOUT);
        unreleased.add(request(), Some(ends_at), TIMEOUT);
        let sent = Clock::System.now();
        let release = due(&unreleased, sent).pop().unwrap();
        assert_eq!(release.after_confirmation(sent), Some(ends_at));
        let later = ends_at.plus(Duration::from_nanos(1));
        assert_eq!(release.after_confirmation(later), None);
        assert!(due(&unreleased, later).is_empty());
    }

    #[test]
    fn confirmation_of_an_answered_acquire_is_the_last_one() {
        let unreleased = Unreleased::default();
        unreleased.add(request(), None, TIMEOUT);
        let now = Clock::System.now();
        let release = due(&unreleased, now).pop().unwrap();
        assert_eq!(release.after_confirmation(now), None);
    }

    #[test]
    fn release_of_an_expired_lease_is_forgotten() {
        let unreleased = Unreleased::default();
        unreleased.add(request(), None, TIMEOUT);
        let expired = Clock::System.now().plus(Duration::from_secs(25 * 3600));
        assert!(due(&unreleased, expired).is_empty());
        assert!(due(&unreleased, Clock::System.now()).is_empty());
    }

    #[test]
    fn batch_is_bounded() {
        let unreleased = Unreleased::default();
        for _ in 0..=MAX_BATCH {
            unreleased.add(request(), None, TIMEOUT);
        }
        let now = Clock::System.now();
        assert_eq!(due(&unreleased, now).len(), MAX_BATCH);
        assert_eq!(due(&unreleased, now).len(), 1);
    }
}
