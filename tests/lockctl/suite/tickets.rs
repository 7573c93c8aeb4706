//! `run --resume -`.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lock_core::LockManager;
use test_support::RedisServer;
use test_support::fixtures::{KEY, NAME, exists};

use crate::admin::on;
use crate::program::LOCKCTL;

/// Makes a ticket in this process, as a service does.
fn ticket(server: &RedisServer) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let held = locks.lock(NAME).acquire().await.unwrap();
        let ticket = held.into_ticket(Duration::from_secs(60)).await.unwrap();
        locks.shutdown().await.unwrap();
        ticket.to_string()
    })
}

fn resume(server: &RedisServer, input: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(LOCKCTL)
        .args(["run", "--resume", "-"])
        .args(arguments)
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = program.stdin.take().unwrap();
    // A program that refuses its arguments reads nothing.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    program.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn command_runs_under_the_lock_of_a_ticket_and_reads_the_rest_of_stdin() {
    let server = RedisServer::start();
    let ticket = ticket(&server);
    assert!(exists(&server, KEY));
    let script = "echo $LOCKCTL_NAME $LOCKCTL_KEY; test -n \"$LOCKCTL_FENCING_TOKEN\"; cat";
    let command = ["--", "sh", "-c", script];
    let output = resume(&server, &format!("{ticket}\nfor the command"), &command);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout), "job lock:job\nfor the command");
    assert!(!exists(&server, KEY), "the lock is released");

    // The ticket was used.
    let output = resume(&server, &ticket, &["--", "true"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert_eq!(
        text(&output.stderr),
        "lockctl: the ticket for the lock `job` can no longer be resumed (its key was removed); nothing was run \
         (exit 75)\n"
    );
    let output = resume(&server, &ticket, &["-E", "3", "--json", "--", "true"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&error["kind"], &error["code"]),
        (&"ticket-ended".into(), &"ticket_ended".into())
    );
}

#[test]
fn text_that_is_no_ticket_runs_nothing_and_is_not_shown() {
    let server = RedisServer::start();
    let ticket = ticket(&server);
    let cut = &ticket[..ticket.len() - 1];
    for input in ["", "\n", cut, "lt1.secret"] {
        let output = resume(&server, input, &["--", "echo", "ran"]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let error = text(&output.stderr);
        assert!(error.starts_with("lockctl: invalid --resume: "), "{error}");
        assert!(
            !error.contains(&ticket[4..20]) && !error.contains("secret"),
            "{error}"
        );
        assert_eq!(text(&output.stdout), "");
    }
    for flags in [
        ["--name", "other"].as_slice(),
        &["--read"],
        &["--permits", "2"],
    ] {
        let mut arguments = flags.to_vec();
        arguments.extend(["--", "true"]);
        assert_eq!(resume(&server, &ticket, &arguments).status.code(), Some(64));
    }
    let in_arguments = on(&server, &["run", "--resume", &ticket, "--", "true"]);
    assert_eq!(in_arguments.code, Some(64), "{in_arguments:?}");
    let prefix = resume(&server, &ticket, &["--prefix", "other:", "--", "true"]);
    assert_eq!(prefix.status.code(), Some(78), "{prefix:?}");
    assert_eq!(
        resume(&server, &ticket, &["--", "true"]).status.code(),
        Some(0)
    );
}
