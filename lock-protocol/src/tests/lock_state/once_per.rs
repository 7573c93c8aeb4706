//! Work that is done for a period.

use super::*;

const PERIOD: u64 = 60_000;

/// A release after the work has succeeded.
fn done(number: u128) -> ReleaseCommand<'static> {
    ReleaseCommand {
        done_ms: PERIOD,
        ..release_request(number)
    }
}

fn remaining_ms(reply: &AcquireReply) -> Option<u64> {
    match reply {
        AcquireReply::Busy { holder } => holder.remaining_ms,
        other => panic!("{other:?}"),
    }
}

#[test]
fn key_stays_locked_until_the_period_since_its_grant_ends() {
    let mut world = World::new();
    world.try_acquire(1);
    world.pass(20_000);
    assert_eq!(world.release_by(&done(1)), Verdict::Free);
    assert_eq!(world.owner(), Some(OwnerId::done()));
    assert_eq!(remaining_ms(&world.try_acquire(2)), Some(40_000));
    world.pass(40_001);
    assert!(matches!(world.try_acquire(2), AcquireReply::Held { .. }));
}

#[test]
fn period_that_ended_before_the_release_leaves_nothing() {
    let mut world = World::new();
    world.try_acquire(1);
    let now_ms = world.now_ms();
    world
        .lock_state
        .renew(&renewal(owner_id(1), PERIOD * 2), now_ms);
    assert!(matches!(world.wait(2), AcquireReply::Queued { .. }));
    world.pass(PERIOD);
    assert_eq!(world.release_by(&done(1)), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(2)));
}

/// Only a waiter that polls learns that there is nothing to do, so each one that leaves has to wake the next.
#[test]
fn waiters_learn_it_one_after_another_and_leave() {
    let mut world = World::new();
    world.try_acquire(1);
    for waiter in [2, 3, 4] {
        assert!(matches!(world.wait(waiter), AcquireReply::Queued { .. }));
    }
    world.release_by(&done(1));
    for waiter in [2, 3, 4] {
        let to = owner_id(waiter).short();
        let expected = WireNotification::Head {
            to,
            server_us: world.now_us,
            holder_ms: 0,
        };
        assert_eq!(world.notifications, [expected]);
        assert!(matches!(world.wait(waiter), AcquireReply::Busy { .. }));
    }
    assert_eq!(world.notifications, []);
    assert!(world.lock_state.queue.is_none());
    // A newcomer doesn't enter it either.
    assert!(matches!(world.wait(5), AcquireReply::Busy { .. }));
    assert!(world.lock_state.queue.is_none());
}

/// A dead waiter hears nothing, so it would wake nobody.
#[test]
fn dead_waiters_do_not_end_the_chain() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(2);
    world.wait(3);
    world.wait(4);
    world.unheard.push("c2".into());
    world.release_by(&done(1));
    let woken = |world: &World| match world.notifications[..] {
        [WireNotification::Head { to, .. }] => to,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(woken(&world), owner_id(3).short());
    world.unheard.push("c4".into());
    assert!(matches!(world.wait(3), AcquireReply::Busy { .. }));
    assert_eq!(world.notifications, []);
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn late_copies_neither_extend_nor_end_it() {
    let mut world = World::new();
    world.try_acquire(1);
    world.release_by(&done(1));
    let now_ms = world.now_ms();
    let renewed = world
        .lock_state
        .renew(&renewal(owner_id(1), PERIOD * 9), now_ms);
    assert_eq!(renewed, RenewReply::NotOwner);
    assert!(matches!(world.try_acquire(1), AcquireReply::Busy { .. }));
    // The reply to the first copy may be lost, and the caller has to know that the mark is there.
    assert_eq!(world.release_by(&done(1)), Verdict::Free);
    assert_eq!(world.release(1), Verdict::NotOwner);
    assert_eq!(remaining_ms(&world.try_acquire(2)), Some(PERIOD));
}

#[test]
fn plain_release_leaves_nothing() {
    let mut world = World::new();
    world.try_acquire(1);
    assert_eq!(world.release(1), Verdict::Free);
    assert!(matches!(world.try_acquire(2), AcquireReply::Held { .. }));
}

#[test]
fn clock_that_was_set_back_makes_it_no_longer_than_the_period() {
    let mut world = World::new();
    world.try_acquire(1);
    world.now_us -= 500_000_000;
    world.release_by(&done(1));
    assert_eq!(remaining_ms(&world.try_acquire(2)), Some(PERIOD));
}

#[test]
fn operator_frees_it_at_once() {
    for mode in [ForceMode::Revoke, ForceMode::Now] {
        let mut world = World::new();
        world.try_acquire(1);
        world.release_by(&done(1));
        let reply = world.with(|lock_state, env| {
            let command = ForceCommand {
                mode,
                floor_us: 0,
                lead_us: 0,
                label: "revoked by ops",
                token: None,
                seen: None,
                longest_ms: u64::MAX,
            };
            lock_state.force_release(&command, env)
        });
        assert_eq!(reply.verdict, ForceVerdict::Freed(ForceGrant::None));
        assert!(matches!(world.try_acquire(2), AcquireReply::Held { .. }));
    }
}
