//! A writer that becomes a reader.

use super::*;

#[test]
fn downgrade_lets_readers_in_and_raises_the_token() {
    let mut world = World::new();
    let written = token(&world.try_kind(WRITE, 1));
    world.wait_kind(READ, 2);
    world.wait_kind(WRITE, 3);
    let read = token(&world.downgrade(1));
    assert!(read > written);
    assert_eq!(world.holders(), owners(&[1, 2]));
    assert_eq!(world.granted(), owners(&[2]));
    world.release_kind(READ, 1);
    assert_eq!(world.release_kind(READ, 2), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(owner_id(3)));
}

#[test]
fn late_copy_after_a_downgrade_changes_nothing() {
    let mut world = World::new();
    world.try_kind(WRITE, 1);
    let read = token(&world.downgrade(1));
    let before = world.lock_state.clone();
    assert_eq!(token(&world.try_kind(WRITE, 1)), read);
    assert_eq!(token(&world.downgrade(1)), read, "a second copy");
    assert_eq!(world.lock_state, before);
}

#[test]
fn downgrade_of_a_lost_lock_founds_no_group() {
    let mut world = World::new();
    world.try_kind(WRITE, 1);
    world.lock_state.key = None;
    assert_eq!(world.downgrade(1), AcquireReply::NotOwner);
    assert!(world.lock_state.key.is_none() && world.lock_state.holders.is_none());
    world.try_kind(WRITE, 2);
    assert_eq!(world.downgrade(1), AcquireReply::NotOwner);
    assert_eq!(world.owner(), Some(owner_id(2)));
}

#[test]
fn release_of_either_form_ends_a_downgrade() {
    for downgrades in [false, true] {
        let mut world = World::new();
        world.try_kind(WRITE, 1);
        if downgrades {
            world.downgrade(1);
        }
        assert_eq!(world.release_kind(READ, 1), Verdict::Free);
        assert!(world.lock_state.key.is_none());
    }
}
