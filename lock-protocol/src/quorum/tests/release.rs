use super::*;

#[test]
fn release_at_a_majority_is_a_release() {
    let mut release = QuorumRelease::new(3);
    release.released(0);
    release.failed(1);
    assert_eq!(release.round(), ReleaseRound::Pending);
    assert_eq!(release.unconfirmed().collect::<Vec<_>>(), [1, 2]);
    release.released(1);
    assert_eq!(release.round(), ReleaseRound::Released);
    // A repeated release finds the key free.
    release.not_ours(0);
    release.not_ours(1);
    assert_eq!(release.round(), ReleaseRound::Released);
    assert_eq!(release.unconfirmed().collect::<Vec<_>>(), [2]);
}

#[test]
fn release_that_a_majority_does_not_own_is_not_ours() {
    let mut release = QuorumRelease::new(4);
    release.released(0);
    release.not_ours(1);
    assert_eq!(release.round(), ReleaseRound::Pending);
    release.not_ours(2);
    assert_eq!(release.round(), ReleaseRound::NotOurs);
}

#[test]
fn release_with_too_many_failures_is_unconfirmed() {
    let mut release = QuorumRelease::new(3);
    release.released(0);
    release.failed(1);
    release.failed(2);
    release.failed(7);
    assert_eq!(release.round(), ReleaseRound::Unconfirmed);
}
