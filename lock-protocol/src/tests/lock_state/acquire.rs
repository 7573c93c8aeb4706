use super::*;

#[test]
fn acquire_of_a_free_lock_holds_it_at_once() {
    let mut world = World::new();
    let reply = world.try_acquire(1);
    assert!(matches!(
        reply,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
    assert_eq!(world.owner(), Some(owner_id(1)));
    assert!(world.notifications.is_empty());
}

#[test]
fn try_acquire_of_a_held_lock_reports_the_holder() {
    let mut world = World::new();
    world.try_acquire(1);
    world.pass(10_000);
    let AcquireReply::Busy { holder } = world.try_acquire(2) else {
        panic!("not busy");
    };
    assert_eq!(holder.remaining_ms, Some(20_000));
    assert!(holder.value.ends_with(" waiter"));
    assert!(world.lock_state.queue.is_none());
}

#[test]
fn repeated_acquire_gives_the_same_token_and_at_least_the_ttl() {
    let mut world = World::new();
    let first = token(&world.try_acquire(1));
    world.pass(10_000);
    let again = world.try_acquire(1);
    assert_eq!(token(&again), first);
    // The acquire raised the shorter expiry to the ttl.
    assert!(matches!(
        again,
        AcquireReply::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn repeated_acquire_never_shortens_the_lease() {
    let mut world = World::new();
    world.try_acquire(1);
    let now_ms = world.now_ms();
    world
        .lock_state
        .renew(&renewal(owner_id(1), 60_000), now_ms);
    assert!(matches!(
        world.try_acquire(1),
        AcquireReply::Held {
            remaining_ms: 60_000,
            ..
        }
    ));
}

#[test]
fn acquire_after_its_latest_time_writes_nothing() {
    let mut world = World::new();
    let env = Env {
        now_us: NOW + 1_000,
        has_subscriber: &|_| true,
    };
    let command = AcquireCommand {
        owner_id: owner_id(1),
        ttl_ms: TTL,
        floor_us: NOW,
        not_after_ms: after(0),
        label: "",
        entry: None,
        lead_us: 0,
        kind: Kind::Exclusive,
        purpose: Purpose::Acquire,
        earlier: &[],
        max_queue: None,
    };
    assert_eq!(
        world.lock_state.acquire(&command, &env).0,
        AcquireReply::Late
    );
    assert!(world.lock_state.is_empty());
}
