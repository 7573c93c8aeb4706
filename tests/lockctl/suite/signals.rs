//! Signals during the wait, and to the command and its children.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use test_support::fixtures::{KEY, NAME, SOON, exists, ms, queue_length};

use test_support::{Direction, Proxy, RedisServer, eventually};

use crate::program::{Lockctl, is_alive, send};

/// A grandchild that says which signal it got, and a shell that waits for it and ends with 3.
pub(crate) const TREE: &str = r#"
sh -c 'trap "echo grandchild got TERM; exit 0" TERM
       trap "echo grandchild got USR1" USR1
       echo "grandchild $$"
       while :; do sleep 0.05; done' &
trap 'wait $!; exit 3' TERM
trap : USR1
echo "child $$"
while :; do wait $!; done
"#;

fn tree(server: &RedisServer, flags: &[&str], script: &str) -> Lockctl {
    let mut arguments = vec!["run", "--name", NAME];
    arguments.extend(flags);
    Lockctl::on(server, &arguments)
        .arg("--")
        .arg("sh")
        .arg("-c")
        .arg(script)
}

#[test]
fn signals_reach_grandchildren() {
    let server = RedisServer::start();
    let running = tree(&server, &[], TREE).start();
    let grandchild: i32 = running.line("grandchild ").parse().unwrap();
    running.line("child ");
    running.signal(Signal::USR1);
    running.line("grandchild got USR1");
    running.signal(Signal::TERM);
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome.stdout.ends_with("grandchild got TERM\n"),
        "{outcome:?}"
    );
    assert!(!is_alive(grandchild));
    assert!(!exists(&server, KEY), "the lock is released");
}

/// The signal arrives while the reply to the acquire is on its way.
#[test]
fn a_signal_ends_the_wait() {
    let server = RedisServer::start();
    let holder = tree(&server, &[], "echo ready; sleep 60").start();
    holder.line("ready");
    let proxy = Proxy::in_front_of(&server);
    proxy.delay(Direction::ToClient, ms(150));
    let waiting = tree(&server, &["--wait", "10m"], "echo ran")
        .env("DISTRIBUTED_LOCK_URL", proxy.url())
        .start();
    eventually(SOON, || queue_length(&server) == 1);
    let started = Instant::now();
    waiting.signal(Signal::TERM);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(143), ""));
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    // Its queue entry is gone, so no waiter is left, and nothing to warn about.
    assert_eq!(queue_length(&server), 0);
    assert!(!outcome.stderr.contains("did not confirm"), "{outcome:?}");
}

/// The text of the conflict names the holder, and reads no more than that needs.
#[test]
fn frozen_server_does_not_delay_the_end_of_the_wait() {
    let server = RedisServer::start();
    let holder = tree(&server, &["--label", "web-1:42"], "echo ready; sleep 60").start();
    holder.line("ready");
    let started = Instant::now();
    let flags = ["--wait", "2s", "--timeout", "30s"];
    let waiting = tree(&server, &flags, "echo ran").start();
    eventually(SOON, || queue_length(&server) == 1);
    server.stop();
    let outcome = waiting.wait();
    let elapsed = started.elapsed();
    server.cont();
    assert_eq!(outcome.code, Some(75), "{outcome:?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    let warning = "did not confirm that lockctl gave up the lock `job`; if lockctl still has it, it ends within 30 s";
    assert!(outcome.stderr.contains(warning), "{outcome:?}");
}

#[test]
fn a_signal_ends_the_connecting() {
    let server = RedisServer::start();
    server.stop();
    let waiting = tree(&server, &["--timeout", "1m"], "echo ran").start();
    // The handlers are there when the process has asked for the signals that it handles.
    eventually(SOON, || {
        let status = format!("/proc/{}/status", waiting.pid());
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        caught.is_some_and(|set| set & (1 << 14) != 0)
    });
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.wait().code, Some(143));
    server.cont();
}

#[test]
fn sigkill_of_lockctl_ends_the_command() {
    let server = RedisServer::start();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo grandchild $$; exec sleep 60' & echo child $$; wait";
    let running = tree(&server, &["--kill-after", "1s"], script).start();
    let grandchild: i32 = running.line("grandchild ").parse().unwrap();
    let child: i32 = running.line("child ").parse().unwrap();
    let started = Instant::now();
    running.process.kill9();
    eventually(SOON, || !is_alive(child) && !is_alive(grandchild));
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_millis(950), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(4), "{elapsed:?}");
    // Nobody released it: the lock outlives lockctl, and so excludes others until the tree is dead.
    assert!(exists(&server, KEY));
}

#[test]
fn sigkill_of_lockctl_gives_the_command_time_to_clean_up() {
    let server = RedisServer::start();
    let script = "trap 'echo cleaned up; exit 0' TERM; echo child $$; while :; do sleep 0.05; done";
    let running = tree(&server, &[], script).start();
    let child: i32 = running.line("child ").parse().unwrap();
    running.process.kill9();
    eventually(SOON, || !is_alive(child));
    assert!(running.stdout().ends_with("cleaned up\n"));
    assert!(
        running
            .stderr()
            .contains("lockctl: lockctl was killed; ending the command")
    );
}

#[test]
fn sigkill_of_the_guard_process_ends_the_command() {
    let server = RedisServer::start();
    let script = "echo guard $PPID; echo child $$; exec sleep 60";
    let running = tree(&server, &[], script).start();
    let guard: i32 = running.line("guard ").parse().unwrap();
    let child: i32 = running.line("child ").parse().unwrap();
    send(guard, Signal::KILL);
    assert_eq!(running.wait().code, Some(137));
    assert!(!is_alive(child));
    assert!(!exists(&server, KEY));
}

/// A service manager sends SIGTERM to all processes of a service.
#[test]
fn sigterm_to_all_processes_leaves_the_end_to_the_command() {
    let server = RedisServer::start();
    let script = "trap 'sleep 0.3; exit 5' TERM; echo guard $PPID; echo child $$; while :; do sleep 0.05; done";
    let running = tree(&server, &[], script).start();
    let guard: i32 = running.line("guard ").parse().unwrap();
    let child: i32 = running.line("child ").parse().unwrap();
    for pid in [running.pid(), guard, child] {
        send(pid, Signal::TERM);
    }
    assert_eq!(running.wait().code, Some(5));
    assert!(!exists(&server, KEY));
}

#[test]
fn stopped_command_gets_sigterm_too() {
    let server = RedisServer::start();
    let running = tree(&server, &[], "echo child $$; kill -STOP $$; echo continued").start();
    let child: i32 = running.line("child ").parse().unwrap();
    running.process.kill9();
    eventually(SOON, || !is_alive(child));
}

/// Returns the letter of a process's state, as `ps` shows it.
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

#[test]
fn suspended_command_continues_with_lockctl() {
    let server = RedisServer::start();
    // The command starts no process: a shell that waits for one that has not begun is not shown as stopped.
    let running = tree(&server, &[], "echo child $$; exec sleep 60").start();
    let child: i32 = running.line("child ").parse().unwrap();
    let are_stopped = || [running.pid(), child].map(|pid| state(pid) == Some('T'));
    running.signal(Signal::TSTP);
    eventually(SOON, || are_stopped() == [true; 2]);
    running.signal(Signal::CONT);
    eventually(SOON, || are_stopped() == [false; 2]);
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code, Some(143));
}

/// As `nohup` and the background jobs of a shell need it.
#[test]
fn ignored_signals_stay_ignored() {
    let server = RedisServer::start();
    let inner =
        "echo child $$; grep SigIgn /proc/$$/status | sed 's/.*\\(....\\)$/ignored \\1/'; sleep 60";
    let script = format!(
        "trap '' HUP; exec {} run --name {NAME} -- sh -c '{}'",
        crate::program::LOCKCTL,
        inner.replace('\'', "'\\''")
    );
    let running = Lockctl::on(
        &server,
        &[
            "run",
            "--name",
            "outer",
            "--keep-url",
            "--",
            "sh",
            "-c",
            &script,
        ],
    )
    .start();
    // Bit 0 is HUP.
    let ignored = running.line("ignored ");
    assert_eq!(
        u64::from_str_radix(&ignored, 16).unwrap() & 1,
        1,
        "{ignored}"
    );
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code, Some(143));
}

#[test]
fn environment_of_the_command_names_the_lock_and_not_the_password() {
    let server = RedisServer::options().password("secret").start();
    let show = "env | grep -E 'LOCKCTL_|DISTRIBUTED_' | sort";
    let outcome = tree(&server, &[], show).run();
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert!(
        lines[0].starts_with("LOCKCTL_FENCING_TOKEN="),
        "{outcome:?}"
    );
    assert_eq!(lines[1..], ["LOCKCTL_KEY=lock:job", "LOCKCTL_NAME=job"]);
    let outcome = tree(&server, &["--keep-url"], show).run();
    assert!(
        outcome
            .stdout
            .contains(&format!("DISTRIBUTED_LOCK_URL={}", server.url()))
    );
}

#[test]
fn fencing_token_grows_in_env() {
    let server = RedisServer::start();
    let mut last = 0;
    for _ in 0..5 {
        let outcome = tree(&server, &[], "echo $LOCKCTL_FENCING_TOKEN").run();
        let token: u64 = outcome.stdout.trim().parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// A process that the command leaves behind runs without the lock.
#[test]
fn lock_is_released_when_the_command_exits() {
    let server = RedisServer::start();
    let running = tree(&server, &[], "sleep 60 & echo left $!").start();
    let left: i32 = running.line("left ").parse().unwrap();
    assert_eq!(running.wait().code, Some(0));
    assert!(!exists(&server, KEY));
    assert!(is_alive(left));
    send(left, Signal::KILL);
}
