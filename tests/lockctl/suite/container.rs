//! `lockctl` as process 1 of a container, where the kernel drops signals without a handler, and where
//! orphans become its children.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use test_support::fixtures::{KEY, NAME, SOON, exists, queue_length};
use test_support::{RedisServer, Scratch, eventually, eventually_some};

use crate::program::{LOCKCTL, send, system};

/// The arguments of `unshare` that make a process 1, if this machine allows it.
fn arguments() -> Option<Vec<&'static str>> {
    let plain = vec!["--pid", "--fork", "--mount-proc", "--kill-child"];
    let mut as_user = vec!["--user", "--map-root-user"];
    as_user.extend(&plain);
    [plain, as_user].into_iter().find(|arguments| {
        let mut arguments = arguments.clone();
        arguments.push("true");
        system("unshare", &arguments).is_some()
    })
}

struct Container {
    unshare: Child,
    scratch: Scratch,
}

impl Container {
    fn start(server: &RedisServer, flags: &[&str], script: &str) -> Option<Self> {
        let arguments = arguments()?;
        let scratch = Scratch::new();
        let out = std::fs::File::create(scratch.path().join("out")).expect("the folder is new");
        let unshare = Command::new("unshare")
            .args(arguments)
            .arg(LOCKCTL)
            .args(["run", "--name", NAME])
            .args(flags)
            .args(["--", "sh", "-c", script])
            .env("DISTRIBUTED_LOCK_URL", server.url())
            .stdin(Stdio::null())
            .stdout(out)
            .spawn()
            .expect("unshare was there a moment ago");
        Some(Self { unshare, scratch })
    }

    /// The process id of process 1, outside of the container.
    fn init(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.unshare.id());
        eventually_some(SOON, || {
            std::fs::read_to_string(&children).ok()?.trim().parse().ok()
        })
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("out")).unwrap_or_default()
    }

    fn code(&mut self) -> Option<i32> {
        let ended = eventually_some(SOON, || self.unshare.try_wait().expect("it is a child"));
        ended.code()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // `--kill-child` ends the rest.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[test]
fn process_1_passes_signals_and_reaps_orphans() {
    let server = RedisServer::start();
    let script = "trap 'echo got TERM; exit 5' TERM
        for i in 1 2 3; do sh -c 'sleep 0.1 & exit'; done
        sleep 0.5
        cat /proc/[0-9]*/stat | grep -c ') Z' >&1
        echo ready $$; while :; do sleep 0.05; done";
    let Some(mut container) = Container::start(&server, &[], script) else {
        println!("this machine has no pid namespaces for this user");
        return;
    };
    eventually(SOON, || container.output().contains("ready"));
    assert!(
        container.output().starts_with("0\n"),
        "zombies: {}",
        container.output()
    );
    send(container.init(), Signal::TERM);
    assert_eq!(container.code(), Some(5), "{}", container.output());
    assert!(container.output().ends_with("got TERM\n"));
    assert!(!exists(&server, KEY));
}

#[test]
fn process_1_ends_its_wait_on_a_signal() {
    let server = RedisServer::start();
    server.cli(&["SET", KEY, "another-library", "PX", "60000"]);
    let Some(mut container) = Container::start(&server, &["--wait", "1m"], "echo ran") else {
        println!("this machine has no pid namespaces for this user");
        return;
    };
    eventually(SOON, || queue_length(&server) == 1);
    send(container.init(), Signal::TERM);
    assert_eq!(container.code(), Some(143));
    assert_eq!(container.output(), "");
}
