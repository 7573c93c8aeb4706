//! What happens when the lock is lost while the command runs.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use test_support::fixtures::{KEY, NAME, SOON, exists, time_to_expiry};
use test_support::{RedisServer, Stopwatch, eventually};

use crate::program::{Lockctl, Running, is_alive, send};

/// How much later than its command lockctl may end, on a busy machine.
const RIGHT_AFTER: Duration = Duration::from_millis(500);

const STUBBORN: &str = "trap '' TERM; sh -c 'trap \"\" TERM; echo grandchild $$; exec sleep 60' & echo child $$; wait; wait";

#[test]
fn loss_ends_a_command_that_ignores_term() {
    let server = RedisServer::start();
    let flags = [
        "run",
        "--name",
        NAME,
        "--ttl",
        "1s",
        "--kill-after",
        "1s",
        // Without the warning that this is longer than the lease.
        "-q",
        "--",
        "sh",
        "-c",
        STUBBORN,
    ];
    let running = Lockctl::on(&server, &flags).start();
    let child: i32 = running.line("child ").parse().unwrap();
    let grandchild: i32 = running.line("grandchild ").parse().unwrap();
    let started = Instant::now();
    server.cli(&["DEL", KEY]);
    let outcome = running.wait();
    let elapsed = started.elapsed();
    assert_eq!(outcome.code, Some(79));
    assert!(!is_alive(child) && !is_alive(grandchild));
    let (bound, slack) = (Duration::from_secs(2), Duration::from_secs(2));
    assert!(elapsed < bound + slack, "lease and kill-after: {elapsed:?}");
    assert_eq!(
        outcome.stderr,
        "lockctl: lost the lock `job` (its key was removed); ending the command\n"
    );
}

/// A command that prints a line for each SIGTERM. It never sleeps, so that two signals in quick succession don't merge
/// into one.
const COUNTING: &str = "trap 'echo got TERM' TERM; echo child $$; while :; do :; done";

fn start(server: &RedisServer, flags: &[&str], script: &str) -> Running {
    let start = ["run", "--name", NAME, "--ttl", "1s", "-q"];
    let command = ["--", "sh", "-c", script];
    Lockctl::on(server, &[&start[..], flags, &command].concat()).start()
}

#[test]
fn loss_sends_sigterm_once() {
    let server = RedisServer::start();
    let running = start(&server, &["--kill-after", "500ms"], COUNTING);
    running.line("child ");
    server.cli(&["DEL", KEY]);
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    assert_eq!(outcome.stdout.matches("got TERM").count(), 1, "{outcome:?}");
}

/// The command is stopped, so that SIGTERM waits for it.
#[test]
fn loss_during_a_stop_sends_sigterm_once() {
    let server = RedisServer::start();
    let running = start(&server, &["--kill-after", "500ms"], COUNTING);
    running.line("child ");
    running.signal(Signal::TSTP);
    eventually(SOON, || !exists(&server, KEY));
    running.signal(Signal::CONT);
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    assert_eq!(outcome.stdout.matches("got TERM").count(), 1, "{outcome:?}");
}

/// A signal that the user sends to lockctl still reaches the command.
#[test]
fn signals_reach_a_command_that_cleans_up_after_a_loss() {
    let server = RedisServer::start();
    let script = "trap 'echo got TERM' TERM; trap 'echo got USR1; exit 0' USR1
                  echo child $$; while :; do sleep 0.05; done";
    let running = start(&server, &["--kill-after", "30s"], script);
    running.line("child ");
    server.cli(&["DEL", KEY]);
    running.line("got TERM");
    running.signal(Signal::USR1);
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    assert!(outcome.stdout.ends_with("got USR1\n"), "{outcome:?}");
}

/// Waits for the death of the command, and then for the end of lockctl.
#[track_caller]
fn ends_right_after(running: &Running, child: i32) {
    eventually(SOON, || !is_alive(child));
    let died = Stopwatch::start();
    let outcome = running.wait();
    let later = died.elapsed();
    assert!(
        later < RIGHT_AFTER + died.stalled(),
        "{later:?} later: {outcome:?}"
    );
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
}

#[test]
fn lockctl_ends_right_after_a_command_that_it_killed() {
    let server = RedisServer::start();
    let running = start(&server, &["--kill-after", "300ms"], STUBBORN);
    let child = running.line("child ").parse().unwrap();
    let grandchild: i32 = running.line("grandchild ").parse().unwrap();
    server.cli(&["DEL", KEY]);
    ends_right_after(&running, child);
    assert!(!is_alive(grandchild));
}

/// The grandchild keeps the pipe of the command open, and lockctl kills it.
#[test]
fn lockctl_ends_right_after_a_grandchild_with_a_pipe() {
    let server = RedisServer::start();
    let script = "echo child $$; (trap '' TERM; sh -c 'echo grandchild $$; exec sleep 60') | cat";
    let running = start(&server, &["--kill-after", "300ms"], script);
    let grandchild = running.line("grandchild ").parse().unwrap();
    server.cli(&["DEL", KEY]);
    ends_right_after(&running, grandchild);
}

#[test]
fn lockctl_ends_right_after_its_command_without_a_server() {
    let server = RedisServer::start();
    let running = start(&server, &[], "echo child $$; exec sleep 60");
    let child = running.line("child ").parse().unwrap();
    server.kill9();
    ends_right_after(&running, child);
}

/// Without the guard process, lockctl has to kill the command.
#[test]
fn loss_after_the_guard_process_was_killed_ends_the_command() {
    let server = RedisServer::start();
    let script = format!("echo guard $PPID; {STUBBORN}");
    let running = start(&server, &["--kill-after", "300ms"], &script);
    let guard = running.line("guard ").parse().unwrap();
    let child = running.line("child ").parse().unwrap();
    let grandchild: i32 = running.line("grandchild ").parse().unwrap();
    server.cli(&["DEL", KEY]);
    eventually(SOON, || running.stderr().contains("lost the lock"));
    send(guard, Signal::KILL);
    ends_right_after(&running, child);
    assert!(!is_alive(grandchild));
}

#[test]
fn loss_gives_the_command_time_to_clean_up() {
    let server = RedisServer::start();
    let script = "trap 'echo cleaned up; exit 9' TERM; echo child $$; while :; do sleep 0.05; done";
    let flags = [
        "run", "--name", NAME, "--ttl", "1s", "--", "sh", "-c", script,
    ];
    let running = Lockctl::on(&server, &flags).start();
    running.line("child ");
    server.cli(&["DEL", KEY]);
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(79));
    assert!(outcome.stdout.ends_with("cleaned up\n"));
}

#[test]
fn outage_of_the_server_ends_the_command_at_the_end_of_the_lease() {
    let server = RedisServer::start();
    let flags = [
        "run",
        "--name",
        NAME,
        "--ttl",
        "1s",
        "--",
        "sh",
        "-c",
        "echo child $$; exec sleep 60",
    ];
    let running = Lockctl::on(&server, &flags).start();
    running.line("child ");
    server.kill9();
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(79));
    assert_eq!(
        outcome.stderr,
        "lockctl: lost the lock `job` (its lease ended); ending the command\n"
    );
}

#[test]
fn max_hold_ends_the_command() {
    let server = RedisServer::start();
    let flags = [
        "run",
        "--name",
        NAME,
        "--ttl",
        "500ms",
        "--max-hold",
        "1s",
        "--",
        "sleep",
        "60",
    ];
    let outcome = Lockctl::on(&server, &flags).run();
    assert_eq!(outcome.code, Some(79));
    assert_eq!(
        outcome.stderr,
        "lockctl: lost the lock `job` (held for the `--max-hold` of 1 s); ending the command\n"
    );
}

/// The server has the lock for longer than `--max-hold`, and does not answer to the release.
#[test]
fn release_after_max_hold_that_is_not_confirmed_is_a_warning() {
    let server = RedisServer::start();
    let flags = ["run", "--name", NAME, "--ttl", "4s", "--max-hold", "4200ms"];
    let command = ["--", "sh", "-c", "echo ready; exec sleep 60"];
    let running = Lockctl::on(&server, &[&flags[..], &command].concat()).start();
    running.line("ready");
    // The first renewal moves the end of the lease behind that of the hold.
    let mut before = time_to_expiry(&server, KEY);
    eventually(SOON, || {
        let left = time_to_expiry(&server, KEY);
        left > std::mem::replace(&mut before, left)
    });
    // The server may write this test's reply before that of the renewal. Its next reply comes after both.
    time_to_expiry(&server, KEY);
    server.stop();
    let outcome = running.wait();
    server.cont();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    let lost = "lost the lock `job` (held for the `--max-hold` of 4.2 s); ending the command";
    assert!(outcome.stderr.contains(lost), "{outcome:?}");
    let warning = "did not confirm that lockctl gave up the lock `job`; if lockctl still has it, it ends within 4 s";
    assert!(outcome.stderr.contains(warning), "{outcome:?}");
}

#[test]
fn loss_that_the_command_outlives_is_a_warning() {
    let server = RedisServer::start();
    // The command removes the lock, and ends before the next renewal.
    let port = server.port().to_string();
    let script = format!("redis-cli -p {port} DEL {KEY} >&2 >/dev/null; exit 4");
    let outcome = Lockctl::on(&server, &["run", "--name", NAME, "--", "sh", "-c", &script]).run();
    assert_eq!(outcome.code, Some(4));
    assert_eq!(
        outcome.stderr,
        "lockctl: warning: the lock `job` was lost before the command ended; check its work\n"
    );
}

#[test]
fn release_that_fails_is_a_warning() {
    let server = RedisServer::start();
    let script = format!("kill -9 {}; exit 4", server.pid());
    let outcome = Lockctl::on(&server, &["run", "--name", NAME, "--", "sh", "-c", &script]).run();
    assert_eq!(outcome.code, Some(4));
    assert!(
        outcome
            .stderr
            .starts_with("lockctl: warning: the lock `job` was not released ("),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.ends_with("; it ends within 30 s\n"),
        "{outcome:?}"
    );
}

#[test]
fn min_hold_keeps_the_name_locked() {
    let server = RedisServer::start();
    let flags = ["run", "--name", NAME, "--min-hold", "20s", "--", "true"];
    assert_eq!(Lockctl::on(&server, &flags).run().code, Some(0));
    assert!(exists(&server, KEY));
    assert_eq!(Lockctl::on(&server, &flags).run().code, Some(75));
}

/// A command that says how often it was warned. It never sleeps, so that the signals don't merge into one.
const WARNED: &str =
    "n=0; trap 'n=$((n+1)); echo warned $n' USR1; echo child $$; while :; do :; done";

#[test]
fn command_is_warned_each_time_the_lock_is_at_risk() {
    let server = RedisServer::start();
    let start = [
        "run",
        "--name",
        NAME,
        "--ttl",
        "3s",
        "--warn-signal",
        "usr1",
    ];
    let command = ["--kill-after", "200ms", "--", "sh", "-c", WARNED];
    let running = Lockctl::on(&server, &[&start[..], &command].concat()).start();
    running.line("child ");
    for time in ["1", "2"] {
        let stopped = Instant::now();
        server.stop();
        running.line(&format!("warned {time}"));
        assert!(
            stopped.elapsed() < Duration::from_millis(2_800),
            "it is lost"
        );
        server.cont();
        // A renewal has succeeded when the lease has more than half of its ttl again.
        let renewed = Duration::from_millis(2_200);
        eventually(SOON, || time_to_expiry(&server, KEY) > renewed);
        // The look comes 100 ms later at most.
        std::thread::sleep(Duration::from_millis(300));
    }
    server.stop();
    running.line("warned 3");
    let outcome = running.wait();
    server.cont();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    let warning = "warning: the lock `job` was not renewed in time, and is lost in 1.";
    assert_eq!(outcome.stderr.matches(warning).count(), 3, "{outcome:?}");
    let sent = "unless that succeeds; sent SIGUSR1 to the command";
    assert_eq!(outcome.stderr.matches(sent).count(), 3, "{outcome:?}");
}

#[test]
fn removed_lock_is_lost_without_a_warning() {
    let server = RedisServer::start();
    let running = start(
        &server,
        &["--warn-signal", "SIGUSR1", "--kill-after", "200ms"],
        WARNED,
    );
    running.line("child ");
    server.cli(&["DEL", KEY]);
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    assert!(!outcome.stdout.contains("warned"), "{outcome:?}");
}

#[test]
fn warn_signal_is_one_that_reaches_the_command() {
    let server = RedisServer::start();
    let outcome = Lockctl::on(
        &server,
        &["run", "--name", NAME, "--warn-signal", "KILL", "--", "true"],
    )
    .run();
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
    assert!(
        outcome.stderr.contains("USR1, USR2, HUP, TERM"),
        "{outcome:?}"
    );
}
