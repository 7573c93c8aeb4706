//! Child processes speak in records, and can be frozen and killed.

use std::thread;

use test_support::fixtures::{SOON, ms};
use test_support::helper;

#[test]
fn speaks_in_records_and_ends_by_itself() {
    let child = helper!("harness-child").spawn();
    child.send_line("one");
    child.send_line("two");
    let record = child.record(SOON, |record| record["echo"] == "two");
    assert_eq!(record["echo"], "two");
    assert_eq!(child.records()[0]["pid"], child.pid());
    child.close_stdin();
    assert!(child.wait(SOON).success());
    assert_eq!(child.lines().len(), 3);
    assert!(child.wait(SOON).success());
    child.kill9();
}

#[test]
fn leaves_no_torn_record_when_killed() {
    let child = helper!("harness-child").spawn();
    child.send_line("stutter");
    child.record(SOON, |record| record["whole"] == true);
    child.kill9();
    assert_eq!(child.records().len(), 2);
}

#[test]
fn stands_still() {
    let child = helper!("harness-child").spawn();
    child.record(SOON, |record| record["pid"].is_number());
    child.stop();
    child.send_line("while it stands still");
    // A thread of the test reads the pipe, so silence can only be watched for a while.
    thread::sleep(ms(100));
    assert_eq!(child.lines().len(), 1);
    child.cont();
    child.record(SOON, |record| record["echo"] == "while it stands still");
}
