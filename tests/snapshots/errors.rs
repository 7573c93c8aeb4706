//! The texts of the errors that a server can cause, for an acquire, a renewal and a release.

use std::error::Error;
use std::fmt::Write as _;

use lock_core::{LockError, LockManager, Renew};
use test_support::fixtures::{LONG, NAME, SOON, ms};
use test_support::stand_in::{Answer, Quirk, Target, limits};
use test_support::{RedisServer, StandIn};
use tests::one_attempt;

use crate::check;

/// What the server says when it does not execute a command.
const REFUSALS: [&str; 24] = [
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist on disk.",
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "NOPERM User app has no permissions to run the 'evalsha' command",
    "NOPERM No permissions to access a key",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    "CLUSTERDOWN The cluster is down",
    "MOVED 15495 127.0.0.1:7001",
    "ASK 15495 127.0.0.1:7001",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "ERR max number of clients reached",
    limits::REQUESTS,
    limits::DENIED,
    limits::CLIENTS,
    "ERR unknown command 'EVALSHA', with args beginning with: 'secret' ",
    "ERR Error running script (call to f_0): @user_script:1: -READONLY You can't write against a read only replica.",
    "SOMETHING that no server says today",
];

/// How the operating system says that a connection has ended.
const ENDS: [&str; 4] = [
    "(broken pipe)",
    "(connection reset by peer)",
    "(the server closed the connection)",
    "(unexpected end of file)",
];

/// Writes what an error says to people and to programs.
fn line(operation: &str, outcome: Result<(), LockError>, stand_in: &StandIn) -> String {
    let Err(error) = outcome else {
        return format!("{operation}: no error\n");
    };
    let mut text = if let LockError::Backend(backend) = &error {
        format!("{operation}: [{:?}] {error}\n", backend.kind())
    } else {
        // `{:?}` begins with the variant.
        let debug = format!("{error:?}");
        let end = debug.find(|it: char| !it.is_alphanumeric());
        let variant = &debug[..end.unwrap_or(debug.len())];
        format!("{operation}: {variant}: {error}\n")
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = writeln!(text, "  caused by: {error}");
        cause = error.source();
    }
    text.replace(&stand_in.address().to_string(), "<address>")
}

/// Each operation gets the answer, on connections that were ready before.
async fn provoked(server: &RedisServer, answer: &Answer) -> String {
    let stand_in = StandIn::start(server, []);
    let builder = one_attempt(LockManager::builder()).command_timeout(ms(1000));
    let locks = builder.connect(&stand_in.url()).await.unwrap();
    let mut text = String::new();
    let quirks =
        || ["EVALSHA", "EVAL"].map(|verb| Quirk::Replies(Target::Command(verb), answer.clone()));
    let lock = || locks.lock(NAME).ttl(LONG).renew(Renew::Never);
    let held = lock().acquire().await.unwrap();
    stand_in.set(quirks());
    text += &line("renew", held.renew().await, &stand_in);
    stand_in.set([]);
    held.release().await.unwrap();
    stand_in.set(quirks());
    text += &line("acquire", lock().acquire().await.map(drop), &stand_in);
    stand_in.set([]);
    let held = lock().wait(SOON).acquire().await.unwrap();
    stand_in.set(quirks());
    text += &line("release", held.release().await, &stand_in);
    stand_in.set([]);
    // A release that the server has forbidden is an error, and would count as open until its lease ends.
    let _ends_or_fails = locks.shutdown().await;
    server.cli(&["FLUSHALL"]);
    text
}

#[tokio::test]
async fn errors_of_commands_have_the_recorded_texts() {
    let server = RedisServer::start();
    let mut text = "The texts of errors\n".to_owned();
    for refusal in REFUSALS {
        let answer = Answer::Error(refusal.to_owned());
        let _ = write!(text, "\n# -{refusal}\n{}", provoked(&server, &answer).await);
    }
    for (title, answer) in [
        ("a reply that is no RESP", Answer::Malformed),
        ("a reply of another type", Answer::Raw(b":7\r\n".to_vec())),
        ("an unknown status", Answer::Raw(b"+hello\r\n".to_vec())),
        ("an empty array", Answer::Raw(b"*0\r\n".to_vec())),
        ("a nil", Answer::Raw(b"$-1\r\n".to_vec())),
        ("a closed connection", Answer::Closes),
        ("no reply in time", Answer::Silence),
    ] {
        let _ = write!(text, "\n# {title}\n{}", provoked(&server, &answer).await);
    }
    check("errors.txt", &text);
}

/// The same refusals, of each command of the handshake.
#[tokio::test]
async fn errors_of_connect_have_the_recorded_texts() {
    let server = RedisServer::start();
    let mut text = "The texts of errors of connect\n".to_owned();
    let connect = async |stand_in: &StandIn| {
        let builder = one_attempt(LockManager::builder()).command_timeout(ms(1000));
        let connected = builder.connect(&stand_in.url()).await;
        let text = line("connect", connected.map(drop), stand_in);
        // That depends on whether the client was still sending.
        ENDS.iter().fold(text, |text, end| {
            text.replace(end, "(<how the connection ended>)")
        })
    };
    for verb in ["HELLO", "ROLE", "INFO", "TIME", "SCRIPT"] {
        for refusal in REFUSALS {
            let answer = Answer::Error(refusal.to_owned());
            let stand_in = StandIn::start(&server, [Quirk::Replies(Target::Command(verb), answer)]);
            let _ = write!(text, "\n# {verb}: -{refusal}\n{}", connect(&stand_in).await);
        }
        for (title, answer) in [
            ("a reply that is no RESP", Answer::Malformed),
            ("a reply of another type", Answer::Raw(b":7\r\n".to_vec())),
            ("a closed connection", Answer::Closes),
            ("no reply in time", Answer::Silence),
        ] {
            let stand_in = StandIn::start(&server, [Quirk::Replies(Target::Command(verb), answer)]);
            let _ = write!(text, "\n# {verb}: {title}\n{}", connect(&stand_in).await);
        }
    }
    let stand_in = StandIn::start(
        &server,
        [Quirk::RefusesClients(
            "ERR max number of clients reached".to_owned(),
        )],
    );
    let _ = write!(
        text,
        "\n# each connection is refused\n{}",
        connect(&stand_in).await
    );
    check("errors_of_connect.txt", &text);
}
