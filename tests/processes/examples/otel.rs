//! The example `otel`.

use test_support::fixtures::SOON;

#[test]
fn otel_exports_what_the_locks_did() {
    let process = super::example("otel").spawn();
    let status = process.wait(SOON);
    let lines = process.lines();
    assert!(status.success(), "{lines:?}");
    for expected in [
        "distributed_lock.acquire.duration {distributed_lock.name=order:{id}, outcome=acquired} 3",
        "distributed_lock.acquire.duration {distributed_lock.name=order:{id}, error.type=timeout, outcome=timeout} 1",
        "distributed_lock.hold.duration {distributed_lock.name=order:{id}, outcome=released} 3",
        "distributed_lock.hold.duration {distributed_lock.name=_OTHER, outcome=lost} 1",
        "distributed_lock.held {distributed_lock.name=order:{id}} 0",
        "distributed_lock.held {distributed_lock.name=_OTHER} 0",
        "distributed_lock.losses {distributed_lock.name=_OTHER, reason=expired} 1",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}\n{lines:#?}"
        );
    }
}
