//! Each rule of the table by its name.

use std::collections::BTreeMap;

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lock_state::*;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{Mode, QueueEntry, WireNotification};

const TTL: u64 = 30_000;
const NOW: u64 = 1_000_000_000;

/// They differ in their first digits, by which the head of a queue is told.
fn owner_id(number: u128) -> OwnerId {
    OwnerId::from_number(number << 96)
}

/// So many milliseconds after the beginning.
fn after(ms: u64) -> ServerMs {
    ServerMs::from_micros(NOW).plus(ms)
}

fn entry(number: u128) -> QueueEntry {
    QueueEntry {
        owner_id: owner_id(number),
        mode: Mode::Subscribed,
        lease_ms: 2_000,
        kind: String::new(),
        expires_at_ms: after(60_000),
        channel: format!("c{number}"),
        label: "waiter".into(),
    }
}

/// A plain release, of one who waits nowhere.
fn release_request(number: u128) -> ReleaseCommand<'static> {
    ReleaseCommand {
        owner_id: owner_id(number),
        floor_us: NOW,
        grace_ms: 0,
        min_hold_ms: 0,
        lead_us: 0,
        entries: &[],
    }
}

/// A table with a clock, and channels on which nobody listens.
struct World {
    lock_state: LockState,
    now_us: u64,
    deaf: Vec<String>,
    notifications: Vec<WireNotification>,
}

impl World {
    fn new() -> Self {
        Self {
            lock_state: LockState::default(),
            now_us: NOW,
            deaf: Vec::new(),
            notifications: Vec::new(),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_us += ms * 1000;
    }

    fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }

    fn with<T>(
        &mut self,
        run: impl FnOnce(&mut LockState, &Env<'_>) -> (T, Vec<WireNotification>),
    ) -> T {
        let deaf = self.deaf.clone();
        let at = Env {
            now_us: self.now_us,
            has_subscriber: &|channel| !deaf.iter().any(|known| known == channel),
        };
        let (answer, notifications) = run(&mut self.lock_state, &at);
        self.notifications = notifications;
        answer
    }

    fn ask(
        &mut self,
        number: u128,
        entry: Option<&QueueEntry>,
        earlier: &[QueueEntry],
    ) -> AcquireReply {
        let not_after_ms = self.now_ms().plus(1_000);
        self.with(|lock_state, at| {
            let ask = AcquireCommand {
                owner_id: owner_id(number),
                ttl_ms: TTL,
                floor_us: NOW,
                not_after_ms,
                label: "caller",
                entry,
                lead_us: 0,
                earlier,
            };
            lock_state.acquire(&ask, at)
        })
    }

    fn try_once(&mut self, number: u128) -> AcquireReply {
        self.ask(number, None, &[])
    }

    fn wait(&mut self, number: u128) -> AcquireReply {
        self.ask(number, Some(&entry(number)), &[])
    }

    fn release(&mut self, number: u128) -> Verdict {
        self.release_by(&release_request(number))
    }

    fn release_by(&mut self, call: &ReleaseCommand<'_>) -> Verdict {
        let released = self.with(|lock_state, at| lock_state.release(call, at));
        assert!(!released.more, "{released:?}");
        released.verdict
    }

    fn owner(&mut self) -> Option<OwnerId> {
        self.lock_state.expire(self.now_ms());
        match &self.lock_state.key {
            Some(Expiring {
                value: KeyValue::Native(owner),
                ..
            }) => Some(owner.owner_id),
            _ => None,
        }
    }

    fn foreign(&mut self, expires_ms: Option<ServerMs>) {
        self.lock_state.key = Some(Expiring {
            value: KeyValue::Foreign("theirs".into()),
            expires_ms,
        });
    }
}

fn token(answer: &AcquireReply) -> FencingToken {
    match answer {
        AcquireReply::Held { token, .. } => *token,
        other => panic!("not held: {other:?}"),
    }
}

fn rank(answer: &AcquireReply) -> u64 {
    match answer {
        AcquireReply::Queued { rank, .. } => *rank,
        other => panic!("not queued: {other:?}"),
    }
}

#[test]
fn a_free_lock_is_held_at_once() {
    let mut world = World::new();
    let answer = world.try_once(1);
    assert!(matches!(
        answer,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
    assert_eq!(world.owner(), Some(owner_id(1)));
    assert!(world.notifications.is_empty());
}

#[test]
fn one_who_does_not_wait_is_told_who_holds_it() {
    let mut world = World::new();
    world.try_once(1);
    world.pass(10_000);
    let AcquireReply::Busy { holder } = world.try_once(2) else {
        panic!("not busy");
    };
    assert_eq!(holder.remaining_ms, Some(20_000));
    assert!(holder.value.ends_with(" caller"));
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn asking_again_is_having_asked_once() {
    let mut world = World::new();
    let first = token(&world.try_once(1));
    world.pass(10_000);
    let again = world.try_once(1);
    assert_eq!(token(&again), first);
    // The shorter expiry was raised to the ttl.
    assert!(matches!(
        again,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn asking_again_never_shortens() {
    let mut world = World::new();
    world.try_once(1);
    let now_ms = world.now_ms();
    world.lock_state.renew(owner_id(1), 60_000, now_ms);
    assert!(matches!(
        world.try_once(1),
        AcquireReply::Held {
            remaining_ms: 60_000,
            ..
        }
    ));
}

#[test]
fn a_copy_after_not_after_writes_nothing() {
    let mut world = World::new();
    let at = Env {
        now_us: NOW + 1_000,
        has_subscriber: &|_| true,
    };
    let ask = AcquireCommand {
        owner_id: owner_id(1),
        ttl_ms: TTL,
        floor_us: NOW,
        not_after_ms: after(0),
        label: "",
        entry: None,
        lead_us: 0,
        earlier: &[],
    };
    assert_eq!(world.lock_state.acquire(&ask, &at).0, AcquireReply::Late);
    assert!(world.lock_state.is_empty());
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let mut world = World::new();
    world.try_once(1);
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(rank(&world.wait(3)), 1);
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(world.release(1), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(2)));
    assert_eq!(world.release(2), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(3)));
    assert_eq!(world.release(3), Verdict::Free);
    assert_eq!(world.owner(), None);
}

#[test]
fn a_newcomer_queues_behind_those_who_wait_also_when_the_lease_has_ended() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.pass(TTL + 1);
    assert!(matches!(world.try_once(9), AcquireReply::Busy { .. }));
    assert_eq!(world.owner(), Some(owner_id(2)));

    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.pass(TTL + 1);
    assert_eq!(rank(&world.wait(3)), 0);
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn the_first_takes_an_ended_lease_by_looking() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.pass(TTL);
    // A key still lives at its last millisecond.
    assert_eq!(rank(&world.wait(2)), 0);
    world.pass(1);
    let answer = world.wait(2);
    assert!(matches!(
        answer,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
    // Nothing is pushed to the caller; whoever is first now is told when to look.
    assert_eq!(
        world.notifications,
        [WireNotification::Head {
            to: owner_id(3).short(),
            server_us: world.now_us,
            holder_ms: TTL
        }]
    );
}

#[test]
fn a_hand_over_gives_a_claim_and_tells_the_next_when_it_ends() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.pass(5);
    world.release(1);
    let [
        WireNotification::Grant {
            owner_id: to,
            lease_ms: 2_000,
            server_us,
            ..
        },
        WireNotification::Head {
            to: head,
            holder_ms: 2_000,
            ..
        },
    ] = world.notifications[..]
    else {
        panic!("{:?}", world.notifications);
    };
    assert_eq!(
        (to, head, server_us),
        (owner_id(2), owner_id(3).short(), world.now_us)
    );
    world.pass(2_001);
    assert_eq!(world.owner(), None);
}

#[test]
fn a_waiter_whose_channel_nobody_hears_is_skipped() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.deaf.push("c2".into());
    world.release(1);
    assert_eq!(world.owner(), Some(owner_id(3)));
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn a_waiter_whose_wait_is_over_is_skipped() {
    let mut world = World::new();
    world.try_once(1);
    let short = QueueEntry {
        expires_at_ms: after(10),
        ..entry(2)
    };
    world.ask(2, Some(&short), &[]);
    world.wait(3);
    world.pass(11);
    world.release(1);
    assert_eq!(world.owner(), Some(owner_id(3)));
}

#[test]
fn one_who_polls_is_never_skipped_and_nothing_is_pushed_to_it() {
    let mut world = World::new();
    world.try_once(1);
    let polling = QueueEntry {
        mode: Mode::Polling,
        lease_ms: 1_500,
        ..entry(2)
    };
    world.deaf.push("c2".into());
    world.ask(2, Some(&polling), &[]);
    world.release(1);
    assert_eq!(world.owner(), Some(owner_id(2)));
    assert!(world.notifications.is_empty());
    let answer = world.ask(2, Some(&polling), &[]);
    assert!(matches!(
        answer,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn an_extended_entry_keeps_its_place() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    let extended = QueueEntry {
        expires_at_ms: after(600_000),
        ..entry(2)
    };
    assert_eq!(rank(&world.ask(2, Some(&extended), &[entry(2)])), 0);
    assert_eq!(world.lock_state.queue.as_ref().unwrap().value.len(), 2);
}

#[test]
fn cancelling_the_first_tells_the_second_when_to_look() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.pass(10_000);
    assert_eq!(
        world.release_by(&ReleaseCommand {
            entries: &[entry(2)],
            ..release_request(2)
        }),
        Verdict::NotOwner
    );
    assert_eq!(
        world.notifications,
        [WireNotification::Head {
            to: owner_id(3).short(),
            server_us: world.now_us,
            holder_ms: 20_000
        }]
    );
}

#[test]
fn cancelling_a_grant_that_crossed_it_hands_on() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.release(1);
    assert_eq!(
        world.release_by(&ReleaseCommand {
            entries: &[entry(2)],
            ..release_request(2)
        }),
        Verdict::HandedOver
    );
    assert_eq!(world.owner(), Some(owner_id(3)));
}

#[test]
fn nobody_releases_or_renews_what_is_another_s() {
    let mut world = World::new();
    world.try_once(1);
    assert_eq!(world.release(2), Verdict::NotOwner);
    assert_eq!(
        world.lock_state.renew(owner_id(2), TTL, after(0)),
        RenewReply::NotOwner
    );
    assert_eq!(world.owner(), Some(owner_id(1)));
}

#[test]
fn a_second_release_touches_nobody() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.release(1);
    assert_eq!(world.release(1), Verdict::NotOwner);
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn a_renewal_extends_and_never_makes_a_key() {
    let mut world = World::new();
    world.try_once(1);
    world.pass(TTL - 1);
    let now_ms = world.now_ms();
    assert!(matches!(
        world.lock_state.renew(owner_id(1), TTL, now_ms),
        RenewReply::Held { .. }
    ));
    world.pass(TTL);
    assert_eq!(world.owner(), Some(owner_id(1)));
    world.pass(1);
    let now_ms = world.now_ms();
    assert_eq!(
        world.lock_state.renew(owner_id(1), TTL, now_ms),
        RenewReply::NotOwner
    );
    assert!(world.lock_state.key.is_none());
}

#[test]
fn tokens_grow_also_when_the_counter_was_lost_or_rolled_back() {
    let mut world = World::new();
    let mut last = FencingToken::new(0);
    let counters = [None, Some(5), None, Some(NOW + 3)];
    for (turn, lost) in (1..).zip(counters) {
        world.pass(1);
        let next = token(&world.try_once(turn));
        assert!(next > last, "{next} after {last}");
        last = next;
        world.release(turn);
        world.lock_state.counter = lost.map(|value| Expiring {
            value,
            expires_ms: None,
        });
    }
}

#[test]
fn tokens_count_by_one_while_the_counter_lives() {
    let mut world = World::new();
    let first = token(&world.try_once(1));
    world.release(1);
    let second = token(&world.try_once(2));
    assert_eq!(second.as_u64(), first.as_u64() + 1);
}

#[test]
fn a_foreign_holder_is_respected_and_its_end_is_the_first_waiter_s_turn() {
    let mut world = World::new();
    world.foreign(Some(after(500)));
    let AcquireReply::Queued { holder, .. } = world.wait(1) else {
        panic!("not queued");
    };
    assert_eq!(
        (holder.value.as_str(), holder.remaining_ms),
        ("theirs", Some(500))
    );
    world.pass(501);
    assert!(matches!(world.wait(1), AcquireReply::Held { .. }));
}

#[test]
fn a_foreign_key_is_never_released_or_renewed() {
    let mut world = World::new();
    world.foreign(None);
    assert_eq!(world.release(1), Verdict::NotOwner);
    assert_eq!(
        world.lock_state.renew(owner_id(1), TTL, after(0)),
        RenewReply::NotOwner
    );
    assert!(world.lock_state.key.is_some());
}

#[test]
fn behind_a_foreign_holder_a_new_first_begins_to_ask_at_once() {
    let mut world = World::new();
    world.foreign(Some(after(500)));
    world.wait(1);
    world.wait(2);
    world.release_by(&ReleaseCommand {
        entries: &[entry(1)],
        ..release_request(1)
    });
    assert!(matches!(
        world.notifications[..],
        [WireNotification::Head { holder_ms: 0, .. }]
    ));
}

#[test]
fn a_key_of_another_type_is_named_and_left_alone() {
    let mut world = World::new();
    world.lock_state.key = Some(Expiring {
        value: KeyValue::OtherType("list"),
        expires_ms: None,
    });
    let found = "list".to_owned();
    assert_eq!(world.wait(1), AcquireReply::Foreign { found });
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn during_grace_only_one_who_finds_no_queue_takes_the_key() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    assert_eq!(
        world.release_by(&ReleaseCommand {
            grace_ms: 20,
            ..release_request(1)
        }),
        Verdict::Free
    );
    assert!(matches!(
        world.notifications[..],
        [WireNotification::Head { holder_ms: 20, .. }]
    ));
    assert!(matches!(world.try_once(3), AcquireReply::Busy { .. }));
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(world.owner(), None);
    world.pass(21);
    assert!(matches!(world.wait(2), AcquireReply::Held { .. }));
}

#[test]
fn without_waiters_there_is_no_grace() {
    let mut world = World::new();
    world.try_once(1);
    world.release_by(&ReleaseCommand {
        grace_ms: 20,
        ..release_request(1)
    });
    assert!(world.lock_state.grace.is_none());
    assert!(matches!(world.try_once(2), AcquireReply::Held { .. }));
}

#[test]
fn one_who_only_asks_takes_the_key_when_all_who_waited_are_gone() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.deaf.push("c2".into());
    world.pass(TTL + 1);
    assert!(matches!(world.try_once(3), AcquireReply::Held { .. }));
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn the_queue_ends_ten_minutes_after_the_lock_and_the_last_look() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.pass(TTL + 600_000);
    world.lock_state.expire(world.now_ms());
    assert!(world.lock_state.queue.is_some());
    world.pass(1);
    world.lock_state.expire(world.now_ms());
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn a_lock_that_is_kept_is_nobodys_until_its_time() {
    let mut world = World::new();
    world.try_once(1);
    assert!(matches!(world.wait(2), AcquireReply::Queued { .. }));
    assert_eq!(
        world.release_by(&ReleaseCommand {
            min_hold_ms: 5_000,
            ..release_request(1)
        }),
        Verdict::Free
    );
    assert_eq!(world.owner(), Some(OwnerId::nil()));
    // Whoever is first is told when to look, and no other client is let in before.
    assert!(matches!(
        world.notifications.as_slice(),
        [WireNotification::Head {
            holder_ms: 5_000,
            ..
        }]
    ));
    assert!(world.lock_state.grace.is_none());
    // What the release overtook cannot lengthen it.
    let now_ms = world.now_ms();
    let late = world.lock_state.renew(owner_id(1), TTL, now_ms);
    assert_eq!(late, RenewReply::NotOwner);
    assert!(matches!(world.try_once(1), AcquireReply::Busy { .. }));
    assert_eq!(
        world.release_by(&ReleaseCommand {
            min_hold_ms: 9_000,
            ..release_request(1)
        }),
        Verdict::NotOwner
    );
    world.pass(5_001);
    assert!(matches!(world.wait(2), AcquireReply::Held { .. }));
}

/// Puts so many others into the queue, before whoever comes next.
fn crowd(world: &mut World, count: u128, one: impl Fn(u128) -> QueueEntry) {
    let queue = world.lock_state.queue.get_or_insert_with(|| Expiring {
        value: BTreeMap::new(),
        expires_ms: None,
    });
    let last = queue.value.last_key_value().map_or(0, |(score, _)| *score);
    for (score, number) in (last + 1..).zip(1_000..1_000 + count) {
        queue.value.insert(score, one(number));
    }
}

fn deaf(number: u128) -> QueueEntry {
    QueueEntry {
        channel: "deaf".into(),
        ..entry(number)
    }
}

fn expired(number: u128) -> QueueEntry {
    QueueEntry {
        expires_at_ms: ServerMs::new(0),
        ..entry(number)
    }
}

fn queued(world: &World) -> usize {
    world
        .lock_state
        .queue
        .as_ref()
        .map_or(0, |queue| queue.value.len())
}

#[test]
fn a_look_while_the_key_is_held_removes_those_whose_time_has_passed_and_nobody_else() {
    let mut world = World::new();
    world.deaf.push("deaf".into());
    world.try_once(1);
    crowd(&mut world, 60, |number| {
        if number % 2 == 0 {
            expired(number)
        } else {
            deaf(number)
        }
    });
    assert_eq!(rank(&world.wait(2)), 60, "to come is not to look");
    assert_eq!(queued(&world), 61);
    assert_eq!(rank(&world.wait(2)), 30);
    assert_eq!(queued(&world), 31, "their line may be broken just now");
}

#[test]
fn a_look_that_removes_the_head_tells_the_next() {
    let mut world = World::new();
    world.try_once(1);
    crowd(&mut world, 1, expired);
    world.wait(2);
    world.wait(3);
    world.notifications.clear();
    assert_eq!(rank(&world.wait(3)), 1);
    let head = WireNotification::Head {
        to: owner_id(2).short(),
        server_us: world.now_us,
        holder_ms: TTL,
    };
    assert_eq!(world.notifications, [head]);
}

#[test]
fn one_call_looks_at_a_hundred_and_says_that_there_are_more() {
    let mut world = World::new();
    world.deaf.push("deaf".into());
    crowd(&mut world, 250, deaf);
    assert_eq!(world.wait(2), AcquireReply::More);
    assert_eq!(queued(&world), 151);
    assert_eq!(world.wait(2), AcquireReply::More);
    token(&world.wait(2));
    assert_eq!(queued(&world), 0);

    // Exactly a hundred are no more.
    let mut world = World::new();
    crowd(&mut world, 100, expired);
    token(&world.try_once(2));
    let mut world = World::new();
    crowd(&mut world, 101, expired);
    assert_eq!(world.try_once(2), AcquireReply::More);
    token(&world.try_once(2));
}

#[test]
fn a_release_says_that_there_are_more_and_goes_on_when_it_is_repeated() {
    let mut world = World::new();
    world.deaf.push("deaf".into());
    world.try_once(1);
    crowd(&mut world, 250, deaf);
    world.wait(2);
    let mut release = || {
        let answer = world.with(|lock_state, at| lock_state.release(&release_request(1), at));
        (answer.verdict, answer.more)
    };
    assert_eq!(release(), (Verdict::Free, true));
    assert_eq!(release(), (Verdict::NotOwner, true));
    assert_eq!(release(), (Verdict::NotOwner, false));
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn a_waiter_of_an_unknown_kind_is_neither_removed_nor_passed() {
    let kind = |number| QueueEntry {
        kind: "r".into(),
        ..entry(number)
    };
    let mut world = World::new();
    world.try_once(1);
    crowd(&mut world, 1, kind);
    world.wait(2);
    assert_eq!(world.release(1), Verdict::Free);
    let head = WireNotification::Head {
        to: owner_id(1_000).short(),
        server_us: world.now_us,
        holder_ms: 0,
    };
    assert_eq!(world.notifications, std::slice::from_ref(&head));
    assert_eq!(world.owner(), None);
    assert!(matches!(world.try_once(3), AcquireReply::Busy { .. }));
    assert_eq!(rank(&world.wait(2)), 1);
    assert_eq!(world.notifications, [head], "until it takes the key");
    // Dead it goes as any other.
    world.deaf.push("c1000".into());
    token(&world.wait(2));
}

#[test]
fn sums_of_times_end_at_the_last_moment() {
    let mut world = World::new();
    let answer = world.with(|lock_state, at| {
        let ask = AcquireCommand {
            owner_id: owner_id(1),
            ttl_ms: u64::MAX,
            floor_us: u64::MAX,
            not_after_ms: ServerMs::LAST,
            label: "",
            entry: None,
            lead_us: u64::MAX,
            earlier: &[],
        };
        lock_state.acquire(&ask, at)
    });
    assert_eq!(token(&answer), FencingToken::new(u64::MAX));
    world.pass(TTL * 1_000_000);
    assert_eq!(world.owner(), Some(owner_id(1)));
    world.wait(2);
    let now_ms = world.now_ms();
    world.lock_state.renew(owner_id(1), u64::MAX, now_ms);
    assert_eq!(world.owner(), Some(owner_id(1)));
    let parked = ReleaseCommand {
        min_hold_ms: u64::MAX,
        ..release_request(1)
    };
    world.release_by(&parked);
    world.pass(TTL);
    assert_eq!(world.owner(), Some(OwnerId::nil()));
}

#[test]
fn a_renewal_never_shortens() {
    let mut world = World::new();
    world.try_once(1);
    let now_ms = world.now_ms();
    let renewed = world.lock_state.renew(owner_id(1), 500, now_ms);
    assert!(matches!(
        renewed,
        RenewReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn a_counter_lives_five_minutes_from_its_seed_and_the_next_one_is_higher() {
    let mut world = World::new();
    let mut last = FencingToken::new(0);
    for _ in 0..7 {
        let answer = world.try_once(1);
        assert!(token(&answer) > last);
        last = token(&answer);
        world.release(1);
        world.pass(60_000);
    }
    assert!(last.as_u64() > NOW + 300_000_000, "it was seeded again");
    let mut holder_expiry = World::new();
    let answer = holder_expiry.with(|lock_state, at| {
        let ask = AcquireCommand {
            owner_id: owner_id(1),
            ttl_ms: TTL,
            floor_us: NOW,
            not_after_ms: ServerMs::LAST,
            label: "",
            entry: None,
            lead_us: 60_000_000,
            earlier: &[],
        };
        lock_state.acquire(&ask, at)
    });
    assert_eq!(token(&answer).as_u64(), NOW + 60_000_000);
}

#[test]
fn an_earlier_entry_that_came_late_goes_at_the_next_look() {
    let mut world = World::new();
    world.try_once(1);
    let (old, new) = (expired(2), entry(2));
    let old = QueueEntry {
        expires_at_ms: after(1),
        ..old
    };
    world.ask(2, Some(&new), std::slice::from_ref(&old));
    // A copy that was overtaken.
    world.ask(2, Some(&old), &[]);
    assert_eq!(queued(&world), 2);
    assert_eq!(rank(&world.ask(2, Some(&new), &[old])), 0);
    assert_eq!(queued(&world), 1);
}
