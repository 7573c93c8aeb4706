//! Text from outside reaches a terminal escaped: names, labels, and what a server says.

use test_support::fixtures::KEY;
use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{RedisServer, StandIn};

use crate::admin::{hold, on, wait};
use crate::doctor::Findings;
use crate::program::{Lockctl, Outcome};

/// A red text, and a line that pretends to be this program's.
const HOSTILE: &str = "a\x1b[31m\nlockctl: b";
const ESCAPED: &str = "a\\u{1b}[31m\\u{a}lockctl: b";

/// Checks that the output has the escaped text, and no control character but line feeds.
#[track_caller]
fn is_escaped(text: &str, expected: &str) {
    let is_raw = |letter: char| letter.is_control() && letter != '\n';
    assert!(!text.contains(is_raw), "{text:?}");
    assert!(text.contains(expected), "no `{expected}` in {text:?}");
    assert!(!text.contains("\nlockctl: b"), "{text:?}");
}

#[test]
fn names_from_arguments_are_escaped() {
    let server = RedisServer::start();
    let Outcome { code, stderr, .. } = on(&server, &["run", "--name", HOSTILE, "-v", "--", "true"]);
    assert_eq!(code, Some(0), "{stderr:?}");
    is_escaped(&stderr, &format!("acquired the lock `{ESCAPED}` (token "));
    // Losing it names the lock too.
    let max_hold = ["--ttl", "2s", "--max-hold", "2100ms"];
    let mut arguments = vec!["run", "--name", HOSTILE, "--kill-after", "1s"];
    arguments.extend(max_hold);
    arguments.extend(["--", "sleep", "60"]);
    let Outcome { code, stderr, .. } = on(&server, &arguments);
    assert_eq!(code, Some(79), "{stderr:?}");
    is_escaped(&stderr, &format!("lost the lock `{ESCAPED}` (held for "));
    let Outcome { code, stderr, .. } = on(&server, &["run", "--name", "a", "--", HOSTILE]);
    assert_eq!(code, Some(127), "{stderr:?}");
    is_escaped(&stderr, &format!("the command `{ESCAPED}` was not found"));
}

#[test]
fn names_and_labels_of_locks_are_escaped() {
    let server = RedisServer::start();
    let _holder = hold(&server, HOSTILE, "web-1:42");
    is_escaped(&on(&server, &["list"]).stdout, ESCAPED);
    let shown = on(&server, &["show", HOSTILE]).stdout;
    is_escaped(&shown, &format!("name      {ESCAPED}\n"));
    is_escaped(&shown, &format!("key       lock:{ESCAPED}\n"));
    // Another client chose the value.
    let owner = "00000001-0000-4000-8000-000000000000";
    let value = format!("{owner} {HOSTILE}");
    server.cli(&["SET", KEY, &value, "PX", "60000"]);
    let _waiter = wait(&server, "web-2:7");
    for arguments in [&["list"][..], &["show", "job"], &["watch", "job"]] {
        let program = Lockctl::on(&server, arguments);
        let text = match arguments {
            ["watch", ..] => {
                let running = program.start();
                let line = running.line("");
                drop(running);
                line
            }
            _ => program.run().stdout,
        };
        is_escaped(&text, "31m");
    }
    let released = on(&server, &["release", "job", "--yes"]);
    is_escaped(&released.stdout, "31m");
}

#[test]
fn findings_of_doctor_are_escaped() {
    let server = RedisServer::start();
    let info = "redis_version:7.2.\x1b[31m4\r\nmaxmemory_policy:\x1b[31mred\r\nrole:master\r\n";
    let info = format!("${}\r\n{info}\r\n", info.len()).into_bytes();
    let replies = |answer| Quirk::Replies(Target::Command("INFO"), answer);
    let stand_in = StandIn::start(&server, [replies(Answer::Raw(info))]);
    let doctor = || {
        let doctor = Lockctl::new(&["doctor"]);
        doctor.env("DISTRIBUTED_LOCK_URL", stand_in.url()).run()
    };
    let Outcome { stdout, .. } = doctor();
    is_escaped(&stdout, "Redis 7.2.\\u{1b}[31m4");
    is_escaped(&stdout, "maxmemory-policy is \\u{1b}[31mred");
    // The texts for people are the same in JSON.
    let findings = Findings::of(&stand_in.url(), &[]);
    assert_eq!(findings.text("version"), "Redis 7.2.\\u{1b}[31m4");
    stand_in.set([replies(Answer::Error("ERR \x1b[31mred".to_owned()))]);
    let Outcome { stdout, .. } = doctor();
    is_escaped(&stdout, "\\u{1b}[31mred");
    // A key that another program wrote.
    stand_in.set([]);
    server.cli(&["SET", &format!("lock:{HOSTILE}"), "theirs"]);
    let Outcome { stdout, .. } = doctor();
    is_escaped(&stdout, &format!("`lock:{ESCAPED}` is without an expiry"));
}
