//! The ends of the demo: in order, and by a kill.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use test_support::eventually;
use test_support::fixtures::SOON;

use crate::demo::Demo;

/// What must not be left behind.
struct Parts {
    instances: Vec<Pid>,
    redis: String,
    directory: PathBuf,
}

fn pid(id: u32) -> Pid {
    let raw = i32::try_from(id).expect("process ids fit in an i32");
    Pid::from_raw(raw).expect("process ids are positive")
}

impl Parts {
    fn of(demo: &Demo) -> Self {
        let server = demo.text("lock_server");
        let redis = server
            .strip_prefix("redis-server on ")
            .expect("an own server");
        let directory = format!("flash-sale-{}", demo.process.pid());
        let directory = std::env::temp_dir().join(directory);
        assert!(directory.exists());
        Self {
            instances: demo.pids().into_iter().map(pid).collect(),
            redis: redis.to_owned(),
            directory,
        }
    }

    fn are_gone(&self) -> bool {
        self.instances
            .iter()
            .all(|pid| test_kill_process(*pid).is_err())
            && TcpStream::connect(&self.redis).is_err()
            && !self.directory.exists()
    }
}

fn send(demo: &Demo, signal: Signal) {
    kill_process(pid(demo.process.pid()), signal).expect("the demo runs");
}

#[test]
fn ctrl_c_ends_everything_in_order() {
    let demo = Demo::start(&[]);
    let parts = Parts::of(&demo);
    // An open stream must not block the end, and neither must a sale or a frozen instance.
    let mut events = demo.events("");
    demo.press("slow");
    demo.press("freeze-1");
    demo.await_instance(1, "frozen");
    let begin = Instant::now();
    send(&demo, Signal::INT);
    let status = demo.process.wait(SOON);
    assert!(status.success(), "{status}");
    assert!(
        begin.elapsed() < Duration::from_secs(8),
        "{:?}",
        begin.elapsed()
    );
    assert!(parts.are_gone());
    while events.next().is_some() {}
    // One line at the start, and none at the end.
    assert_eq!(demo.process.lines().len(), 1);
}

#[test]
fn killed_demo_leaves_nothing_behind() {
    let demo = Demo::start(&[]);
    let parts = Parts::of(&demo);
    demo.press("freeze-2");
    demo.await_instance(2, "frozen");
    demo.process.kill9();
    eventually(SOON, || parts.are_gone());
}

#[test]
fn instance_that_ends_by_itself_is_told_and_can_be_started() {
    let demo = Demo::start(&[]);
    let [first, second] = demo.pids()[..] else {
        panic!("two instances");
    };
    kill_process(pid(first), Signal::KILL).expect("the instance runs");
    demo.await_instance(1, "stopped");
    let log = demo.get("/").body;
    assert!(log.contains("Instance 1 has ended"), "{log}");
    demo.press("start-1");
    demo.await_instance(1, "serving");
    assert_eq!(demo.pids()[1], second);
}
