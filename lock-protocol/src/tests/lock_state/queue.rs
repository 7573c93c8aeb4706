use super::*;

#[test]
fn waiters_get_the_lock_in_the_order_of_arrival() {
    let mut world = World::new();
    world.try_acquire(1);
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
fn newcomer_does_not_jump_the_queue_after_the_lease_has_ended() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.pass(TTL + 1);
    assert!(matches!(world.try_acquire(9), AcquireReply::Busy { .. }));
    assert_eq!(world.owner(), Some(owner_id(2)));

    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.pass(TTL + 1);
    assert_eq!(rank(&world.wait(3)), 0);
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn first_waiter_gets_an_expired_lock_with_a_poll() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.wait(3);
    world.pass(TTL);
    // A key still exists in its last millisecond.
    assert_eq!(rank(&world.wait(2)), 0);
    world.pass(1);
    let reply = world.wait(2);
    assert!(matches!(
        reply,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
    // The caller gets no notification. The waiter that is first now learns when to poll.
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
fn handover_gives_a_short_lease_and_notifies_the_next_waiter_of_its_end() {
    let mut world = World::new();
    world.try_acquire(1);
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
fn waiter_whose_channel_has_no_subscriber_is_skipped() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.wait(3);
    world.unheard.push("c2".into());
    world.release(1);
    assert_eq!(world.owner(), Some(owner_id(3)));
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn waiter_whose_entry_has_expired_is_skipped() {
    let mut world = World::new();
    world.try_acquire(1);
    let short = QueueEntry {
        expires_at_ms: after(10),
        ..entry(2)
    };
    world.acquire(2, Some(&short), &[]);
    world.wait(3);
    world.pass(11);
    world.release(1);
    assert_eq!(world.owner(), Some(owner_id(3)));
}

#[test]
fn polling_waiter_needs_no_subscriber_and_gets_no_notification() {
    let mut world = World::new();
    world.try_acquire(1);
    let polling = QueueEntry {
        mode: Mode::Polling,
        lease_ms: 1_500,
        ..entry(2)
    };
    world.unheard.push("c2".into());
    world.acquire(2, Some(&polling), &[]);
    world.release(1);
    assert_eq!(world.owner(), Some(owner_id(2)));
    assert!(world.notifications.is_empty());
    let reply = world.acquire(2, Some(&polling), &[]);
    assert!(matches!(
        reply,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn extended_entry_keeps_its_place() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.wait(3);
    let extended = QueueEntry {
        expires_at_ms: after(600_000),
        ..entry(2)
    };
    assert_eq!(rank(&world.acquire(2, Some(&extended), &[entry(2)])), 0);
    assert_eq!(world.lock_state.queue.as_ref().unwrap().value.len(), 2);
}

#[test]
fn cancel_of_the_first_waiter_notifies_the_second_when_to_poll() {
    let mut world = World::new();
    world.try_acquire(1);
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
fn cancel_of_a_grant_that_crossed_it_hands_the_lock_over() {
    let mut world = World::new();
    world.try_acquire(1);
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
fn try_acquire_gets_the_key_when_all_waiters_are_dead() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.unheard.push("c2".into());
    world.pass(TTL + 1);
    assert!(matches!(world.try_acquire(3), AcquireReply::Held { .. }));
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn queue_expires_ten_minutes_after_the_lock_and_the_last_poll() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.pass(TTL + 600_000);
    world.lock_state.expire(world.now_ms());
    assert!(world.lock_state.queue.is_some());
    world.pass(1);
    world.lock_state.expire(world.now_ms());
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn poll_of_a_held_key_removes_only_expired_entries() {
    let mut world = World::new();
    world.unheard.push("unheard".into());
    world.try_acquire(1);
    fill_queue(&mut world, 60, |number| {
        if number % 2 == 0 {
            expired(number)
        } else {
            unheard(number)
        }
    });
    assert_eq!(
        rank(&world.wait(2)),
        60,
        "the first call does not remove entries"
    );
    assert_eq!(queued(&world), 61);
    assert_eq!(rank(&world.wait(2)), 30);
    assert_eq!(
        queued(&world),
        31,
        "a waiter without a subscriber may be reconnecting"
    );
}

/// A search behind a live head would make each poll of a long queue expensive.
#[test]
fn poll_of_a_held_key_leaves_expired_entries_behind_a_live_head() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    fill_queue(&mut world, 5, expired);
    assert_eq!(rank(&world.wait(3)), 6);
    assert_eq!(rank(&world.wait(3)), 6, "a poll");
    assert_eq!(queued(&world), 7);
}

#[test]
fn poll_that_removes_the_head_notifies_the_next_waiter() {
    let mut world = World::new();
    world.try_acquire(1);
    fill_queue(&mut world, 1, expired);
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
fn one_call_scans_a_hundred_entries_and_reports_more() {
    let mut world = World::new();
    world.unheard.push("unheard".into());
    fill_queue(&mut world, 250, unheard);
    assert_eq!(world.wait(2), AcquireReply::More);
    assert_eq!(queued(&world), 151);
    assert_eq!(world.wait(2), AcquireReply::More);
    token(&world.wait(2));
    assert_eq!(queued(&world), 0);

    // The reply to exactly a hundred dead entries reports no more.
    let mut world = World::new();
    fill_queue(&mut world, 100, expired);
    token(&world.try_acquire(2));
    let mut world = World::new();
    fill_queue(&mut world, 101, expired);
    assert_eq!(world.try_acquire(2), AcquireReply::More);
    token(&world.try_acquire(2));
}

#[test]
fn release_reports_more_entries_and_continues_when_repeated() {
    let mut world = World::new();
    world.unheard.push("unheard".into());
    world.try_acquire(1);
    fill_queue(&mut world, 250, unheard);
    world.wait(2);
    let mut release = || {
        let reply = world.with(|lock_state, env| lock_state.release(&release_request(1), env));
        (reply.verdict, reply.more)
    };
    assert_eq!(release(), (Verdict::Free, true));
    assert_eq!(release(), (Verdict::NotOwner, true));
    assert_eq!(release(), (Verdict::NotOwner, false));
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn waiter_of_an_unknown_kind_is_neither_removed_nor_passed() {
    let kind = |number| QueueEntry {
        kind: EntryKind::Unknown("z".into()),
        ..entry(number)
    };
    let mut world = World::new();
    world.try_acquire(1);
    fill_queue(&mut world, 1, kind);
    world.wait(2);
    assert_eq!(world.release(1), Verdict::Free);
    let head = WireNotification::Head {
        to: owner_id(1_000).short(),
        server_us: world.now_us,
        holder_ms: 0,
    };
    assert_eq!(world.notifications, std::slice::from_ref(&head));
    assert_eq!(world.owner(), None);
    assert!(matches!(world.try_acquire(3), AcquireReply::Busy { .. }));
    assert_eq!(rank(&world.wait(2)), 1);
    assert_eq!(
        world.notifications,
        [head],
        "until that waiter acquires the key"
    );
    // A dead waiter of an unknown kind is removed as any other.
    world.unheard.push("c1000".into());
    token(&world.wait(2));
}

#[test]
fn earlier_entry_that_arrived_late_is_removed_at_the_next_poll() {
    let mut world = World::new();
    world.try_acquire(1);
    let (old, new) = (expired(2), entry(2));
    let old = QueueEntry {
        expires_at_ms: after(1),
        ..old
    };
    world.acquire(2, Some(&new), std::slice::from_ref(&old));
    // A copy of the first acquire that the second one overtook.
    world.acquire(2, Some(&old), &[]);
    assert_eq!(queued(&world), 2);
    assert_eq!(rank(&world.acquire(2, Some(&new), &[old])), 0);
    assert_eq!(queued(&world), 1);
}

fn wait_within(world: &mut World, most: u32, number: u128) -> AcquireReply {
    world.acquire_within(Some(most), number, Some(&entry(number)), &[])
}

#[test]
fn caller_that_finds_too_many_waiters_is_refused_and_leaves_nothing() {
    let mut world = World::new();
    token(&wait_within(&mut world, 0, 1));
    assert_eq!(rank(&wait_within(&mut world, 1, 2)), 0);
    let before = world.lock_state.clone();
    let reply = wait_within(&mut world, 1, 3);
    assert!(
        matches!(&reply, AcquireReply::Full { rank: 1, holder } if holder.remaining_ms == Some(TTL)),
        "{reply:?}"
    );
    assert_eq!(world.lock_state, before);
    assert_eq!(rank(&wait_within(&mut world, 2, 3)), 1);
    // A waiter that polls again is not a newcomer.
    assert_eq!(rank(&wait_within(&mut world, 1, 3)), 1);
    // Without a queue, one for which nobody may wait leaves none.
    let mut world = World::new();
    world.try_acquire(1);
    let before = world.lock_state.clone();
    assert!(matches!(
        wait_within(&mut world, 0, 2),
        AcquireReply::Full { rank: 0, .. }
    ));
    assert_eq!(world.lock_state, before);
}

#[test]
fn expired_waiters_do_not_fill_the_queue() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    // Behind a living waiter, where a poll leaves them.
    fill_queue(&mut world, 150, expired);
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(queued(&world), 151);
    // One call looks at the first hundred.
    let AcquireReply::Full { rank: left, .. } = wait_within(&mut world, 2, 3) else {
        panic!("not refused");
    };
    assert_eq!(left, 52);
    assert_eq!(rank(&wait_within(&mut world, 2, 3)), 1);
}

#[test]
fn expired_waiters_do_not_fill_the_queue_of_a_shared_lock() {
    let reader = |number| QueueEntry {
        kind: EntryKind::Known(Kind::Read),
        ..entry(number)
    };
    let mut world = World::new();
    world.acquire(1, Some(&reader(1)), &[]);
    world.wait(2);
    fill_queue(&mut world, 5, expired);
    let newcomer = reader(3);
    let reply = world.acquire_within(Some(2), 3, Some(&newcomer), &[]);
    assert_eq!(rank(&reply), 1);
}

/// The call that finds the place behind the dead waiters is another one.
#[test]
fn limit_also_counts_behind_very_many_dead_waiters() {
    let mut world = World::new();
    world.unheard.push("unheard".into());
    fill_queue(&mut world, 150, unheard);
    // No call of this version lets it in, so it stays in front of the newcomer.
    let unknown = QueueEntry {
        kind: EntryKind::Unknown("z".into()),
        ..entry(9)
    };
    let queue = world.lock_state.queue.as_mut().expect("the queue is full");
    queue.value.insert(1_000, unknown);
    assert_eq!(wait_within(&mut world, 1, 3), AcquireReply::More);
    let reply = wait_within(&mut world, 1, 3);
    assert!(
        matches!(reply, AcquireReply::Full { rank: 1, .. }),
        "{reply:?}"
    );
}

#[test]
fn owner_with_an_earlier_entry_is_not_refused() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.wait(3);
    let extended = QueueEntry {
        expires_at_ms: after(90_000),
        ..entry(3)
    };
    let reply = world.acquire_within(Some(1), 3, Some(&extended), &[entry(3)]);
    assert_eq!(rank(&reply), 1);
}

#[test]
fn full_queue_of_a_free_lock_refuses_nobody_before_its_waiters_are_let_in() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.pass(TTL + 1);
    // The waiter gets the lock, so nobody waits before the newcomer.
    assert_eq!(rank(&wait_within(&mut world, 1, 3)), 0);
    assert_eq!(world.owner(), Some(owner_id(2)));
}
