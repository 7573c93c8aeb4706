use super::*;

#[test]
fn release_and_renewal_of_another_owner_s_lock_change_nothing() {
    let mut world = World::new();
    world.try_acquire(1);
    assert_eq!(world.release(2), Verdict::NotOwner);
    assert_eq!(
        world.lock_state.renew(&renewal(owner_id(2), TTL), after(0)),
        RenewReply::NotOwner
    );
    assert_eq!(world.owner(), Some(owner_id(1)));
}

#[test]
fn second_release_does_not_affect_the_next_owner() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.release(1);
    assert_eq!(world.release(1), Verdict::NotOwner);
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn renewal_extends_the_lease_and_never_creates_a_key() {
    let mut world = World::new();
    world.try_acquire(1);
    world.pass(TTL - 1);
    let now_ms = world.now_ms();
    assert!(matches!(
        world.lock_state.renew(&renewal(owner_id(1), TTL), now_ms),
        RenewReply::Held { .. }
    ));
    world.pass(TTL);
    assert_eq!(world.owner(), Some(owner_id(1)));
    world.pass(1);
    let now_ms = world.now_ms();
    assert_eq!(
        world.lock_state.renew(&renewal(owner_id(1), TTL), now_ms),
        RenewReply::NotOwner
    );
    assert!(world.lock_state.key.is_none());
}

#[test]
fn tokens_grow_after_the_counter_was_lost_or_rolled_back() {
    let mut world = World::new();
    let mut last = FencingToken::new(0);
    let counters = [None, Some(5), None, Some(NOW + 3)];
    for (turn, lost) in (1..).zip(counters) {
        world.pass(1);
        let next = token(&world.try_acquire(turn));
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
    let first = token(&world.try_acquire(1));
    world.release(1);
    let second = token(&world.try_acquire(2));
    assert_eq!(second.as_u64(), first.as_u64() + 1);
}

#[test]
fn waiter_gets_the_key_only_after_a_foreign_holder_s_expiry() {
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
fn foreign_key_is_never_released_or_renewed() {
    let mut world = World::new();
    world.foreign(None);
    assert_eq!(world.release(1), Verdict::NotOwner);
    assert_eq!(
        world.lock_state.renew(&renewal(owner_id(1), TTL), after(0)),
        RenewReply::NotOwner
    );
    assert!(world.lock_state.key.is_some());
}

#[test]
fn new_first_waiter_behind_a_foreign_holder_is_notified_to_poll_at_once() {
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
fn key_of_another_type_is_reported_and_not_changed() {
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
fn key_in_its_grace_is_not_granted_to_waiters_or_to_try_acquire() {
    let mut world = World::new();
    world.try_acquire(1);
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
    assert!(matches!(world.try_acquire(3), AcquireReply::Busy { .. }));
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(world.owner(), None);
    world.pass(21);
    assert!(matches!(world.wait(2), AcquireReply::Held { .. }));
}

#[test]
fn release_without_waiters_sets_no_grace() {
    let mut world = World::new();
    world.try_acquire(1);
    world.release_by(&ReleaseCommand {
        grace_ms: 20,
        ..release_request(1)
    });
    assert!(world.lock_state.grace.is_none());
    assert!(matches!(world.try_acquire(2), AcquireReply::Held { .. }));
}

#[test]
fn min_hold_keeps_the_key_locked_without_an_owner() {
    let mut world = World::new();
    world.try_acquire(1);
    assert!(matches!(world.wait(2), AcquireReply::Queued { .. }));
    assert_eq!(
        world.release_by(&ReleaseCommand {
            min_hold_ms: 5_000,
            ..release_request(1)
        }),
        Verdict::Free
    );
    assert_eq!(world.owner(), Some(OwnerId::nil()));
    // The first waiter is notified when to poll, and no other client gets the key before.
    assert!(matches!(
        world.notifications.as_slice(),
        [WireNotification::Head {
            holder_ms: 5_000,
            ..
        }]
    ));
    assert!(world.lock_state.grace.is_none());
    // A renewal or a release that the first release overtook cannot extend it.
    let now_ms = world.now_ms();
    let late = world.lock_state.renew(&renewal(owner_id(1), TTL), now_ms);
    assert_eq!(late, RenewReply::NotOwner);
    assert!(matches!(world.try_acquire(1), AcquireReply::Busy { .. }));
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

#[test]
fn sums_of_times_saturate() {
    let mut world = World::new();
    let reply = world.with(|lock_state, env| {
        let command = AcquireCommand {
            owner_id: owner_id(1),
            ttl_ms: u64::MAX,
            floor_us: u64::MAX,
            not_after_ms: ServerMs::LAST,
            label: "",
            entry: None,
            lead_us: u64::MAX,
            kind: Kind::Exclusive,
            purpose: Purpose::Acquire,
            earlier: &[],
            max_queue: None,
        };
        lock_state.acquire(&command, env)
    });
    assert_eq!(token(&reply), FencingToken::new(u64::MAX));
    world.pass(TTL * 1_000_000);
    assert_eq!(world.owner(), Some(owner_id(1)));
    world.wait(2);
    let now_ms = world.now_ms();
    world
        .lock_state
        .renew(&renewal(owner_id(1), u64::MAX), now_ms);
    assert_eq!(world.owner(), Some(owner_id(1)));
    let kept = ReleaseCommand {
        min_hold_ms: u64::MAX,
        ..release_request(1)
    };
    world.release_by(&kept);
    world.pass(TTL);
    assert_eq!(world.owner(), Some(OwnerId::nil()));
}

#[test]
fn renewal_never_shortens_the_lease() {
    let mut world = World::new();
    world.try_acquire(1);
    let now_ms = world.now_ms();
    let renewed = world.lock_state.renew(&renewal(owner_id(1), 500), now_ms);
    assert!(matches!(
        renewed,
        RenewReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn counter_lives_five_minutes_from_its_seed_and_the_next_seed_is_higher() {
    let mut world = World::new();
    let mut last = FencingToken::new(0);
    for _ in 0..7 {
        let reply = world.try_acquire(1);
        assert!(token(&reply) > last);
        last = token(&reply);
        world.release(1);
        world.pass(60_000);
    }
    assert!(
        last.as_u64() > NOW + 300_000_000,
        "the counter was not seeded again"
    );
    let mut leading = World::new();
    let reply = leading.with(|lock_state, env| {
        let command = AcquireCommand {
            owner_id: owner_id(1),
            ttl_ms: TTL,
            floor_us: NOW,
            not_after_ms: ServerMs::LAST,
            label: "",
            entry: None,
            lead_us: 60_000_000,
            kind: Kind::Exclusive,
            purpose: Purpose::Acquire,
            earlier: &[],
            max_queue: None,
        };
        lock_state.acquire(&command, env)
    });
    assert_eq!(token(&reply).as_u64(), NOW + 60_000_000);
}
