//! How long an acquisition waits for a server that can't be reached, apart from its wait for a busy lock.
//!
//! Such an acquisition has two clocks, of which one runs at a time:
//!
//! | The last command | The clock that runs |
//! |---|---|
//! | got a reply, or none has been sent yet | the wait, which a busy lock uses up |
//! | failed, and another one may succeed | the outage, from the moment when that command was sent |
//!
//! So an outage stops the wait: the deadline moves by its length once a reply ends it. All outages of an acquisition share
//! one time, so the whole call takes at most the wait and that time. Without an [`Outage`], an outage uses up the wait.

use std::time::Duration;

use crate::clock::Moment;

/// The time that an acquisition has for outages of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outage {
    /// What the outages before have left of it.
    left: Duration,
    /// When the current outage began.
    since: Option<Moment>,
}

impl Outage {
    pub fn new(left: Duration) -> Self {
        Self { left, since: None }
    }

    /// Records a failure of a command that was sent at `sent`.
    pub fn begin(&mut self, sent: Moment) {
        self.since.get_or_insert(sent);
    }

    /// Records a reply. Returns how long the outage lasted.
    pub fn end(&mut self, now: Moment) -> Duration {
        let lasted = self.lasts(now);
        self.left = self.left.saturating_sub(lasted);
        self.since = None;
        lasted
    }

    /// Returns how long the current outage lasts already; zero if there is none.
    pub fn lasts(&self, now: Moment) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns how much time is left for outages.
    pub fn left(&self, now: Moment) -> Duration {
        self.left.saturating_sub(self.lasts(now))
    }

    /// Returns when the acquisition gives up, if an outage lasts.
    pub(super) fn ends_at(&self) -> Option<Moment> {
        self.since.map(|since| since.plus(self.left))
    }
}
