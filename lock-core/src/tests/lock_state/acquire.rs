use super::*;

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
