//! The channels on which releases are published in the dialects of Redisson: one for each key with waiters.
//!
//! Redisson subscribes while a thread waits, and so does this module. A message wakes the first waiter of the
//! manager, as it wakes one thread of a JVM.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::channels::{ChannelLimits, ChannelPhase, Channels, Listener};
use crate::sync::Mutex;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::key::{LockKey, key_of_channel};

/// A waiter polls at least each second. Redisson unsubscribes when its last thread stops to wait, and subscribes
/// again for the next one.
const LIMITS: ChannelLimits = ChannelLimits {
    idle: Duration::from_secs(10),
    most: 4096,
    without_waiters: Duration::from_secs(5),
};

/// How long a new acquire waits after a release of the same key that other clients received. Otherwise a loop of
/// acquires and releases of one process gets nearly all turns: the other side first has to receive the message.
const PAUSE: Duration = Duration::from_millis(2);

/// Pauses that have ended are removed when there are more.
const MANY_PAUSES: usize = 64;

/// How the channels of one connection are subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subscribing {
    Classic,
    /// In a cluster. Redisson uses these channels there since 3.22.0, and classic ones before.
    Sharded,
}

/// The channels of the keys of one server.
pub(super) struct KeyChannels {
    classic: Channels<Arc<str>>,
    /// In a cluster.
    sharded: Option<Channels<Arc<str>>>,
    /// Until when new acquires of these keys wait.
    pauses: Mutex<HashMap<Arc<str>, Moment>>,
}

impl KeyChannels {
    pub(super) fn new(
        is_cluster: bool,
        listener: &Arc<Listener>,
        reporter: &Arc<Reporter>,
    ) -> Self {
        let channels = || Channels::new(LIMITS, listener, reporter);
        Self {
            classic: channels(),
            sharded: is_cluster.then(channels),
            pauses: Mutex::default(),
        }
    }

    /// Returns the commands that publish a release, so that each version of Redisson receives it.
    pub(super) fn publishers(&self) -> &'static [&'static str] {
        match self.sharded {
            Some(_) => &["SPUBLISH", "PUBLISH"],
            None => &["PUBLISH"],
        }
    }

    /// Returns whether messages for the key arrive from the server process with this run id. Subscribes if no
    /// waiter has needed it yet, which takes at most `limit`.
    pub(super) async fn is_up_for(&self, key: &LockKey, run_id: u64, limit: Duration) -> bool {
        let deadline = Deadline::after(Clock::System, limit);
        let id = key.text();
        let name = || Arc::from(key.redisson_channel());
        if let Some(sharded) = &self.sharded {
            // Both are wanted before the first one is awaited.
            let _known = self.classic.touch(&id, name);
            let up = sharded.up_for(&id, name, run_id, deadline.left()).await;
            if up.is_none() {
                return false;
            }
        }
        let up = self.classic.up_for(&id, name, run_id, deadline.left());
        up.await.is_some()
    }

    /// As [`is_up_for`](Self::is_up_for), for channels that are subscribed already. They stay so for a while.
    pub(super) fn keep_if_up(&self, key: &LockKey, run_id: u64) -> bool {
        let id = key.text();
        let up = self.all().filter(|(_, it)| it.keep_if_up(&id, run_id));
        up.count() == self.publishers().len()
    }

    /// Returns how many subscriptions of this manager receive a message about the key.
    pub(super) fn own_subscriptions(&self, key: &LockKey, run_id: u64) -> usize {
        let id = key.text();
        let all = self.all().map(|(_, channels)| channels);
        all.filter(|channels| channels.is_up(&id, run_id)).count()
    }

    /// Waits until other clients had their chance after a release of this key.
    pub(super) async fn wait_after_release(&self, key: &LockKey) {
        let until = self.pauses.lock().get(key.as_str()).copied();
        if let Some(until) = until {
            let now = Clock::System.now();
            // At most that long: the clock may have been read before the release.
            tokio::time::sleep(until.since(now).min(PAUSE)).await;
        }
    }

    /// Records a release whose message other clients received.
    pub(super) fn pause_after_release(&self, key: &LockKey) {
        let now = Clock::System.now();
        let mut pauses = self.pauses.lock();
        if pauses.len() >= MANY_PAUSES {
            pauses.retain(|_, until| *until > now);
        }
        pauses.insert(key.text(), now.plus(PAUSE));
    }

    /// Returns the sets of channels, with the way in which they are subscribed.
    pub(super) fn all(&self) -> impl Iterator<Item = (Subscribing, &Channels<Arc<str>>)> {
        let classic = std::iter::once((Subscribing::Classic, &self.classic));
        let sharded = self.sharded.iter().map(|it| (Subscribing::Sharded, it));
        classic.chain(sharded)
    }

    pub(super) fn is_any_up(&self) -> bool {
        self.all().any(|(_, channels)| channels.is_any_up())
    }

    pub(super) fn has_any(&self) -> bool {
        self.all().any(|(_, channels)| channels.has_any())
    }

    pub(super) fn all_down(&self) {
        for (_, channels) in self.all() {
            channels.all_down();
        }
    }

    /// Sets the phase of channels. Returns the keys whose waiters may have missed a message.
    pub(super) fn set_phases(
        &self,
        how: Subscribing,
        names: &[&str],
        phase: ChannelPhase,
    ) -> Vec<Arc<str>> {
        self.find(how)
            .map(|it| it.set_phases(names, phase))
            .unwrap_or_default()
    }

    /// Returns whether there is a channel with this name.
    #[cfg(feature = "cluster")]
    pub(super) fn has(&self, how: Subscribing, name: &str) -> bool {
        self.find(how).is_some_and(|it| it.has(name))
    }

    /// Forgets a channel whose slot has moved. Returns whether it was known.
    #[cfg(feature = "cluster")]
    pub(super) fn forget(&self, how: Subscribing, name: &str) -> bool {
        self.find(how).is_some_and(|it| it.forget(name))
    }

    fn find(&self, how: Subscribing) -> Option<&Channels<Arc<str>>> {
        self.all()
            .find_map(|(it, found)| (it == how).then_some(found))
    }
}

/// Returns the key whose release a message on this channel announces.
pub(super) fn key_of(channel: &[u8]) -> Option<&str> {
    key_of_channel(str::from_utf8(channel).ok()?)
}
