//! A forked child has a copy of all memory of its parent, and of the mutexes that other threads
//! held.

use test_support::fixtures::SOON;
use test_support::{RedisServer, Shim, eventually, helper};

/// Another thread of the parent may have held a mutex of the subscriber at the fork.
#[test]
fn body_that_ends_in_a_forked_child_calls_no_reader_of_its_parent() {
    let shim = Shim::fork();
    let process = helper!("lock-holder")
        .preload(&shim)
        .arg("fork-in-body")
        .spawn();
    let read = || {
        let mut records = process.records().into_iter();
        records.find_map(|record| record.get("read").cloned())
    };
    eventually(SOON, || read().is_some());
    let calls = read().unwrap();
    assert_eq!(calls.as_array().map(Vec::len), Some(0), "{calls}");
    process.close_stdin();
    assert!(process.wait(SOON).success());
}

/// Children drop waiters, listeners for a loss, guards and managers, while the parent's other
/// threads use all mutexes. Then each child locks with a default manager of its own.
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
        let dropped = records.filter(|record| record.get("dropped").is_some());
        dropped.collect::<Vec<_>>()
    };
    eventually(SOON, || dropped().len() == CHILDREN);
    for child in dropped() {
        assert_eq!(child["alone"], true, "{child}");
        assert_eq!(child["locked"], true, "{child}");
    }
    process.close_stdin();
    assert!(process.wait(SOON).success());
}
