//! The state of one acquisition: what was sent to the server, and what may remain there.

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

/// One acquisition under one owner id.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Acquisition {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) lease_config: LeaseConfig,
    pub(crate) label: Arc<str>,
    /// The end of the wait; `None` for a single attempt.
    pub(crate) waits_until: Option<Moment>,
    /// All entries that may be in the queue, the newest last.
    entries: Vec<SentEntry>,
    expires_at: Option<Moment>,
    /// The latest server time at which an unconfirmed copy may take effect.
    unconfirmed_until_ms: Option<ServerMs>,
    /// A command was sent, and no reply has excluded a held lock or a queue entry.
    open: bool,
    /// The guard releases the lock from now on.
    is_owned_by_guard: bool,
    pub(crate) origin: Option<Origin>,
}

/// An entry that may be in the queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct SentEntry {
    entry: QueueEntry,
    /// The latest server time at which a sent command may add the entry.
    not_after_ms: ServerMs,
}

/// The `not_after_ms` of an entry that no command has carried.
const NEVER_SENT: ServerMs = ServerMs::new(0);

/// The parameters of a waiter's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryParams<'a> {
    pub(crate) mode: Mode,
    pub(crate) channel: &'a str,
    /// The lease that a handover to this entry sets.
    pub(crate) lease: Duration,
    pub(crate) now: Moment,
    /// The latest time that the server's clock can show now.
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

    /// Returns the same acquisition under a new owner id. The old one must not be used again.
    pub(crate) fn with_new_owner_id(&self) -> Self {
        Self::new(
            self.key.clone(),
            self.lease_config,
            Arc::clone(&self.label),
            self.waits_until,
        )
    }

    /// Makes the last entry the one to send, if the acquisition waits. Keeps the current entry, or
    /// adds a new one when the mode or channel has changed or the entry expires soon.
    pub(crate) fn update_entry(&mut self, params: EntryParams<'_>) {
        let Some(deadline) = self.waits_until else {
            return;
        };
        let EntryParams { mode, now, .. } = params;
        if let (Some(last), Some(expires_at)) = (self.entry(), self.expires_at)
            && last.mode == mode
            && last.channel == params.channel
            && !poll_schedule::needs_extension(mode, now, expires_at, deadline)
        {
            return;
        }
        let left = deadline.since(now);
        let entry_lifetime = poll_schedule::entry_lifetime(
            mode,
            left,
            self.lease_config.ttl,
            params.command_timeout,
        );
        self.expires_at = Some(now.plus(entry_lifetime));
        let entry = QueueEntry {
            owner_id: self.owner_id,
            mode,
            kind: String::new(),
            lease_ms: whole_millis(params.lease),
            expires_at_ms: params.server_ms.plus(whole_millis(entry_lifetime)),
            channel: params.channel.to_owned(),
            label: self.label.to_string(),
        };
        // The server's clock may have been set back, so the new entry can equal an earlier one.
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

    /// Returns the entries that may have been in the queue before the last one.
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

    /// Returns the longest lease that a handover to one of the entries sets.
    pub(crate) fn longest_handover(&self) -> Duration {
        let leases = self
            .entries
            .iter()
            .map(|sent_entry| sent_entry.entry.lease_ms);
        Duration::from_millis(leases.max().unwrap_or(0))
    }

    /// Forgets earlier entries: the server has removed them from the queue at this time. An entry
    /// stays known while a command that carries it can still arrive in time.
    pub(crate) fn queued(&mut self, server_ms: ServerMs) {
        let last = self.entries.pop();
        self.entries
            .retain(|sent_entry| server_ms <= sent_entry.not_after_ms);
        self.entries.extend(last);
    }

    /// Records that a copy is about to be sent. The server executes it until `not_after_ms`.
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

    /// Records that the reply to the first command granted the lock: then the server has not queued the
    /// entry, or has removed it. The release does not have to remove it again.
    pub(crate) fn granted_by_first_command(&mut self) {
        if self.unconfirmed_until_ms.is_none() {
            self.entries.clear();
        }
    }

    /// Records the reply to this copy: it can take effect no more.
    pub(crate) fn answered(&mut self, command: &SentCommand) {
        self.unconfirmed_until_ms = command.before;
    }

    /// Records that the server rejected this copy without executing it. An entry that no other copy
    /// carried is not in the queue.
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

    /// Records the server's reply that the owner id has neither the lock nor an entry.
    pub(crate) fn out(&mut self) {
        self.open = self.unconfirmed_until_ms.is_some();
    }

    /// Returns whether the owner id may have the lock or an entry.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Leaves the release to the guard from now on.
    pub(crate) fn hand_to_guard(&mut self) {
        self.is_owned_by_guard = true;
    }

    pub(crate) fn is_owned_by_guard(&self) -> bool {
        self.is_owned_by_guard
    }

    /// Records a confirmed cancel.
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

/// One sent copy of an acquire, with the state before it.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct SentCommand {
    before: Option<ServerMs>,
    /// The `not_after_ms` of its entry before it was sent.
    entry_not_after_ms_before: ServerMs,
}

/// A request to release the lock of an owner id and to remove its entries.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseRequest {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl: Ttl,
    pub(crate) entries: Vec<QueueEntry>,
    pub(crate) origin: Option<Origin>,
    /// Only a reply with a later server time confirms the release.
    pub(crate) unconfirmed_until_ms: Option<ServerMs>,
    /// The key stays locked until this moment.
    pub(crate) min_hold_until: Option<Moment>,
}

impl ReleaseRequest {
    /// Returns whether the outcome leaves nothing to do: no sent copy of the acquire can take
    /// effect any more, and no dead waiters are left in the queue.
    pub(crate) fn is_finished_by(&self, outcome: &ReleaseOutcome) -> bool {
        let is_confirmed = self
            .unconfirmed_until_ms
            .is_none_or(|until_ms| until_ms < outcome.server_ms);
        is_confirmed && !outcome.more
    }

    /// Returns for how long the key stays locked, if the release is sent now.
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

    /// Polls at this time, over this channel. Returns how many earlier entries the poll carries.
    fn poll(acquisition: &mut Acquisition, ms: u64, channel: &str, mode: Mode) -> usize {
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
    fn entry_is_forgotten_once_no_command_can_add_it() {
        let mut acquisition = acquisition();
        poll(&mut acquisition, 0, "a", Mode::Subscribed);
        acquisition.queued(ServerMs::new(5));
        assert_eq!(poll(&mut acquisition, 100, "b", Mode::Subscribed), 1);
        // The command that carried the first entry may still arrive.
        acquisition.queued(ServerMs::new(TIMEOUT));
        assert_eq!(acquisition.entries().len(), 2);
        assert_eq!(poll(&mut acquisition, 900, "b", Mode::Subscribed), 1);
        acquisition.queued(ServerMs::new(TIMEOUT + 1));
        assert_eq!(acquisition.entries().len(), 1);
        assert_eq!(poll(&mut acquisition, 1_900, "b", Mode::Subscribed), 0);
        // No entry is forgotten without a reply.
        for number in 0..50 {
            let channel = format!("c{number}");
            let earlier = poll(&mut acquisition, 2_000 + number, &channel, Mode::Subscribed);
            assert_eq!(earlier as u64, number + 1);
        }
        acquisition.queued(ServerMs::new(86_400_000));
        assert_eq!(acquisition.entries().len(), 1);
    }

    /// There are no notifications, and the server rejects each poll for minutes with a new entry.
    #[cfg(feature = "redis")]
    #[test]
    fn rejected_polls_leave_no_entries() {
        let mut acquisition = acquisition();
        let rejected_poll = |acquisition: &mut Acquisition, ms: u64| {
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
            rejected_poll(&mut acquisition, number * 500);
        }
        assert_eq!(acquisition.entries().len(), 0);
        poll(&mut acquisition, 600_000, "c", Mode::Polling);
        acquisition.queued(ServerMs::new(600_001));
        for number in 0..1_000 {
            rejected_poll(&mut acquisition, 600_500 + number * 500);
        }
        // The server has this entry.
        assert_eq!(acquisition.entries().len(), 1);
        assert_eq!(poll(&mut acquisition, 1_200_000, "c", Mode::Polling), 1);
    }

    #[test]
    fn hundreds_of_reconnects_keep_polls_short() {
        let mut acquisition = acquisition();
        let mut longest = 0;
        for number in 0..2_000 {
            let (ms, channel) = (number * 250, format!("c{}", number % 7));
            longest = longest.max(poll(&mut acquisition, ms, &channel, Mode::Subscribed));
            acquisition.queued(ServerMs::new(ms + 1));
        }
        assert!(longest <= 5, "{longest}");
    }

    #[test]
    fn polling_waiter_renews_its_entry_and_carries_few() {
        let mut acquisition = acquisition();
        let mut last = None;
        for number in 0..100 {
            let ms = number * 500;
            assert!(poll(&mut acquisition, ms, "c", Mode::Polling) <= 3);
            let expires_at = acquisition.entry().map(|entry| entry.expires_at_ms);
            // The lifetime covers four polls and two command timeouts.
            assert_eq!(expires_at, Some(ServerMs::new(ms + 4_000)));
            assert!(expires_at > last);
            last = expires_at;
            acquisition.queued(ServerMs::new(ms));
        }
    }

    #[test]
    fn entry_that_equals_an_earlier_one_is_kept_once() {
        let mut acquisition = acquisition();
        for (ms, channel) in [(0, "a"), (10, "b"), (0, "a"), (0, "a")] {
            poll(&mut acquisition, ms, channel, Mode::Subscribed);
        }
        let channels: Vec<_> = acquisition
            .entries()
            .into_iter()
            .map(|e| e.channel)
            .collect();
        assert_eq!(channels, ["b", "a"]);
    }
}
