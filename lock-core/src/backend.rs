//! What a backend has to be able to do, and what it answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, ServerMs};
use crate::error::LockError;
use crate::key::LockKey;
use crate::lease::Terms;
use crate::nonce::Nonce;
use crate::token::FencingToken;
use crate::ttl::{Ttl, whole_millis};
use crate::wait::{self, Ahead};
use crate::wire::{Entry, Mode};
#[cfg(feature = "redis")]
use crate::wire::{OwnerValue, PlainOwner, tidy_label};

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// A future behind a pointer: what lets a backend be a trait object.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where locks live.
pub(crate) trait Backend: Send + Sync + 'static {
    fn clock(&self) -> Clock;

    /// Asks for the lock once, or looks again under the same nonce; stands in the queue while
    /// `attempt` waits. Takes at most `limit`.
    ///
    /// Records in `attempt`, before anything is sent, what has to be taken back should the
    /// future be dropped or fail.
    fn acquire<'a>(
        &'a self,
        attempt: &'a mut Attempt,
        limit: Duration,
    ) -> Boxed<'a, Result<Asked, LockError>>;

    /// Extends many leases in one go. One answer for each, in order.
    fn renew<'a>(&'a self, renewals: &'a [Renewal], limit: Duration) -> Boxed<'a, Vec<Renewed>>;

    /// Takes back whatever the nonce has or wants.
    fn release<'a>(
        &'a self,
        ending: &'a Ending,
        limit: Duration,
    ) -> Boxed<'a, Result<Released, LockError>>;

    /// Whether releases of that lock may go out in one batch with others.
    fn batches(&self, key: &LockKey) -> bool;

    /// As [`release`](Self::release), many in one go. One answer for each, in order.
    fn release_all<'a>(
        &'a self,
        endings: &'a [Ending],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<Released, LockError>>>;

    /// Whether some runtime failed to connect and none has succeeded since: then to wait for a
    /// connection comes first, and all else after it.
    fn seems_down(&self) -> bool;

    /// Whether the calling runtime can ask at once.
    fn is_connected(&self) -> bool;

    /// Waits until the calling runtime can ask, or asking cannot help; at most until then. What
    /// went wrong last is the error.
    fn connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>>;

    /// Receives pushes for as long as it is polled.
    fn listen(&self) -> Boxed<'_, ()>;

    /// Whether a lease that is to be renewed lives as long as its guard by itself. Otherwise it
    /// takes a keeper.
    fn keeps_leases(&self) -> bool;
}

/// The connection on which a nonce was last sent, in a backend's own numbering.
pub(crate) type Origin = u64;

/// One acquisition on its way, under one nonce.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Attempt {
    pub(crate) key: LockKey,
    pub(crate) nonce: Nonce,
    pub(crate) terms: Terms,
    pub(crate) label: Arc<str>,
    /// The end of the wait; absent to ask once.
    pub(crate) waits_until: Option<Moment>,
    /// All entries that may stand in the queue, the youngest last.
    entries: Vec<Standing>,
    gone_at: Option<Moment>,
    /// The latest server time at which a copy without an answer may take effect.
    unsettled_until_ms: Option<ServerMs>,
    /// Something was sent, and no answer has said that nothing is held or queued.
    open: bool,
    /// A guard has it now.
    taken_over: bool,
    pub(crate) origin: Option<Origin>,
}

/// An entry that may stand in the queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Standing {
    entry: Entry,
    /// The latest server time at which a command that was sent with it may put it there.
    not_after_ms: ServerMs,
}

/// As the latest time of a command: there was none.
const NEVER_SENT: ServerMs = ServerMs::new(0);

/// What a waiter's entry is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand<'a> {
    pub(crate) mode: Mode,
    pub(crate) channel: &'a str,
    /// What a hand-over to it gives.
    pub(crate) lease: Duration,
    pub(crate) now: Moment,
    /// The latest that the server's clock can show now.
    pub(crate) server_ms: ServerMs,
    pub(crate) command_timeout: Duration,
}

impl Attempt {
    pub(crate) fn new(
        key: LockKey,
        terms: Terms,
        label: Arc<str>,
        waits_until: Option<Moment>,
    ) -> Self {
        Self {
            key,
            nonce: Nonce::random(),
            terms,
            label,
            waits_until,
            entries: Vec::new(),
            gone_at: None,
            unsettled_until_ms: None,
            open: false,
            taken_over: false,
            origin: None,
        }
    }

    /// Goes on under a new nonce: the old one may never be seen again.
    pub(crate) fn renamed(&self) -> Self {
        Self::new(
            self.key.clone(),
            self.terms,
            Arc::clone(&self.label),
            self.waits_until,
        )
    }

    /// Makes the entry to be sent the last one, when the attempt waits: the one that stands, or
    /// a new one when how it is told has changed or its time is nearly over.
    pub(crate) fn stand(&mut self, stand: Stand<'_>) {
        let Some(deadline) = self.waits_until else {
            return;
        };
        let Stand { mode, now, .. } = stand;
        if let (Some(last), Some(gone_at)) = (self.entry(), self.gone_at)
            && last.mode == mode
            && last.channel == stand.channel
            && !wait::wants_extension(mode, now, gone_at, deadline)
        {
            return;
        }
        let left = deadline.since(now);
        let stay = wait::stay(mode, left, self.terms.ttl, stand.command_timeout);
        self.gone_at = Some(now.plus(stay));
        let entry = Entry {
            nonce: self.nonce,
            mode,
            kind: String::new(),
            lease_ms: whole_millis(stand.lease),
            gone_at_ms: stand.server_ms.plus(whole_millis(stay)),
            channel: stand.channel.to_owned(),
            label: self.label.to_string(),
        };
        // The server's clock may have been set back, and an entry come out as one before.
        let same = self.entries.iter().position(|known| known.entry == entry);
        let standing = same.map(|at| self.entries.remove(at));
        self.entries.push(standing.unwrap_or(Standing {
            entry,
            not_after_ms: NEVER_SENT,
        }));
    }

    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.entries.last().map(|standing| &standing.entry)
    }

    /// The entries that stood in the queue before the last one.
    pub(crate) fn earlier(&self) -> Vec<Entry> {
        let earlier = self.entries.split_last().map_or(&[][..], |(_, all)| all);
        earlier
            .iter()
            .map(|standing| standing.entry.clone())
            .collect()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entries = self.entries.iter();
        entries.map(|standing| standing.entry.clone()).collect()
    }

    /// The longest lease that a hand-over to one of the entries gives.
    pub(crate) fn longest_handover(&self) -> Duration {
        let leases = self.entries.iter().map(|standing| standing.entry.lease_ms);
        Duration::from_millis(leases.max().unwrap_or(0))
    }

    /// The server looked at the queue at that time, and took out all earlier entries. Those are
    /// forgotten that nothing can put back any more: every command that could is late by now.
    pub(crate) fn queued(&mut self, server_ms: ServerMs) {
        let last = self.entries.pop();
        self.entries
            .retain(|standing| server_ms <= standing.not_after_ms);
        self.entries.extend(last);
    }

    /// A copy is about to be sent that the server carries out until `not_after_ms`.
    pub(crate) fn sending(&mut self, origin: Origin, not_after_ms: ServerMs) -> Copy {
        let before = self.unsettled_until_ms;
        self.unsettled_until_ms = Some(before.map_or(not_after_ms, |b| b.max(not_after_ms)));
        let mut entry_before_ms = NEVER_SENT;
        if let Some(last) = self.entries.last_mut() {
            entry_before_ms = last.not_after_ms;
            last.not_after_ms = last.not_after_ms.max(not_after_ms);
        }
        self.open = true;
        self.origin = Some(origin);
        Copy {
            before,
            entry_before_ms,
        }
    }

    /// That copy was answered: it cannot take effect any more.
    pub(crate) fn answered(&mut self, copy: &Copy) {
        self.unsettled_until_ms = copy.before;
    }

    /// The server did not carry that copy out at all, and said so: an entry that went out with no
    /// other one stands nowhere.
    #[cfg(feature = "redis")]
    pub(crate) fn refused(&mut self, copy: &Copy) {
        if let Some(last) = self.entries.last_mut() {
            last.not_after_ms = copy.entry_before_ms;
        }
        if self
            .entries
            .pop_if(|last| last.not_after_ms == NEVER_SENT)
            .is_some()
        {
            self.gone_at = None;
        }
    }

    /// The server said that the nonce neither holds nor waits.
    pub(crate) fn out(&mut self) {
        self.open = self.unsettled_until_ms.is_some();
    }

    /// Whether something may be held or queued under this nonce.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// A guard releases it from now on.
    pub(crate) fn taken_over(&mut self) {
        self.taken_over = true;
    }

    pub(crate) fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// A cancel was confirmed.
    pub(crate) fn taken_back(&mut self, released: &Released) {
        let is_final = self
            .unsettled_until_ms
            .is_none_or(|until| until < released.server_ms);
        if is_final && !released.more {
            self.unsettled_until_ms = None;
            self.open = false;
        }
    }

    pub(crate) fn unsettled_until_ms(&self) -> Option<ServerMs> {
        self.unsettled_until_ms
    }
}

/// One sent command of an attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Copy {
    before: Option<ServerMs>,
    /// The same of its entry alone.
    entry_before_ms: ServerMs,
}

/// A nonce that has to go, with all that it has or wants.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) key: LockKey,
    pub(crate) nonce: Nonce,
    pub(crate) ttl: Ttl,
    pub(crate) entries: Vec<Entry>,
    pub(crate) origin: Option<Origin>,
    /// Confirmed only by an answer from a later server time.
    pub(crate) unsettled_until_ms: Option<ServerMs>,
    /// Until when a lock that is held stays locked all the same.
    pub(crate) keep_until: Option<Moment>,
}

impl Ending {
    /// For how long the lock stays locked, if the release is sent now.
    pub(crate) fn keep_ms(&self, now: Moment) -> u64 {
        self.keep_until
            .map_or(0, |until| whole_millis(until.since(now)))
    }
}

/// A lease to be extended.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: LockKey,
    pub(crate) nonce: Nonce,
    pub(crate) ttl: Duration,
    pub(crate) terms: Terms,
}

/// The answer to [`Backend::acquire`].
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Held {
        /// `None` in dialects that have none.
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    Queued {
        rank: u64,
        ahead: Ahead,
        holder: Option<Seen>,
        /// How often to ask when no pushes come.
        poll: Option<Duration>,
    },
    Busy {
        ahead: Ahead,
        holder: Option<Seen>,
    },
    /// The lock is free, and there are more dead waiters before this one than the server looks at
    /// in one call: to be asked again at once.
    More,
}

/// Who was seen holding the lock, by a value of whatever dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// `None` for another library's holder.
    pub(crate) nonce: Option<Nonce>,
    /// `None` where it has none, or is not known.
    pub(crate) token: Option<FencingToken>,
    /// Tidied: it goes to errors and logs.
    pub(crate) label: Arc<str>,
    pub(crate) remaining: Option<Duration>,
}

impl Seen {
    /// The holder who wrote that value; `None` for an empty one, which nobody writes.
    #[cfg(feature = "redis")]
    pub(crate) fn by(value: &str, remaining: Option<Duration>) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        let (nonce, token, label) = if let Some(owner) = OwnerValue::parse(value) {
            (Some(owner.nonce), Some(owner.token), owner.label)
        } else if let Some(owner) = PlainOwner::parse(value) {
            (Some(owner.nonce), None, owner.label)
        } else {
            (None, None, value.to_owned())
        };
        Some(Self {
            nonce,
            token,
            label: tidy_label(&label).into(),
            remaining,
        })
    }
}

/// The answer to one [`Renewal`].
#[derive(Clone, Debug)]
pub(crate) enum Renewed {
    Held {
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    NotOurs,
    Failed(LockError),
}

impl Renewed {
    /// What a renewal that compares the owner has said.
    #[cfg(feature = "redis")]
    pub(crate) fn if_ours(was_ours: bool, renewal: &Renewal, sent: Moment) -> Self {
        if !was_ours {
            return Self::NotOurs;
        }
        Self::Held {
            token: None,
            sent,
            remaining: renewal.ttl,
        }
    }

    /// Held for no longer than that.
    #[cfg(feature = "redis")]
    pub(crate) fn for_at_most(mut self, left: Duration) -> Self {
        if let Self::Held { remaining, .. } = &mut self {
            *remaining = left.min(*remaining);
        }
        self
    }

    /// The same error for each.
    #[cfg(feature = "redis")]
    pub(crate) fn all_failed(renewals: &[Renewal], error: &LockError) -> Vec<Self> {
        let failed = |_: &Renewal| Self::Failed(error.clone());
        renewals.iter().map(failed).collect()
    }
}

/// The answer to [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) was_ours: bool,
    pub(crate) server_ms: ServerMs,
    /// There were too many dead waiters for one call: to be sent again.
    pub(crate) more: bool,
}

impl Released {
    /// Of a dialect that has no waiters.
    #[cfg(feature = "redis")]
    pub(crate) fn without_waiters(was_ours: bool, server_ms: ServerMs) -> Self {
        Self {
            was_ours,
            server_ms,
            more: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LockName;
    use crate::options::Renew;

    const TIMEOUT: u64 = 1_000;

    fn attempt() -> Attempt {
        let key = LockKey::new("", &LockName::from("k")).unwrap();
        let terms = Terms {
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
            renew: Renew::Auto,
            max_hold: None,
            margin: Duration::ZERO,
        };
        let deadline = Moment::from_millis(86_400_000);
        Attempt::new(key, terms, "".into(), Some(deadline))
    }

    /// A look at that time, over a line of that name. What it sends besides its entry.
    fn look(attempt: &mut Attempt, ms: u64, channel: &str, mode: Mode) -> usize {
        attempt.stand(Stand {
            mode,
            channel,
            lease: Duration::from_secs(2),
            now: Moment::from_millis(ms),
            server_ms: ServerMs::new(ms),
            command_timeout: Duration::from_millis(TIMEOUT),
        });
        let copy = attempt.sending(1, ServerMs::new(ms + TIMEOUT));
        let earlier = attempt.earlier().len();
        attempt.answered(&copy);
        earlier
    }

    #[test]
    fn an_entry_is_forgotten_once_nothing_can_put_it_back() {
        let mut attempt = attempt();
        look(&mut attempt, 0, "a", Mode::Subscribed);
        attempt.queued(ServerMs::new(5));
        assert_eq!(look(&mut attempt, 100, "b", Mode::Subscribed), 1);
        // The command that carried the first may still be on its way.
        attempt.queued(ServerMs::new(TIMEOUT));
        assert_eq!(attempt.entries().len(), 2);
        assert_eq!(look(&mut attempt, 900, "b", Mode::Subscribed), 1);
        attempt.queued(ServerMs::new(TIMEOUT + 1));
        assert_eq!(attempt.entries().len(), 1);
        assert_eq!(look(&mut attempt, 1_900, "b", Mode::Subscribed), 0);
        // Without an answer nothing is forgotten.
        for number in 0..50 {
            let channel = format!("c{number}");
            let earlier = look(&mut attempt, 2_000 + number, &channel, Mode::Subscribed);
            assert_eq!(earlier as u64, number + 1);
        }
        attempt.queued(ServerMs::new(86_400_000));
        assert_eq!(attempt.entries().len(), 1);
    }

    /// Nobody is told, the server refuses for minutes, and each look makes an entry.
    #[cfg(feature = "redis")]
    #[test]
    fn looks_that_are_refused_leave_no_entries() {
        let mut attempt = attempt();
        let refused_look = |attempt: &mut Attempt, ms: u64| {
            attempt.stand(Stand {
                mode: Mode::Polling,
                channel: "c",
                lease: Duration::from_secs(2),
                now: Moment::from_millis(ms),
                server_ms: ServerMs::new(ms),
                command_timeout: Duration::from_millis(TIMEOUT),
            });
            let copy = attempt.sending(1, ServerMs::new(ms + TIMEOUT));
            attempt.answered(&copy);
            attempt.refused(&copy);
        };
        for number in 0..1_000 {
            refused_look(&mut attempt, number * 500);
        }
        assert_eq!(attempt.entries().len(), 0);
        look(&mut attempt, 600_000, "c", Mode::Polling);
        attempt.queued(ServerMs::new(600_001));
        for number in 0..1_000 {
            refused_look(&mut attempt, 600_500 + number * 500);
        }
        // That one stands there.
        assert_eq!(attempt.entries().len(), 1);
        assert_eq!(look(&mut attempt, 1_200_000, "c", Mode::Polling), 1);
    }

    #[test]
    fn hundreds_of_breaks_make_no_look_longer() {
        let mut attempt = attempt();
        let mut longest = 0;
        for number in 0..2_000 {
            let (ms, channel) = (number * 250, format!("c{}", number % 7));
            longest = longest.max(look(&mut attempt, ms, &channel, Mode::Subscribed));
            attempt.queued(ServerMs::new(ms + 1));
        }
        assert!(longest <= 5, "{longest}");
    }

    #[test]
    fn whoever_polls_writes_its_entry_anew_and_carries_few() {
        let mut attempt = attempt();
        let mut last = None;
        for poll in 0..100 {
            let ms = poll * 500;
            assert!(look(&mut attempt, ms, "c", Mode::Polling) <= 3);
            let gone_at = attempt.entry().map(|entry| entry.gone_at_ms);
            // Four polls and two answers.
            assert_eq!(gone_at, Some(ServerMs::new(ms + 4_000)));
            assert!(gone_at > last);
            last = gone_at;
            attempt.queued(ServerMs::new(ms));
        }
    }

    #[test]
    fn an_entry_that_comes_out_as_one_before_stands_once() {
        let mut attempt = attempt();
        for (ms, channel) in [(0, "a"), (10, "b"), (0, "a"), (0, "a")] {
            look(&mut attempt, ms, channel, Mode::Subscribed);
        }
        let channels: Vec<_> = attempt.entries().into_iter().map(|e| e.channel).collect();
        assert_eq!(channels, ["b", "a"]);
    }
}
