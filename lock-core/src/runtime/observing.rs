//! Reads of locks that several observers share.
//!
//! The observers of one key have one [`SharedRead`]. An observer that needs a reading takes the latest one, if that is
//! recent enough. Otherwise it begins a read, or waits for the one that is running. So however many observers there are, they
//! send one command in each interval, and nothing is sent while no observer asks.
//!
//! A read runs in a task: an observer whose future is dropped, or is not polled for a while, keeps no other one waiting.
//! The task lasts for one command, at most for the command timeout. When it ends without a reading, because its runtime
//! shuts down, the next observer begins another one. So does an observer that has waited for longer than that: the runtime
//! of the task may not be driven.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::LockError;
use crate::runtime::inner::ManagerInner;
use crate::store::check_runtime;
use crate::sync::Mutex;
use lock_protocol::clock::Moment;
use lock_protocol::inspection::{InspectDetail, InspectReply};
use lock_protocol::key::LockKey;

/// How much longer than its command a read may take.
const SPARE: Duration = Duration::from_millis(250);

/// The reads of a manager. There is one for each key that has observers.
#[derive(Default)]
pub(crate) struct Observing {
    reads: Mutex<HashMap<LockKey, Weak<SharedRead>>>,
}

#[cfg(test)]
impl Observing {
    /// Returns how many keys have observers.
    pub(crate) fn count(&self) -> usize {
        self.reads.lock().len()
    }
}

/// What the observers of one key share.
pub(crate) struct SharedRead {
    pub(crate) inner: Arc<ManagerInner>,
    pub(crate) key: LockKey,
    state: Mutex<State>,
    /// Notified when a read ends.
    ended: Notify,
}

#[derive(Default)]
struct State {
    latest: Option<Reading>,
    /// When the read that runs was begun.
    running_since: Option<Moment>,
}

/// What one read has found.
#[derive(Clone)]
pub(crate) struct Reading {
    /// When it was begun.
    pub(crate) begun: Moment,
    pub(crate) outcome: Result<Arc<InspectReply>, LockError>,
}

impl SharedRead {
    /// Returns what the observers of the key share. Must not run in a forked child.
    pub(crate) fn of(inner: &Arc<ManagerInner>, key: LockKey) -> Arc<Self> {
        let mut reads = inner.observing.reads.lock();
        if let Some(shared) = reads.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = Arc::new(Self {
            inner: Arc::clone(inner),
            key: key.clone(),
            state: Mutex::default(),
            ended: Notify::new(),
        });
        reads.insert(key, Arc::downgrade(&shared));
        shared
    }

    /// Returns a reading that was begun less than `max_age` ago, or during the call.
    ///
    /// # Cancel safety
    /// A read that has begun goes on, for the next caller.
    pub(crate) async fn read(self: &Arc<Self>, max_age: Duration) -> Result<Reading, LockError> {
        self.inner.check_process()?;
        check_runtime()?;
        let called = self.inner.clock().now();
        let is_recent = |reading: &Reading| {
            reading.begun >= called || self.inner.clock().now().since(reading.begun) < max_age
        };
        let longest = self.inner.settings.command_timeout + SPARE;
        let mut has_begun = false;
        loop {
            let mut ended = pin!(self.ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            let begins = {
                let mut state = self.state.lock();
                if let Some(latest) = state.latest.as_ref().filter(|latest| is_recent(latest)) {
                    return Ok(latest.clone());
                }
                let now = self.inner.clock().now();
                let running = state
                    .running_since
                    .filter(|since| now.since(*since) < longest);
                if running.is_none() {
                    state.running_since = Some(now);
                }
                running.is_none()
            };
            if begins {
                let running = Running {
                    shared: Arc::clone(self),
                    reading: None,
                };
                // The runtime has dropped this caller's task without a reading: it is shutting down.
                if has_begun {
                    return Err(LockError::NoRuntime);
                }
                has_begun = true;
                tokio::spawn(running.run());
            }
            let _waited = tokio::time::timeout(longest, ended).await;
        }
    }

    fn finish(&self, reading: Option<Reading>) {
        let earlier = {
            let mut state = self.state.lock();
            state.running_since = None;
            match reading {
                Some(reading) => state.latest.replace(reading),
                None => None,
            }
        };
        // An error may have a foreign source, so it is dropped outside of the mutex.
        drop(earlier);
        self.inner.reporter.waking(|| self.ended.notify_waiters());
    }
}

impl Drop for SharedRead {
    fn drop(&mut self) {
        if !self.inner.process().is_current() {
            return;
        }
        let mut reads = self.inner.observing.reads.lock();
        // A new observer of the key may have come in between.
        if reads
            .get(&self.key)
            .is_some_and(|read| read.strong_count() == 0)
        {
            reads.remove(&self.key);
        }
    }
}

/// A read that runs. Its end is noted even when its runtime drops it.
struct Running {
    shared: Arc<SharedRead>,
    reading: Option<Reading>,
}

impl Running {
    async fn run(mut self) {
        let inner = &self.shared.inner;
        let begun = inner.clock().now();
        let (key, limit) = (&self.shared.key, inner.settings.command_timeout);
        let reply = inner.store.inspect(key, InspectDetail::Short, limit).await;
        let outcome = reply.map(Arc::new);
        self.reading = Some(Reading { begun, outcome });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.shared.inner.process().is_current() {
            self.shared.finish(self.reading.take());
        }
    }
}
