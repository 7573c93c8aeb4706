use super::*;

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
