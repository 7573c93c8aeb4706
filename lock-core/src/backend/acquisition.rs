//! One acquisition on its way to the server, and what it may have left there.

use std::sync::Arc;
use std::time::Duration;

use super::{Origin, ReleaseOutcome};
use crate::protocol::clock::{Moment, ServerMs};
use crate::protocol::key::LockKey;
use crate::protocol::lease::LeaseConfig;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::poll_schedule;
use crate::protocol::ttl::{Ttl, whole_millis};
use crate::protocol::wire::{Mode, QueueEntry};

/// One acquisition on its way, under one owner id.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Acquisition {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) lease_config: LeaseConfig,
    pub(crate) label: Arc<str>,
    /// The end of the wait; absent to ask once.
    pub(crate) waits_until: Option<Moment>,
    /// All entries that may stand in the queue, the youngest last.
    entries: Vec<SentEntry>,
    expires_at: Option<Moment>,
    /// The latest server time at which a copy without an answer may take effect.
    unconfirmed_until_ms: Option<ServerMs>,
    /// Something was sent, and no answer has said that nothing is held or queued.
    open: bool,
    /// A guard has it now.
    is_owned_by_guard: bool,
    pub(crate) origin: Option<Origin>,
}

/// An entry that may stand in the queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct SentEntry {
    entry: QueueEntry,
    /// The latest server time at which a command that was sent with it may put it there.
    not_after_ms: ServerMs,
}

/// As the latest time of a command: there was none.
const NEVER_SENT: ServerMs = ServerMs::new(0);

/// What a waiter's entry is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryParams<'a> {
    pub(crate) mode: Mode,
    pub(crate) channel: &'a str,
    /// What a hand-over to it gives.
    pub(crate) lease: Duration,
    pub(crate) now: Moment,
    /// The latest that the server's clock can show now.
    pub(crate) server_ms: ServerMs,
    pub(crate) command_timeout: Duration,
}

impl Acquisition {
    pub(crate) fn new(
        key: LockKey,
        lease_config: LeaseConfig,
        label: Arc<str>,
        waits_until: Option<Moment>,
    ) -> Self {
        Self {
            key,
            owner_id: OwnerId::random(),
            lease_config,
            label,
            waits_until,
            entries: Vec::new(),
            expires_at: None,
            unconfirmed_until_ms: None,
            open: false,
            is_owned_by_guard: false,
            origin: None,
        }
    }

    /// Goes on under a new owner id: the old one may never be seen again.
    pub(crate) fn with_new_owner_id(&self) -> Self {
        Self::new(
            self.key.clone(),
            self.lease_config,
            Arc::clone(&self.label),
            self.waits_until,
        )
    }

    /// Makes the entry to be sent the last one, when the attempt waits: the one that stands, or
    /// a new one when how it is told has changed or its time is nearly over.
    pub(crate) fn update_entry(&mut self, update_entry: EntryParams<'_>) {
        let Some(deadline) = self.waits_until else {
            return;
        };
        let EntryParams { mode, now, .. } = update_entry;
        if let (Some(last), Some(expires_at)) = (self.entry(), self.expires_at)
            && last.mode == mode
            && last.channel == update_entry.channel
            && !poll_schedule::needs_extension(mode, now, expires_at, deadline)
        {
            return;
        }
        let left = deadline.since(now);
        let entry_lifetime = poll_schedule::entry_lifetime(
            mode,
            left,
            self.lease_config.ttl,
            update_entry.command_timeout,
        );
        self.expires_at = Some(now.plus(entry_lifetime));
        let entry = QueueEntry {
            owner_id: self.owner_id,
            mode,
            kind: String::new(),
            lease_ms: whole_millis(update_entry.lease),
            expires_at_ms: update_entry.server_ms.plus(whole_millis(entry_lifetime)),
            channel: update_entry.channel.to_owned(),
            label: self.label.to_string(),
        };
        // The server's clock may have been set back, and an entry come out as one before.
        let same = self.entries.iter().position(|known| known.entry == entry);
        let sent_entry = same.map(|at| self.entries.remove(at));
        self.entries.push(sent_entry.unwrap_or(SentEntry {
            entry,
            not_after_ms: NEVER_SENT,
        }));
    }

    pub(crate) fn entry(&self) -> Option<&QueueEntry> {
        self.entries.last().map(|sent_entry| &sent_entry.entry)
    }

    /// The entries that stood in the queue before the last one.
    pub(crate) fn earlier(&self) -> Vec<QueueEntry> {
        let earlier = self.entries.split_last().map_or(&[][..], |(_, all)| all);
        earlier
            .iter()
            .map(|sent_entry| sent_entry.entry.clone())
            .collect()
    }

    pub(crate) fn entries(&self) -> Vec<QueueEntry> {
        let entries = self.entries.iter();
        entries.map(|sent_entry| sent_entry.entry.clone()).collect()
    }

    /// The longest lease that a hand-over to one of the entries gives.
    pub(crate) fn longest_handover(&self) -> Duration {
        let leases = self
            .entries
            .iter()
            .map(|sent_entry| sent_entry.entry.lease_ms);
        Duration::from_millis(leases.max().unwrap_or(0))
    }

    /// The server looked at the queue at that time, and took out all earlier entries. Those are
    /// forgotten that nothing can put back any more: every command that could is late by now.
    pub(crate) fn queued(&mut self, server_ms: ServerMs) {
        let last = self.entries.pop();
        self.entries
            .retain(|sent_entry| server_ms <= sent_entry.not_after_ms);
        self.entries.extend(last);
    }

    /// A copy is about to be sent that the server carries out until `not_after_ms`.
    pub(crate) fn sending(&mut self, origin: Origin, not_after_ms: ServerMs) -> SentCommand {
        let before = self.unconfirmed_until_ms;
        self.unconfirmed_until_ms = Some(before.map_or(not_after_ms, |b| b.max(not_after_ms)));
        let mut entry_not_after_ms_before = NEVER_SENT;
        if let Some(last) = self.entries.last_mut() {
            entry_not_after_ms_before = last.not_after_ms;
            last.not_after_ms = last.not_after_ms.max(not_after_ms);
        }
        self.open = true;
        self.origin = Some(origin);
        SentCommand {
            before,
            entry_not_after_ms_before,
        }
    }

    /// That copy was answered: it cannot take effect any more.
    pub(crate) fn answered(&mut self, command: &SentCommand) {
        self.unconfirmed_until_ms = command.before;
    }

    /// The server did not carry that copy out at all, and said so: an entry that went out with no
    /// other one stands nowhere.
    #[cfg(feature = "redis")]
    pub(crate) fn refused(&mut self, command: &SentCommand) {
        if let Some(last) = self.entries.last_mut() {
            last.not_after_ms = command.entry_not_after_ms_before;
        }
        if self
            .entries
            .pop_if(|last| last.not_after_ms == NEVER_SENT)
            .is_some()
        {
            self.expires_at = None;
        }
    }

    /// The server said that the owner id neither holds nor waits.
    pub(crate) fn out(&mut self) {
        self.open = self.unconfirmed_until_ms.is_some();
    }

    /// Whether something may be held or queued under this owner id.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// A guard releases it from now on.
    pub(crate) fn hand_to_guard(&mut self) {
        self.is_owned_by_guard = true;
    }

    pub(crate) fn is_owned_by_guard(&self) -> bool {
        self.is_owned_by_guard
    }

    /// A cancel was confirmed.
    pub(crate) fn cancel_confirmed(&mut self, released: &ReleaseOutcome) {
        let is_final = self
            .unconfirmed_until_ms
            .is_none_or(|until| until < released.server_ms);
        if is_final && !released.more {
            self.unconfirmed_until_ms = None;
            self.open = false;
        }
    }

    pub(crate) fn unconfirmed_until_ms(&self) -> Option<ServerMs> {
        self.unconfirmed_until_ms
    }
}

/// One sent command of an attempt.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct SentCommand {
    before: Option<ServerMs>,
    /// The same of its entry alone.
    entry_not_after_ms_before: ServerMs,
}

/// A owner id that has to go, with all that it has or wants.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseRequest {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl: Ttl,
    pub(crate) entries: Vec<QueueEntry>,
    pub(crate) origin: Option<Origin>,
    /// Confirmed only by an answer from a later server time.
    pub(crate) unconfirmed_until_ms: Option<ServerMs>,
    /// Until when a lock that is held stays locked all the same.
    pub(crate) min_hold_until: Option<Moment>,
}

impl ReleaseRequest {
    /// Whether that outcome leaves nothing to be done: no sent copy of the acquire can take effect
    /// any more, and no dead waiters are left that one call did not remove.
    pub(crate) fn is_finished_by(&self, outcome: &ReleaseOutcome) -> bool {
        let is_confirmed = self
            .unconfirmed_until_ms
            .is_none_or(|until_ms| until_ms < outcome.server_ms);
        is_confirmed && !outcome.more
    }

    /// For how long the lock stays locked, if the release is sent now.
    pub(crate) fn min_hold_ms(&self, now: Moment) -> u64 {
        self.min_hold_until
            .map_or(0, |until| whole_millis(until.since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::key::LockName;
    use crate::protocol::renew::Renew;

    const TIMEOUT: u64 = 1_000;

    fn acquisition() -> Acquisition {
        let key = LockKey::new("", &LockName::from("k")).unwrap();
        let lease_config = LeaseConfig {
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
            renew: Renew::Auto,
            max_hold: None,
            margin: Duration::ZERO,
        };
        let deadline = Moment::from_millis(86_400_000);
        Acquisition::new(key, lease_config, "".into(), Some(deadline))
    }

    /// A look at that time, over a line of that name. What it sends besides its entry.
    fn look(acquisition: &mut Acquisition, ms: u64, channel: &str, mode: Mode) -> usize {
        acquisition.update_entry(EntryParams {
            mode,
            channel,
            lease: Duration::from_secs(2),
            now: Moment::from_millis(ms),
            server_ms: ServerMs::new(ms),
            command_timeout: Duration::from_millis(TIMEOUT),
        });
        let command = acquisition.sending(1, ServerMs::new(ms + TIMEOUT));
        let earlier = acquisition.earlier().len();
        acquisition.answered(&command);
        earlier
    }

    #[test]
    fn an_entry_is_forgotten_once_nothing_can_put_it_back() {
        let mut acquisition = acquisition();
        look(&mut acquisition, 0, "a", Mode::Subscribed);
        acquisition.queued(ServerMs::new(5));
        assert_eq!(look(&mut acquisition, 100, "b", Mode::Subscribed), 1);
        // The command that carried the first may still be on its way.
        acquisition.queued(ServerMs::new(TIMEOUT));
        assert_eq!(acquisition.entries().len(), 2);
        assert_eq!(look(&mut acquisition, 900, "b", Mode::Subscribed), 1);
        acquisition.queued(ServerMs::new(TIMEOUT + 1));
        assert_eq!(acquisition.entries().len(), 1);
        assert_eq!(look(&mut acquisition, 1_900, "b", Mode::Subscribed), 0);
        // Without an answer nothing is forgotten.
        for number in 0..50 {
            let channel = format!("c{number}");
            let earlier = look(&mut acquisition, 2_000 + number, &channel, Mode::Subscribed);
            assert_eq!(earlier as u64, number + 1);
        }
        acquisition.queued(ServerMs::new(86_400_000));
        assert_eq!(acquisition.entries().len(), 1);
    }

    /// Nobody is told, the server refuses for minutes, and each look makes an entry.
    #[cfg(feature = "redis")]
    #[test]
    fn looks_that_are_refused_leave_no_entries() {
        let mut acquisition = acquisition();
        let refused_look = |acquisition: &mut Acquisition, ms: u64| {
            acquisition.update_entry(EntryParams {
                mode: Mode::Polling,
                channel: "c",
                lease: Duration::from_secs(2),
                now: Moment::from_millis(ms),
                server_ms: ServerMs::new(ms),
                command_timeout: Duration::from_millis(TIMEOUT),
            });
            let command = acquisition.sending(1, ServerMs::new(ms + TIMEOUT));
            acquisition.answered(&command);
            acquisition.refused(&command);
        };
        for number in 0..1_000 {
            refused_look(&mut acquisition, number * 500);
        }
        assert_eq!(acquisition.entries().len(), 0);
        look(&mut acquisition, 600_000, "c", Mode::Polling);
        acquisition.queued(ServerMs::new(600_001));
        for number in 0..1_000 {
            refused_look(&mut acquisition, 600_500 + number * 500);
        }
        // That one stands there.
        assert_eq!(acquisition.entries().len(), 1);
        assert_eq!(look(&mut acquisition, 1_200_000, "c", Mode::Polling), 1);
    }

    #[test]
    fn hundreds_of_breaks_make_no_look_longer() {
        let mut acquisition = acquisition();
        let mut longest = 0;
        for number in 0..2_000 {
            let (ms, channel) = (number * 250, format!("c{}", number % 7));
            longest = longest.max(look(&mut acquisition, ms, &channel, Mode::Subscribed));
            acquisition.queued(ServerMs::new(ms + 1));
        }
        assert!(longest <= 5, "{longest}");
    }

    #[test]
    fn whoever_polls_writes_its_entry_anew_and_carries_few() {
        let mut acquisition = acquisition();
        let mut last = None;
        for poll in 0..100 {
            let ms = poll * 500;
            assert!(look(&mut acquisition, ms, "c", Mode::Polling) <= 3);
            let expires_at = acquisition.entry().map(|entry| entry.expires_at_ms);
            // Four polls and two answers.
            assert_eq!(expires_at, Some(ServerMs::new(ms + 4_000)));
            assert!(expires_at > last);
            last = expires_at;
            acquisition.queued(ServerMs::new(ms));
        }
    }

    #[test]
    fn an_entry_that_comes_out_as_one_before_stands_once() {
        let mut acquisition = acquisition();
        for (ms, channel) in [(0, "a"), (10, "b"), (0, "a"), (0, "a")] {
            look(&mut acquisition, ms, channel, Mode::Subscribed);
        }
        let channels: Vec<_> = acquisition
            .entries()
            .into_iter()
            .map(|e| e.channel)
            .collect();
        assert_eq!(channels, ["b", "a"]);
    }
}
