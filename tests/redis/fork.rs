//! A forked child has a copy of all memory of its parent, and of the mutexes that other threads
//! held.

use test_support::fixtures::SOON;
use test_support::{RedisServer, Shim, eventually, helper};

/// Children drop waiters, listeners for a loss, guards and managers, while the parent's other
/// threads use all mutexes.
#[test]
fn drops_in_a_forked_child_do_not_hang() {
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
