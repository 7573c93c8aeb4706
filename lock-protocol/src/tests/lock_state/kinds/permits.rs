//! Permits, and their weights.

use super::*;

#[test]
fn permits_are_counted_and_the_first_end_is_told() {
    let mut world = World::new();
    world.try_kind(permits(2), 1);
    world.pass(1_000);
    world.try_kind(permits(2), 2);
    let queued = world.wait_kind(permits(2), 3);
    assert_eq!(remaining(&queued), Some(TTL - 1_000), "the first end");
    assert_eq!(remaining(&world.wait_kind(WRITE, 4)), Some(TTL));
    world.pass(TTL - 1_000 + 1);
    assert!(
        is_held(&world.wait_kind(permits(2), 3)),
        "the first holder is dead"
    );
    assert_eq!(world.holders(), owners(&[2, 3]));
}

#[test]
fn permits_of_another_number_wait() {
    let mut world = World::new();
    world.try_kind(permits(4), 1);
    assert!(is_queued(&world.wait_kind(permits(8), 2)));
    assert!(is_queued(&world.wait_kind(READ, 3)));
    assert_eq!(world.release_kind(permits(4), 1), Verdict::HandedOver);
    let Some(Expiring {
        value: KeyValue::Shared(GroupValue { group, .. }),
        ..
    }) = &world.lock_state.key
    else {
        panic!("{:?}", world.lock_state.key);
    };
    assert_eq!(*group, Group::Permits(8));
    assert_eq!(world.holders(), owners(&[2]));
}

#[test]
fn heavy_request_is_not_passed() {
    let mut world = World::new();
    world.try_kind(heavy(4, 3), 1);
    assert!(is_queued(&world.wait_kind(heavy(4, 2), 2)));
    assert!(matches!(
        world.try_kind(permits(4), 3),
        AcquireReply::Busy { .. }
    ));
    assert_eq!(world.release_kind(heavy(4, 3), 1), Verdict::HandedOver);
    assert!(is_held(&world.try_kind(heavy(4, 2), 3)));
    assert!(matches!(
        world.try_kind(permits(4), 4),
        AcquireReply::Busy { .. }
    ));
}

#[test]
fn second_entry_of_an_owner_takes_no_second_permit() {
    let mut world = World::new();
    world.try_kind(WRITE, 1);
    let first = entry_of(permits(3), 2);
    let second = QueueEntry {
        lease_ms: 1_000,
        ..first.clone()
    };
    world.acquire(2, Some(&first), &[]);
    world.acquire(2, Some(&second), &[]);
    world.wait_kind(permits(3), 3);
    world.release(1);
    assert_eq!(world.holders(), owners(&[2, 3]));
    assert_eq!(world.granted(), owners(&[2, 2, 3]));
    let members = world.lock_state.holders.as_ref().unwrap();
    assert_eq!(members.value.len(), 2);
    let ends: Vec<_> = members.value.values().copied().collect();
    assert_eq!(ends, [after(2_000); 2], "the second entry lowers no lease");
}

#[test]
fn kept_permit_has_no_owner() {
    let mut world = World::new();
    world.try_kind(permits(2), 1);
    let kept = ReleaseCommand {
        min_hold_ms: 5_000,
        ..release_of(permits(2), 1)
    };
    assert_eq!(world.release_by(&kept), Verdict::Free);
    assert_eq!(world.renew_kind(permits(2), 1), RenewReply::NotOwner);
    assert_eq!(world.release_by(&kept), Verdict::NotOwner);
    let members = world.lock_state.holders.as_ref().unwrap();
    let member = Member {
        owner_id: owner_id(1),
        number: 1,
        ownership: Ownership::Kept,
        label: "waiter".into(),
    };
    assert_eq!(members.value.get(&member), Some(&after(5_000)));
    assert!(is_held(&world.try_kind(permits(2), 2)));
    assert!(is_queued(&world.wait_kind(permits(2), 3)));
    world.pass(5_001);
    assert!(is_held(&world.wait_kind(permits(2), 3)));
}

/// Otherwise the head would wait for the end of the other holder's lease, which it was told.
#[test]
fn kept_permit_is_announced_to_the_head_of_the_queue() {
    let mut world = World::new();
    world.try_kind(permits(2), 1);
    world.try_kind(permits(2), 2);
    assert_eq!(remaining(&world.wait_kind(permits(2), 3)), Some(TTL));
    world.notifications.clear();
    let kept = ReleaseCommand {
        min_hold_ms: 900,
        ..release_of(permits(2), 1)
    };
    world.release_by(&kept);
    let told: Vec<_> = world.notifications.iter().collect();
    assert!(
        matches!(told[..], [WireNotification::Head { holder_ms: 900, .. }]),
        "{told:?}"
    );
}

#[test]
fn permit_that_is_kept_twice_keeps_the_later_end() {
    let mut world = World::new();
    for (min_hold_ms, end) in [(2_900, 2_900), (5, 2_900)] {
        world.try_kind(permits(2), 1);
        world.release_by(&ReleaseCommand {
            min_hold_ms,
            ..release_of(permits(2), 1)
        });
        let members = world.lock_state.holders.as_ref().unwrap();
        let ends: Vec<_> = members.value.values().copied().collect();
        assert_eq!(ends, [after(end)]);
    }
}
