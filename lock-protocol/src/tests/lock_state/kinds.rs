//! Readers, writers and permits.

use super::*;
use crate::kind::Group;
use crate::wire::{GroupValue, Member, Ownership};

mod downgrade;
mod permits;

const WRITE: Kind = Kind::Exclusive;
const READ: Kind = Kind::Read;

fn permits(of: u32) -> Kind {
    Kind::Permits { of, weight: 1 }
}

fn heavy(of: u32, weight: u32) -> Kind {
    Kind::Permits { of, weight }
}

fn entry_of(kind: Kind, number: u128) -> QueueEntry {
    QueueEntry {
        kind: EntryKind::Known(kind),
        ..entry(number)
    }
}

fn release_of(kind: Kind, number: u128) -> ReleaseCommand<'static> {
    ReleaseCommand {
        kind,
        ..release_request(number)
    }
}

fn renewal_of(kind: Kind, number: u128) -> RenewCommand<'static> {
    RenewCommand {
        kind,
        ..renewal(owner_id(number), TTL)
    }
}

impl World {
    fn try_kind(&mut self, kind: Kind, number: u128) -> AcquireReply {
        self.kind = kind;
        self.acquire(number, None, &[])
    }

    fn wait_kind(&mut self, kind: Kind, number: u128) -> AcquireReply {
        self.acquire(number, Some(&entry_of(kind, number)), &[])
    }

    fn release_kind(&mut self, kind: Kind, number: u128) -> Verdict {
        self.release_by(&release_of(kind, number))
    }

    fn renew_kind(&mut self, kind: Kind, number: u128) -> RenewReply {
        let now_ms = self.now_ms();
        self.lock_state.renew(&renewal_of(kind, number), now_ms)
    }

    fn downgrade(&mut self, number: u128) -> AcquireReply {
        let not_after_ms = self.now_ms().plus(1_000);
        self.with(|lock_state, env| {
            let command = AcquireCommand {
                owner_id: owner_id(number),
                ttl_ms: TTL,
                floor_us: NOW,
                not_after_ms,
                label: "waiter",
                entry: None,
                lead_us: 0,
                kind: READ,
                purpose: Purpose::Downgrade,
                earlier: &[],
                max_queue: None,
            };
            lock_state.acquire(&command, env)
        })
    }

    /// The owner ids of the living members, each once.
    fn holders(&mut self) -> Vec<OwnerId> {
        let now_ms = self.now_ms();
        self.lock_state.expire(now_ms);
        let members = self.lock_state.holders.iter();
        let members = members.flat_map(|holders| &holders.value);
        let mut owners: Vec<_> = members
            .filter(|(_, end)| now_ms <= **end)
            .map(|(member, _)| member.owner_id)
            .collect();
        owners.sort();
        owners.dedup();
        owners
    }

    fn granted(&self) -> Vec<OwnerId> {
        let grants = self.notifications.iter();
        grants
            .filter_map(|notification| match notification {
                WireNotification::Grant { owner_id, .. } => Some(*owner_id),
                WireNotification::Head { .. } => None,
            })
            .collect()
    }

    fn key_end(&self) -> Option<ServerMs> {
        self.lock_state.key.as_ref().and_then(|key| key.expires_ms)
    }
}

fn is_held(reply: &AcquireReply) -> bool {
    matches!(reply, AcquireReply::Held { .. })
}

fn is_queued(reply: &AcquireReply) -> bool {
    matches!(reply, AcquireReply::Queued { .. })
}

fn remaining(reply: &AcquireReply) -> Option<u64> {
    match reply {
        AcquireReply::Queued { holder, .. } | AcquireReply::Busy { holder } => holder.remaining_ms,
        other => panic!("not busy: {other:?}"),
    }
}

fn owners(numbers: &[u128]) -> Vec<OwnerId> {
    numbers.iter().map(|number| owner_id(*number)).collect()
}

#[test]
fn readers_hold_together() {
    let mut world = World::new();
    let first = token(&world.try_kind(READ, 1));
    assert_eq!(
        token(&world.wait_kind(READ, 2)),
        first,
        "one group, one token"
    );
    assert_eq!(world.holders(), owners(&[1, 2]));
    let busy = world.try_kind(WRITE, 3);
    let AcquireReply::Busy { holder } = &busy else {
        panic!("{busy:?}");
    };
    assert!(holder.value.starts_with("lks:2:r "), "{}", holder.value);
    assert_eq!(world.release_kind(READ, 1), Verdict::Free);
    assert_eq!(
        world.release_kind(READ, 1),
        Verdict::NotOwner,
        "a second copy"
    );
    assert_eq!(world.release_kind(READ, 2), Verdict::Free);
    assert!(world.lock_state.key.is_none() && world.lock_state.holders.is_none());
    assert!(token(&world.try_kind(READ, 4)) > first);
}

#[test]
fn writer_waits_for_the_last_reader() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.try_kind(READ, 2);
    assert!(is_queued(&world.wait_kind(WRITE, 3)));
    assert_eq!(world.release_kind(READ, 1), Verdict::Free);
    assert_eq!(world.owner(), None);
    assert_eq!(world.release_kind(READ, 2), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(3)));
    assert_eq!(world.granted(), owners(&[3]));
}

#[test]
fn no_reader_passes_a_waiting_writer() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    assert!(is_queued(&world.wait_kind(WRITE, 2)));
    assert!(matches!(world.try_kind(READ, 3), AcquireReply::Busy { .. }));
    assert_eq!(rank(&world.wait_kind(READ, 4)), 1);
    assert_eq!(world.holders(), owners(&[1]));
}

#[test]
fn readers_next_to_each_other_come_in_together() {
    let mut world = World::new();
    world.try_kind(WRITE, 1);
    for (kind, number) in [(READ, 2), (READ, 3), (WRITE, 4), (READ, 5)] {
        assert!(is_queued(&world.wait_kind(kind, number)));
    }
    assert_eq!(world.release(1), Verdict::HandedOver);
    assert_eq!(world.holders(), owners(&[2, 3]));
    assert_eq!(world.granted(), owners(&[2, 3]));
    let head = world.notifications.last();
    let expected = WireNotification::Head {
        to: owner_id(4).short(),
        server_us: world.now_us,
        holder_ms: 2_000,
    };
    assert_eq!(head, Some(&expected));
    world.release_kind(READ, 2);
    assert_eq!(world.release_kind(READ, 3), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(4)));
}

#[test]
fn grants_of_one_channel_are_next_to_each_other() {
    let mut world = World::new();
    world.try_kind(WRITE, 1);
    for (number, channel) in [(2, "x"), (3, "y"), (4, "x")] {
        let entry = QueueEntry {
            channel: channel.into(),
            ..entry_of(READ, number)
        };
        world.acquire(number, Some(&entry), &[]);
    }
    world.release(1);
    assert_eq!(world.granted(), owners(&[2, 4, 3]));
}

#[test]
fn one_call_lets_in_a_hundred_and_says_that_there_are_more() {
    let mut world = World::new();
    world.try_kind(WRITE, 1);
    fill_queue(&mut world, 150, |number| entry_of(READ, number));
    let reply = world.with(|lock_state, env| lock_state.release(&release_request(1), env));
    assert_eq!((reply.verdict, reply.more), (Verdict::HandedOver, true));
    assert_eq!(world.holders().len(), 100);
    let head = WireNotification::Head {
        to: owner_id(1_100).short(),
        server_us: world.now_us,
        holder_ms: 0,
    };
    assert_eq!(world.notifications.last(), Some(&head), "it polls at once");
    let reply = world.with(|lock_state, env| lock_state.release(&release_request(1), env));
    assert_eq!((reply.verdict, reply.more), (Verdict::NotOwner, false));
    assert_eq!(world.holders().len(), 150);
}

#[test]
fn dead_writer_keeps_no_reader_out() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.wait_kind(WRITE, 2);
    assert!(is_queued(&world.wait_kind(READ, 3)));
    world.unheard.push("c2".into());
    assert!(
        is_held(&world.try_kind(READ, 4)),
        "the caller comes after those who wait"
    );
    assert_eq!(world.holders(), owners(&[1, 3, 4]));
    assert_eq!(world.granted(), owners(&[3]));
}

#[test]
fn dead_reader_costs_its_own_ttl_though_others_renew() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.pass(20_000);
    world.try_kind(READ, 2);
    let queued = world.wait_kind(WRITE, 3);
    assert_eq!(remaining(&queued), Some(TTL), "the end of the last reader");
    world.pass(10_001);
    assert!(matches!(world.renew_kind(READ, 2), RenewReply::Held { .. }));
    assert_eq!(world.renew_kind(READ, 1), RenewReply::NotOwner);
    assert_eq!(world.holders(), owners(&[2]));
    assert_eq!(world.release_kind(READ, 2), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(3)));
}

#[test]
fn expired_member_is_not_renewed() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.pass(TTL / 2);
    world.try_kind(READ, 2);
    world.pass(TTL / 2 + 1);
    assert_eq!(world.renew_kind(READ, 1), RenewReply::NotOwner);
    assert_eq!(world.release_kind(READ, 1), Verdict::NotOwner);
    assert_eq!(world.holders(), owners(&[2]));
}

#[test]
fn deleted_key_ends_all_leases() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.try_kind(READ, 2);
    world.lock_state.key = None;
    assert_eq!(world.renew_kind(READ, 1), RenewReply::NotOwner);
    assert!(is_held(&world.try_kind(READ, 3)));
    assert_eq!(
        world.holders(),
        owners(&[3]),
        "a new group has no old members"
    );
    assert_eq!(world.renew_kind(READ, 2), RenewReply::NotOwner);
}

#[test]
fn lost_holders_free_the_key() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.lock_state.holders = None;
    assert_eq!(world.renew_kind(READ, 1), RenewReply::NotOwner);
    assert!(is_held(&world.try_kind(WRITE, 2)));
}

#[test]
fn release_in_the_millisecond_of_another_end_keeps_the_group() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.pass(TTL / 2);
    world.try_kind(READ, 2);
    world.pass(TTL / 2);
    // The lease of the first reader ends in this millisecond, so it is alive.
    assert_eq!(world.release_kind(READ, 2), Verdict::Free);
    assert_eq!(world.holders(), owners(&[1]));
    assert_eq!(world.key_end(), Some(world.now_ms().plus(10)));
    assert!(is_queued(&world.wait_kind(WRITE, 3)));
}

#[test]
fn release_lowers_the_end_of_the_key_and_a_join_raises_it() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    world.pass(1_000);
    world.try_kind(READ, 2);
    assert_eq!(world.key_end(), Some(after(TTL + 1_000)));
    world.wait_kind(WRITE, 3);
    world.release_kind(READ, 2);
    assert_eq!(world.key_end(), Some(after(TTL)));
    assert!(
        matches!(world.notifications[..], [WireNotification::Head { holder_ms, .. }] if holder_ms == TTL - 1_000)
    );
    world.pass(1_000);
    world.renew_kind(READ, 1);
    assert_eq!(world.key_end(), Some(after(TTL + 2_000)));
}

#[test]
fn unknown_group_is_not_changed() {
    let mut world = World::new();
    world.lock_state.key = Some(Expiring {
        value: KeyValue::Foreign("lks:z 1 2 a".into()),
        expires_ms: Some(after(5_000)),
    });
    let before = world.lock_state.key.clone();
    for kind in [WRITE, READ, permits(3)] {
        assert_eq!(remaining(&world.try_kind(kind, 1)), Some(5_000));
        assert_eq!(world.release_kind(kind, 1), Verdict::NotOwner);
    }
    assert!(is_queued(&world.wait_kind(READ, 2)));
    assert_eq!(world.lock_state.key, before);
}

#[test]
fn cancelled_writer_lets_the_readers_behind_it_in() {
    let mut world = World::new();
    world.try_kind(READ, 1);
    let writer = [entry_of(WRITE, 2)];
    world.acquire(2, Some(&writer[0]), &[]);
    world.wait_kind(READ, 3);
    let cancel = ReleaseCommand {
        entries: &writer,
        ..release_request(2)
    };
    assert_eq!(world.release_by(&cancel), Verdict::NotOwner);
    assert_eq!(world.holders(), owners(&[1, 3]));
    assert_eq!(world.granted(), owners(&[3]));
}

#[test]
fn revoked_group_stays_locked_without_holders() {
    let mut world = World::new();
    let held = token(&world.try_kind(READ, 1));
    world.try_kind(READ, 2);
    let command = |mode| ForceCommand {
        mode,
        floor_us: NOW,
        lead_us: 0,
        label: "revoked by ops",
        token: Some(held),
        seen: None,
        longest_ms: u64::MAX,
    };
    let reply =
        world.with(|lock_state, env| lock_state.force_release(&command(ForceMode::Revoke), env));
    assert_eq!(reply.verdict, ForceVerdict::Revoked { locked_ms: TTL });
    assert_eq!(world.renew_kind(READ, 1), RenewReply::NotOwner);
    assert_eq!(world.release_kind(READ, 2), Verdict::NotOwner);
    assert!(matches!(world.try_kind(READ, 3), AcquireReply::Busy { .. }));
    world.wait_kind(READ, 4);
    let reply =
        world.with(|lock_state, env| lock_state.force_release(&command(ForceMode::Now), env));
    assert_eq!(reply.verdict, ForceVerdict::Freed(ForceGrant::Waiter));
    assert_eq!(world.holders(), owners(&[4]));
}
