//! `list`, `show` and `release`.

use std::time::SystemTime;

use test_support::fixtures::{KEY, NAME, QUEUE, SOON, exists, queue_length};
use test_support::{RedisServer, eventually};

use crate::program::{Lockctl, Outcome, Running};
use crate::terminal::Terminal;

/// Runs a command that holds the lock until it is ended.
pub(crate) fn hold(server: &RedisServer, name: &str, label: &str) -> Running {
    let script = "echo child $$; exec sleep 60";
    let flags = [
        "run", "--name", name, "--label", label, "--ttl", "3s", "--", "sh", "-c", script,
    ];
    let holder = Lockctl::on(server, &flags).start();
    holder.line("child ");
    holder
}

/// Waits behind a holder.
pub(crate) fn wait(server: &RedisServer, label: &str) -> Running {
    let before = queue_length(server);
    let flags = [
        "run",
        "--name",
        NAME,
        "--label",
        label,
        "--wait",
        "1m",
        "--",
        "sh",
        "-c",
        "echo ran; sleep 60",
    ];
    let waiter = Lockctl::on(server, &flags).start();
    eventually(SOON, || queue_length(server) == before + 1);
    waiter
}

pub(crate) fn on(server: &RedisServer, arguments: &[&str]) -> Outcome {
    Lockctl::on(server, arguments).run()
}

/// The lines of a table, with one space between the columns.
fn rows(outcome: &Outcome) -> Vec<String> {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines = outcome.stdout.lines();
    lines
        .map(|line| {
            let cells: Vec<_> = line
                .split("   ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect();
            cells.join(" | ")
        })
        .collect()
}

#[test]
fn list_shows_locks_in_the_order_of_their_names() {
    let server = RedisServer::start();
    assert_eq!(
        rows(&on(&server, &["list"])),
        ["NAME | HOLDER | SINCE | LEFT | WAITING"]
    );
    // Services may use another prefix.
    let nothing = |arguments: &[&str], key: &str, prefix: &str| {
        let outcome = on(&server, arguments);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let start =
            format!("lockctl: no lock has a key that matches `{key}`; the prefix is `{prefix}` (");
        assert!(outcome.stderr.starts_with(&start), "{outcome:?}");
    };
    nothing(&["list"], "lock:*", "lock:");
    nothing(&["list", "order:*"], "lock:order:*", "lock:");
    nothing(&["list", "--prefix", "shop:"], "shop:*", "shop:");
    let _holders = [
        hold(&server, NAME, "web-1:42"),
        hold(&server, "a", "web-2:7"),
        hold(&server, "order:1", "web-3:9"),
    ];
    let _waiter = wait(&server, "web-4:1");
    server.cli(&["SET", "lock:theirs", "uuid", "PX", "60000"]);
    let outcome = on(&server, &["list"]);
    let rows_of = rows(&outcome);
    assert_eq!(rows_of.len(), 4, "{outcome:?}");
    for (row, start) in rows_of[1..].iter().zip([
        "a | web-2:7 | ",
        "job | web-1:42 | ",
        "order:1 | web-3:9 | ",
    ]) {
        assert!(row.starts_with(start) && row.contains(" ago | "), "{row}");
    }
    assert!(rows_of[2].ends_with(" | 1"), "{}", rows_of[2]);
    assert_eq!(
        outcome.stderr,
        "lockctl: 1 key of another program is not shown; --all shows it\n"
    );
    let all = rows(&on(&server, &["list", "--all"]));
    assert!(
        all[4].starts_with("theirs | a client of another library | - | "),
        "{all:?}"
    );
    assert_eq!(rows(&on(&server, &["list", "order:*"])).len(), 2);
    let limited = on(&server, &["list", "--limit", "2", "-v"]);
    assert_eq!(rows(&limited).len(), 3);
    assert!(
        limited
            .stderr
            .starts_with("lockctl: more locks match; raise --limit"),
        "{limited:?}"
    );
}

#[test]
fn list_of_old_locks_leaves_out_younger_ones() {
    let server = RedisServer::start();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_ms = now.unwrap().as_millis();
    for (name, minutes) in [("young", 1), ("old", 10), ("older", 20)] {
        let owner_id = "00000001-0000-4000-8000-000000000000";
        let value = format!("lk1:{owner_id} 7 {} web-1:42", now_ms - minutes * 60_000);
        server.cli(&["SET", &format!("lock:{name}"), &value, "PX", "600000"]);
    }
    // The server does not know for how long.
    server.cli(&["SET", "lock:theirs", "uuid", "PX", "60000"]);
    let names = |flags: &[&str]| {
        let mut arguments = vec!["list"];
        arguments.extend(flags);
        let listed = rows(&on(&server, &arguments));
        let names = listed
            .iter()
            .skip(1)
            .map(|row| row.split(" | ").next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["old", "older", "young"]);
    assert_eq!(names(&["--older-than", "5m"]), ["old", "older"]);
    assert_eq!(names(&["--older-than", "5m", "--all"]), ["old", "older"]);
    assert_eq!(names(&["--older-than", "15m"]), ["older"]);
    assert_eq!(names(&["--older-than", "0s"]), ["old", "older", "young"]);
    // The limit counts old locks only.
    let limited = on(&server, &["list", "--older-than", "15m", "--limit", "1"]);
    assert_eq!((rows(&limited).len(), &*limited.stderr), (2, ""));
    let none = on(&server, &["list", "--older-than", "1h"]);
    let text =
        "lockctl: no lock has a key that matches `lock:*` and has been held for 60 min; the prefix";
    assert!(none.stderr.starts_with(text), "{none:?}");
    assert_eq!(none.code, Some(0));
}

#[test]
fn list_needs_the_right_to_scan() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-scan",
    ]);
    let url = format!("redis://app:secret@{}", server.address());
    let outcome = Lockctl::new(&["list"])
        .env("DISTRIBUTED_LOCK_URL", &url)
        .run();
    assert_eq!(outcome.code, Some(77), "{outcome:?}");
    assert!(outcome.stderr.contains("+scan"), "{outcome:?}");
    // Without the right there are no similar names, and `show` works.
    let outcome = Lockctl::new(&["show", NAME])
        .env("DISTRIBUTED_LOCK_URL", &url)
        .run();
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (Some(1), "lockctl: no lock `job` is held\n")
    );
}

#[test]
fn show_names_the_holder_and_the_queue() {
    let server = RedisServer::start();
    let _holder = hold(&server, NAME, "web-1:42");
    let _waiters = [wait(&server, "web-2:7"), wait(&server, "web-3:9")];
    let outcome = on(&server, &["show", NAME]);
    assert_eq!(outcome.code, Some(0));
    let value = |name: &str| {
        let line = outcome
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name}: {}", outcome.stdout))
            .trim()
            .to_owned()
    };
    assert_eq!(value("key "), KEY);
    assert_eq!(value("state "), "held");
    assert_eq!(value("holder "), "web-1:42");
    assert!(value("token ").parse::<u64>().is_ok());
    assert!(value("since ").ends_with(" ago)"));
    assert!(value("left ").ends_with(", unless renewed"));
    assert_eq!(value("waiting "), "2");
    assert_eq!(value("0 "), "web-2:7   exclusive   waiting");
    assert_eq!(value("1 "), "web-3:9   exclusive   waiting");
    let quiet = on(&server, &["show", "-q", NAME]);
    assert_eq!(
        (quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()),
        (Some(0), "", "")
    );
}

#[test]
fn show_says_what_each_waiter_wants() {
    let server = RedisServer::start();
    share(&server, NAME);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let expires_at = now.unwrap().as_millis() + 60_000;
    for (at, kind) in ["s", "sr", "p8x2", "s?new"].into_iter().enumerate() {
        let owner_id = format!("{at}f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10");
        let entry = format!("{owner_id} {kind} 2000 {expires_at} lk1:lock::c web-{at}");
        server.cli(&["ZADD", QUEUE, &at.to_string(), &entry]);
    }
    let shown = rows(&on(&server, &["show", NAME]));
    let queue: Vec<_> = shown
        .iter()
        .map(String::as_str)
        .skip_while(|row| !row.starts_with("POSITION"))
        .collect();
    assert_eq!(
        queue,
        [
            "POSITION | WAITER | WANTS | STATE",
            "0 | web-0 | exclusive | waiting",
            "1 | web-1 | read | waiting",
            "2 | web-2 | 2 of 8 permits | waiting",
            "3 | web-3 | - | waiting",
        ]
    );
    let json = on(&server, &["show", NAME, "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let kinds: Vec<_> = json["queue"]
        .as_array()
        .unwrap()
        .iter()
        .map(|waiter| waiter["kind"].as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            Some("exclusive"),
            Some("read"),
            Some("2 of 8 permits"),
            None
        ]
    );
}

/// Writes a lock that three holders of permits share, as the library does.
pub(crate) fn share(server: &RedisServer, name: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_ms = now.unwrap().as_millis();
    let (key, holders) = (format!("lock:{name}"), format!("{{lock:{name}}}:h"));
    let value = format!("lks:8 12 {now_ms} web-1:42");
    server.cli(&["SET", &key, &value, "PX", "60000"]);
    let mut command = vec!["ZADD".to_owned(), holders.clone()];
    for (owner, numbers, label) in [("1", 1..=4, "web-1:42"), ("2", 1..=1, "web-2:7 #3f2a")] {
        for number in numbers {
            let owner_id = format!("{owner}f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10");
            command.push((now_ms + 50_000).to_string());
            command.push(format!("{owner_id} {number} {label}"));
        }
    }
    // A lease that has ended.
    command.push((now_ms - 1).to_string());
    command.push("3f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 1 web-3:9".to_owned());
    server.cli(&command);
    server.cli(&["PEXPIRE", &holders, "60000"]);
}

#[test]
fn show_of_a_shared_lock_names_its_holders() {
    let server = RedisServer::start();
    share(&server, NAME);
    let shown = rows(&on(&server, &["show", NAME])).join("\n");
    assert!(shown.contains("holders | 5 of 8 permits\n"), "{shown}");
    assert!(shown.contains("kind | 8 permits\n"), "{shown}");
    assert!(shown.contains("HOLDER | HOLDS | LEFT\n"), "{shown}");
    assert!(shown.contains("\nweb-1:42 | 4 | 4"), "{shown}");
    assert!(shown.contains("\nweb-2:7 #3f2a | 1 | 4"), "{shown}");
    assert!(!shown.contains("web-3:9"), "{shown}");
    // A list counts without reading the leases.
    let list = rows(&on(&server, &["list"]));
    assert!(list[1].contains("| (6 of 8 permits) |"), "{list:?}");
    let doctor = on(&server, &["doctor"]);
    assert!(doctor.stdout.contains("none among 1 locks"), "{doctor:?}");
}

/// Its value has the label of the first holder, who may be gone.
#[test]
fn release_of_a_shared_lock_counts_its_holders() {
    let server = RedisServer::start();
    share(&server, NAME);
    let outcome = on(&server, &["release", NAME, "--yes"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let text = "revoked the lock `job` of 5 of 8 permits; it is free in ";
    assert!(outcome.stdout.starts_with(text), "{outcome:?}");
    let end = ", and the holders learn of it at their next renewals\n";
    assert!(outcome.stdout.ends_with(end), "{outcome:?}");
}

#[test]
fn show_of_a_free_lock_suggests_similar_names() {
    let server = RedisServer::start();
    let _holder = hold(&server, "order:1", "web-1:42");
    let outcome = on(&server, &["show", "ordr:1"]);
    assert_eq!(outcome.code, Some(1));
    assert_eq!(
        outcome.stderr,
        "lockctl: no lock `ordr:1` is held; similar: order:1\n"
    );
    let quiet = on(&server, &["show", "-q", "ordr:1"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(1), ""));
    let outcome = on(&server, &["show", "other"]);
    assert_eq!(outcome.stderr, "lockctl: no lock `other` is held\n");
}

#[test]
fn release_revokes_and_the_holder_learns_why() {
    let server = RedisServer::start();
    let holder = hold(&server, NAME, "web-1:42");
    let waiter = wait(&server, "web-2:7");
    let release = Lockctl::on(
        &server,
        &["release", NAME, "--yes", "--reason", "stuck import"],
    );
    let outcome = release.env("USER", "ops").env("SUDO_USER", "").run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let start = "revoked the lock `job` of web-1:42; it is free in ";
    assert!(outcome.stdout.starts_with(start), "{outcome:?}");
    let ended = holder.wait();
    assert_eq!(ended.code, Some(79));
    assert!(
        ended.stderr.starts_with("lockctl: lost the lock `job`"),
        "{ended:?}"
    );
    waiter.line("ran");
}

/// In cron and in containers, no variable names the user.
#[test]
fn release_names_the_operator_without_a_variable_too() {
    let server = RedisServer::start();
    let release = |flags: &[&str]| {
        server.cli(&[
            "SET",
            KEY,
            "00000001-0000-4000-8000-000000000000 web-1",
            "PX",
            "60000",
        ]);
        let mut arguments = vec!["release", NAME, "--yes"];
        arguments.extend(flags);
        let mut release = Lockctl::on(&server, &arguments);
        for variable in ["SUDO_USER", "USER", "LOGNAME", "USERNAME"] {
            release = release.env(variable, "");
        }
        assert_eq!(release.run().code, Some(0));
        let value = server.cli(&["GET", KEY]);
        value.text().split_once(' ').unwrap().1.to_owned()
    };
    let by = release(&[]);
    assert!(
        by.starts_with("revoked by uid ") && by.contains('@'),
        "{by}"
    );
    assert_eq!(
        release(&["--by", "runbook 7", "--reason", "stuck"]),
        "revoked by runbook 7: stuck"
    );
}

#[test]
fn release_now_hands_over_at_once() {
    let server = RedisServer::start();
    let holder = hold(&server, NAME, "web-1:42");
    let waiter = wait(&server, "web-2:7");
    let outcome = on(&server, &["release", NAME, "--yes", "--now"]);
    assert_eq!(outcome.code, Some(0));
    assert_eq!(
        outcome.stdout,
        "freed the lock `job` of web-1:42; the next waiter has it\n"
    );
    waiter.line("ran");
    assert_eq!(holder.wait().code, Some(79));
}

#[test]
fn release_keeps_the_lock_of_the_next_holder() {
    let server = RedisServer::start();
    let _holder = hold(&server, NAME, "web-1:42");
    let outcome = on(&server, &["release", NAME, "--yes", "--token", "1"]);
    assert_eq!(outcome.code, Some(1));
    let start = "lockctl: the lock `job` changed: web-1:42 holds it now with token ";
    assert!(outcome.stderr.starts_with(start), "{outcome:?}");
    assert!(
        outcome.stderr.ends_with("; nothing was released\n"),
        "{outcome:?}"
    );
    assert!(exists(&server, KEY));
}

#[test]
fn release_asks_on_a_terminal_only() {
    let server = RedisServer::start();
    let _holder = hold(&server, NAME, "web-1:42");
    let outcome = on(&server, &["release", NAME]);
    assert_eq!(outcome.code, Some(64));
    let text = "lockctl: `release` asks before it takes a lock from its holder, and there is no terminal to ask; \
                pass --yes to release without a question\n";
    assert_eq!(outcome.stderr, text);
    for (answer, code) in [("\n", 1), ("n\n", 1), ("yes\n", 0)] {
        let mut terminal = Terminal::start(&server, &[crate::program::LOCKCTL, "release", NAME]);
        let question =
            "Revoke the lock `job` of web-1:42? It stays locked until its lease ends. [y/N] ";
        eventually(SOON, || terminal.screen().contains(question));
        assert!(
            terminal.screen().contains("token "),
            "{}",
            terminal.screen()
        );
        terminal.press(answer);
        assert_eq!(terminal.code(), Some(code), "{}", terminal.screen());
    }
    // The lock is blocked now.
    let outcome = on(&server, &["release", NAME, "--yes"]);
    assert_eq!(outcome.code, Some(1));
    let start = "lockctl: the lock `job` has no holder; kept locked for ";
    assert!(outcome.stderr.starts_with(start), "{outcome:?}");
    assert!(
        outcome.stderr.ends_with("; --now frees it\n"),
        "{outcome:?}"
    );
    let outcome = on(&server, &["release", NAME, "--yes", "--now"]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(0), "freed the lock `job`\n")
    );
    assert!(!exists(&server, KEY));
}

#[test]
fn release_of_a_free_lock_suggests_similar_names() {
    let server = RedisServer::start();
    let _holder = hold(&server, "order:1", "web-1:42");
    let outcome = on(&server, &["release", "--yes", "ordr:1"]);
    assert_eq!(outcome.code, Some(1));
    assert_eq!(
        outcome.stderr,
        "lockctl: no lock `ordr:1` is held; similar: order:1\n"
    );
}

#[test]
fn run_behind_a_revoked_lock_says_so() {
    let server = RedisServer::start();
    let _holder = hold(&server, NAME, "web-1:42");
    let release = Lockctl::on(&server, &["release", NAME, "--yes", "--reason", "stuck"]);
    assert_eq!(release.env("USER", "ops").run().code, Some(0));
    let outcome = on(&server, &["run", "--name", NAME, "--", "true"]);
    assert_eq!(outcome.code, Some(75));
    let start = "lockctl: the lock `job` has no holder; kept locked for ";
    assert!(outcome.stderr.starts_with(start), "{outcome:?}");
    assert!(
        outcome.stderr.contains(" s after it was revoked by "),
        "{outcome:?}"
    );
}

/// Returns the text without its times and numbers.
fn without_times(text: &str) -> String {
    let words = text.split(' ');
    let words: Vec<_> = words
        .map(|word| {
            let is_number = word.parse::<f64>().is_ok();
            let is_time = word.ends_with('Z') && word.contains('T');
            match (is_number, is_time) {
                (true, _) => "N",
                (_, true) => "T",
                _ => word,
            }
        })
        .collect();
    words.join(" ")
}

/// Each command says in the same words that the lock is not held.
#[test]
fn lock_that_min_hold_keeps_has_no_holder() {
    let server = RedisServer::start();
    let flags = ["--label", "web-1:42", "--ttl", "60s", "--min-hold", "50s"];
    let mut job = vec!["run", "--name", NAME];
    job.extend(flags);
    job.extend(["--", "true"]);
    assert_eq!(on(&server, &job).code, Some(0));
    let reason = "no holder; kept until T by --min-hold of web-1:42 (for N s)";
    let shown = on(&server, &["show", NAME]);
    assert_eq!(shown.code, Some(0));
    let state = format!("\nstate     {reason}\nwaiting   N\n");
    let text = without_times(&shown.stdout.replace("waiting   0", "waiting   N"));
    assert!(text.ends_with(&state), "{text}");
    for (arguments, start, end) in [
        (
            vec!["run", "--name", NAME, "--", "true"],
            "lockctl: the lock `job` has ",
            "; nothing was run (exit 75)\n",
        ),
        (
            vec!["release", NAME, "--yes"],
            "lockctl: the lock `job` has ",
            "; --now frees it\n",
        ),
    ] {
        let outcome = on(&server, &arguments);
        let expected = format!("{start}{reason}{end}");
        assert_eq!(without_times(&outcome.stderr), expected, "{outcome:?}");
    }
    let rows = rows(&on(&server, &["list"]));
    assert!(
        rows[1].starts_with("job | (none: --min-hold of web-1:42) | - | "),
        "{rows:?}"
    );
    // A program tells it from a revocation by the state.
    let shown = on(&server, &["show", NAME, "--json"]).stdout;
    assert!(shown.contains("\"state\":\"kept\""), "{shown}");
    let kept =
        "\"kept\":{\"by\":\"min_hold\",\"label\":\"web-1:42\",\"kind\":\"exclusive\",\"until\":\"";
    assert!(shown.contains(kept), "{shown}");
}

/// While the user reads the question, another client gets the lock. A lock without a token is known by
/// its value, and a lock without a holder too.
#[test]
fn release_takes_only_the_lock_that_it_showed() {
    let server = RedisServer::start();
    let set = |value: &str| server.cli(&["SET", KEY, value, "PX", "60000"]);
    let owner =
        |number: u32, label: &str| format!("{number:08}-0000-4000-8000-000000000000 {label}");
    let next = owner(2, "web-2:7");
    for (shown, flags) in [
        (owner(1, "web-1:42"), &[][..]),
        (owner(1, "web-1:42"), &["--now"]),
        // The min_hold of its last holder keeps it.
        (
            owner(0, "web-1:42").replace("-4000-8000", "-0000-0000"),
            &["--now"],
        ),
        ("of another library".to_owned(), &["--foreign"]),
    ] {
        set(&shown);
        let mut arguments = vec![crate::program::LOCKCTL, "release", NAME];
        arguments.extend(flags);
        let mut terminal = Terminal::start(&server, &arguments);
        eventually(SOON, || terminal.screen().ends_with("[y/N] "));
        set(&next);
        terminal.press("y\n");
        assert_eq!(terminal.code(), Some(1), "{}", terminal.screen());
        let text = "lockctl: the lock `job` changed: web-2:7 holds it now; nothing was released";
        eventually(SOON, || terminal.screen().contains(text));
        assert_eq!(server.cli(&["GET", KEY]).text(), next);
        // Without a change, the same command releases it.
        set(&shown);
        let mut terminal = Terminal::start(&server, &arguments);
        eventually(SOON, || terminal.screen().ends_with("[y/N] "));
        terminal.press("y\n");
        assert_eq!(terminal.code(), Some(0), "{}", terminal.screen());
    }
}
