//! `run` with readers, permits and sets of locks.

use test_support::fixtures::{KEY, NAME, SOON, exists};
use test_support::{RedisServer, eventually};

use crate::admin::on;
use crate::program::{Lockctl, Running};

/// Starts a command that runs until it is ended, and waits until it runs.
fn start(server: &RedisServer, flags: &[&str]) -> Running {
    let mut arguments = vec!["run", "--ttl", "3s", "--label", "web-1:42"];
    arguments.extend(flags);
    arguments.extend(["--", "sh", "-c", "echo child $$; exec sleep 60"]);
    let running = Lockctl::on(server, &arguments).start();
    running.line("child ");
    running
}

/// Runs a command that ends at once, and returns the exit code and stderr.
fn run(server: &RedisServer, flags: &[&str]) -> (Option<i32>, String) {
    let mut arguments = vec!["run"];
    arguments.extend(flags);
    arguments.extend(["--", "true"]);
    let outcome = on(server, &arguments);
    (outcome.code, outcome.stderr)
}

#[test]
fn readers_run_together_and_exclude_a_writer() {
    let server = RedisServer::start();
    let reads = ["--name", NAME, "--read"];
    let readers = [start(&server, &reads), start(&server, &reads)];
    let (code, text) = run(&server, &["--name", NAME]);
    assert_eq!(code, Some(75), "{text}");
    let begin = "lockctl: the lock `job` is held by 2 readers for ";
    assert!(text.starts_with(begin), "{text}");
    assert_eq!(run(&server, &reads), (Some(0), String::new()));
    let waiter = Lockctl::on(
        &server,
        &["run", "--name", NAME, "--wait", "1m", "--", "true"],
    );
    let waiter = waiter.start();
    eventually(SOON, || {
        on(&server, &["show", NAME]).stdout.contains("exclusive")
    });
    // A reader does not pass the writer that waits.
    assert_eq!(run(&server, &reads).0, Some(75));
    for reader in readers {
        reader.signal(rustix::process::Signal::TERM);
        assert_eq!(reader.wait().code, Some(143));
    }
    assert_eq!(waiter.wait().code, Some(0));
    assert!(!exists(&server, KEY));
}

#[test]
fn permits_limit_how_many_run() {
    let server = RedisServer::start();
    let permits = ["--name", NAME, "--permits", "3"];
    let heavy: Vec<_> = permits.into_iter().chain(["--weight", "2"]).collect();
    let _heavy = start(&server, &heavy);
    // One is left.
    let (code, text) = run(&server, &heavy);
    assert_eq!(code, Some(75), "{text}");
    let begin = "lockctl: the lock `job` is held by 2 of 3 permits for ";
    assert!(text.starts_with(begin), "{text}");
    assert_eq!(run(&server, &permits), (Some(0), String::new()));
    let light = start(&server, &permits);
    assert_eq!(run(&server, &permits).0, Some(75));
    let shown = on(&server, &["show", NAME]).stdout;
    assert!(shown.contains("3 of 3 permits\n"), "{shown}");
    light.signal(rustix::process::Signal::TERM);
    assert_eq!(light.wait().code, Some(143));
    assert_eq!(run(&server, &permits).0, Some(0));
}

#[test]
fn set_of_names_is_acquired_whole_or_not_at_all() {
    let server = RedisServer::start();
    let both = ["--name", "b", "--name", "a"];
    let other = start(&server, &["--name", "b"]);
    let (code, text) = run(&server, &both);
    assert_eq!(code, Some(75), "{text}");
    let begin = "lockctl: the lock `b` is held by web-1:42 for ";
    assert!(text.starts_with(begin), "{text}");
    // The other lock stays free.
    eventually(SOON, || !exists(&server, "lock:a"));
    other.signal(rustix::process::Signal::TERM);
    assert_eq!(other.wait().code, Some(143));

    let set = start(&server, &both);
    for name in ["a", "b"] {
        let (code, text) = run(&server, &["--name", name]);
        assert_eq!(code, Some(75), "{text}");
    }
    set.signal(rustix::process::Signal::TERM);
    assert_eq!(set.wait().code, Some(143));
    for name in ["a", "b"] {
        assert_eq!(run(&server, &["--name", name]).0, Some(0));
    }
}

#[test]
fn command_with_a_set_finds_each_lock_in_its_environment() {
    let server = RedisServer::start();
    let script = "env | grep LOCKCTL_ | sort";
    let command = ["--", "sh", "-c", script];
    let mut arguments = vec!["run", "--name", "b", "--name", "a", "-v"];
    arguments.extend(command);
    // Left by a lockctl around this one.
    let outcome = Lockctl::on(&server, &arguments)
        .env("LOCKCTL_NAME", "outer")
        .env("LOCKCTL_FENCING_TOKEN", "7")
        .env("LOCKCTL_KEY_3", "outer")
        .run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let token = |name: &str| {
        let begin = format!("lockctl: acquired the lock `{name}` (token ");
        let line = outcome
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix(&begin));
        line.unwrap().trim_end_matches(')').to_owned()
    };
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            &format!("LOCKCTL_FENCING_TOKEN_1={}", token("b")),
            &format!("LOCKCTL_FENCING_TOKEN_2={}", token("a")),
            "LOCKCTL_KEY_1=lock:b",
            "LOCKCTL_KEY_2=lock:a",
            "LOCKCTL_NAME_1=b",
            "LOCKCTL_NAME_2=a",
        ]
    );
}

#[test]
fn loss_of_one_lock_of_a_set_ends_the_command() {
    let server = RedisServer::start();
    let set = start(&server, &["--name", "b", "--name", "a"]);
    server.cli(&["DEL", "lock:b"]);
    let outcome = set.wait();
    assert_eq!(outcome.code, Some(79), "{outcome:?}");
    let begin = "lockctl: lost one of the locks `b`, `a` (";
    assert!(outcome.stderr.starts_with(begin), "{outcome:?}");
    // The other one was released, and did not expire.
    assert!(!exists(&server, "lock:a"), "{outcome:?}");
}

#[test]
fn kinds_that_do_not_fit_are_refused() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let many: Vec<_> = (0..65).map(|at| format!("n:{at}")).collect();
    let many: Vec<_> = many.iter().flat_map(|name| ["--name", name]).collect();
    let cases: [(&[&str], &str); 6] = [
        (&["--name", "a", "--weight", "2"], "--permits"),
        (&["--name", "a", "--read", "--permits", "2"], "--permits"),
        (&["--name", "a", "--read", "--min-hold", "1s"], "--min-hold"),
        (&["--name", "a", "--permits", "0"], "--permits"),
        (
            &["--name", "a", "--permits", "4", "--weight", "5"],
            "invalid --weight (5 of 4 permits): it must not be larger than --permits",
        ),
        (&many, "too many --name: a set has at most 64;"),
    ];
    for (flags, part) in cases {
        let (code, text) = run(&servers[0], flags);
        assert_eq!(code, Some(64), "{flags:?}: {text}");
        assert!(text.contains(part) && !text.contains("::"), "{text}");
    }
    let hosts = servers
        .each_ref()
        .map(|server| server.address().to_string());
    let url = format!("redis+quorum://{}", hosts.join(","));
    let run = Lockctl::new(&["run", "--name", "a", "--read", "--", "true"]);
    let outcome = run.env("DISTRIBUTED_LOCK_URL", &url).run();
    assert_eq!(outcome.code, Some(78), "{outcome:?}");
    let begin = "lockctl: --read and --permits need one server, Sentinel or a cluster;";
    assert!(outcome.stderr.starts_with(begin), "{outcome:?}");
}
