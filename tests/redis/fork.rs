//! A child of the process has a copy of all that its parent had, and of the mutexes that other
//! threads of it held.

use test_support::fixtures::SOON;
use test_support::{RedisServer, Shim, eventually, helper};

/// Waiters, listeners for a loss, guards and managers are dropped in children, while the parent's
/// other threads use all mutexes there are.
#[test]
fn what_a_child_drops_hangs_nothing() {
    const CHILDREN: usize = 24;
    let server = RedisServer::start();
    let shim = Shim::fork();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .preload(&shim)
        .arg("fork-busy")
        .arg(CHILDREN.to_string())
        .spawn();
    let dropped = || {
        let records = process.records().into_iter();
        records
            .filter(|record| record.get("dropped").is_some())
            .count()
    };
    eventually(SOON, || dropped() == CHILDREN);
    process.close_stdin();
    assert!(process.wait(SOON).success());
}
