//! An owner that takes the place of another one.

use super::*;

impl World {
    /// Takes the lock over from one owner id to another.
    fn exchange_for(&mut self, from: u128, to: u128, ttl_ms: u64) -> AcquireReply {
        let not_after_ms = self.now_ms().plus(1_000);
        self.with(|lock_state, env| {
            let command = AcquireCommand {
                owner_id: owner_id(to),
                ttl_ms,
                floor_us: NOW,
                not_after_ms,
                label: "new",
                entry: None,
                lead_us: 0,
                kind: Kind::Exclusive,
                purpose: Purpose::Exchange(owner_id(from)),
                earlier: &[],
                max_queue: None,
            };
            lock_state.acquire(&command, env)
        })
    }

    fn exchange(&mut self, from: u128, to: u128) -> AcquireReply {
        self.exchange_for(from, to, TTL)
    }
}

#[test]
fn exchange_has_one_winner_and_a_greater_token() {
    let mut world = World::new();
    let first = token(&world.try_acquire(1));
    let second = token(&world.exchange(1, 2));
    assert!(second > first);
    assert_eq!(world.owner(), Some(owner_id(2)));
    assert_eq!(world.exchange(1, 3), AcquireReply::NotOwner);
    assert_eq!(
        token(&world.exchange(1, 2)),
        second,
        "a second copy finds its own lock"
    );
    let third = token(&world.exchange(2, 4));
    assert!(third > second);
    assert_eq!(world.exchange(1, 2), AcquireReply::NotOwner, "a late copy");
    assert_eq!(world.owner(), Some(owner_id(4)));
}

#[test]
fn earlier_owner_can_do_nothing_after_an_exchange() {
    let mut world = World::new();
    world.try_acquire(1);
    world.exchange(1, 2);
    let before = world.lock_state.clone();
    let now_ms = world.now_ms();
    let renewed = world
        .lock_state
        .renew(&renewal(owner_id(1), 10 * TTL), now_ms);
    assert_eq!(renewed, RenewReply::NotOwner);
    assert_eq!(world.release(1), Verdict::NotOwner);
    assert!(matches!(world.try_acquire(1), AcquireReply::Busy { .. }));
    assert_eq!(world.lock_state, before);
    assert_eq!(world.release(2), Verdict::Free);
}

#[test]
fn exchange_of_a_lock_that_has_ended_writes_nothing() {
    let mut world = World::new();
    assert_eq!(world.exchange(1, 2), AcquireReply::NotOwner);
    world.try_acquire(1);
    world.pass(TTL + 1);
    assert_eq!(world.exchange(1, 2), AcquireReply::NotOwner);
    assert!(world.lock_state.key.is_none());
    world.try_acquire(3);
    assert_eq!(world.exchange(1, 2), AcquireReply::NotOwner);
    assert_eq!(world.owner(), Some(owner_id(3)));
}

/// The lease is exactly the one that was asked for, and the first waiter learns of an earlier end.
#[test]
fn exchange_shortens_the_lease_and_tells_the_first_waiter() {
    let mut world = World::new();
    world.try_acquire(1);
    world.wait(5);
    let not_after_ms = world.now_ms().plus(1_000);
    let env = Env {
        now_us: world.now_ms().as_u64() * 1_000,
        has_subscriber: &|_| true,
    };
    let command = AcquireCommand {
        owner_id: owner_id(2),
        ttl_ms: TTL / 4,
        floor_us: NOW,
        not_after_ms,
        label: "new",
        entry: None,
        lead_us: 0,
        kind: Kind::Exclusive,
        purpose: Purpose::Exchange(owner_id(1)),
        earlier: &[],
        max_queue: None,
    };
    let (_, notifications) = world.lock_state.acquire(&command, &env);
    let [WireNotification::Head { to, holder_ms, .. }] = &*notifications else {
        panic!("{notifications:?}");
    };
    assert_eq!((*to, *holder_ms), (owner_id(5).short(), TTL / 4));
    world.pass(TTL / 4 + 1);
    world.wait(5);
    assert_eq!(world.owner(), Some(owner_id(5)));
}

/// A key that `min_hold` keeps locked has the nil id, and readers have no owner.
#[test]
fn exchange_takes_neither_a_kept_key_nor_a_group() {
    let mut world = World::new();
    world.try_acquire(1);
    let kept = ReleaseCommand {
        min_hold_ms: TTL,
        ..release_request(1)
    };
    world.release_by(&kept);
    assert_eq!(world.exchange(1, 2), AcquireReply::NotOwner);
}
