//! Child processes print records, and can be frozen and killed.

use std::thread;

use test_support::fixtures::{SOON, ms};
use test_support::helper;

#[test]
fn process_prints_records_and_ends_by_itself() {
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
fn killed_process_leaves_no_partial_record() {
    let child = helper!("harness-child").spawn();
    child.send_line("stutter");
    child.record(SOON, |record| record["whole"] == true);
    child.kill9();
    assert_eq!(child.records().len(), 2);
}

#[test]
fn stopped_process_prints_nothing() {
    let child = helper!("harness-child").spawn();
    child.record(SOON, |record| record["pid"].is_number());
    child.stop();
    child.send_line("while it is frozen");
    // A thread of the test reads the pipe, so silence can only be observed for a limited time.
    thread::sleep(ms(100));
    assert_eq!(child.lines().len(), 1);
    child.cont();
    child.record(SOON, |record| record["echo"] == "while it is frozen");
}
