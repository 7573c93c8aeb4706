//! Each row of the table of exit codes.

use test_support::fixtures::{KEY, LONG, NAME, exists, queue_length};
use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{RedisServer, SilentResolver, StandIn, eventually};

use rustix::process::Signal;
use test_support::fixtures::SOON;

use crate::program::{Lockctl, Outcome};

fn code(program: &Lockctl) -> (i32, String) {
    let outcome = program.run();
    let code = outcome.code.expect("lockctl ends by itself");
    (code, outcome.stderr)
}

fn run<'a>(flags: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["run", "--name", NAME];
    arguments.extend(flags);
    arguments.push("--");
    arguments.extend(command);
    arguments
}

/// A lock of another client, for longer than the test.
fn hold(server: &RedisServer) {
    let millis = LONG.as_millis().to_string();
    server.cli(&["SET", KEY, "another-library", "PX", &millis]);
}

/// A nightly job of many machines: the one that finds the server away waits for it, and the one that finds another machine at
/// work skips.
#[test]
fn outage_wait_is_for_the_server_and_not_for_the_holder() {
    let server = RedisServer::start();
    server.kill9();
    let flags = ["--outage-wait", "60s", "--on-contended", "skip"];
    let job = Lockctl::on(&server, &run(&flags, &["sh", "-c", "echo worked"])).start();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert_eq!(job.stdout(), "");
    server.restart();
    let outcome = job.wait();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "worked\n");
    hold(&server);
    let began = std::time::Instant::now();
    let outcome = Lockctl::on(&server, &run(&flags, &["sh", "-c", "echo worked"])).run();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("nothing was run"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.stdout, "");
    assert!(began.elapsed() < SOON);
    server.kill9();
    let (code, stderr) = code(&Lockctl::on(
        &server,
        &run(&["--outage-wait", "1s"], &["true"]),
    ));
    assert_eq!(code, 69, "{stderr}");
    assert!(stderr.starts_with("lockctl: cannot reach "), "{stderr}");
    // What needs no server is found at once.
    let text = code_of_invalid_url(&server);
    assert!(text.contains("redsi"), "{text}");
}

fn code_of_invalid_url(server: &RedisServer) -> String {
    let mut flags = vec!["--url", "redsi://h"];
    flags.extend(run(&["--outage-wait", "60s"], &["true"]));
    let (code, stderr) = code(&Lockctl::on(server, &flags));
    assert_eq!(code, 78, "{stderr}");
    stderr
}

#[test]
fn exit_codes_of_the_command() {
    let server = RedisServer::start();
    for (script, expected) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
    ] {
        let (code, stderr) = code(&Lockctl::on(&server, &run(&[], &["sh", "-c", script])));
        assert_eq!((code, stderr.as_str()), (expected, ""), "{script}");
        assert!(!exists(&server, KEY), "{script}: the lock is released");
    }
    let (missing, stderr) = code(&Lockctl::on(&server, &run(&[], &["no-such-program"])));
    assert_eq!(missing, 127);
    assert_eq!(
        stderr,
        "lockctl: the command `no-such-program` was not found\n"
    );
    let (denied, stderr) = code(&Lockctl::on(&server, &run(&[], &["/dev/null"])));
    assert_eq!(denied, 126);
    assert!(
        stderr.starts_with("lockctl: cannot run `/dev/null`: "),
        "{stderr}"
    );
    assert!(!exists(&server, KEY));
}

#[test]
fn exit_codes_while_another_holder_has_the_lock() {
    let server = RedisServer::start();
    hold(&server);
    let text = |code| {
        format!(
            "lockctl: the lock `job` is held by a client of another library; nothing was run \
             (exit {code})\n"
        )
    };
    for (flags, expected) in [
        (vec![], 75),
        (vec!["--conflict-exit-code", "3"], 3),
        (vec!["-E", "4"], 4),
        (vec!["--on-contended", "skip"], 0),
    ] {
        let outcome = code(&Lockctl::on(&server, &run(&flags, &["echo"])));
        assert_eq!(outcome, (expected, text(expected)), "{flags:?}");
    }
    let flags = ["--on-contended", "skip", "-q"];
    assert_eq!(
        code(&Lockctl::on(&server, &run(&flags, &["echo"]))),
        (0, String::new())
    );
    let (timeout, stderr) = code(&Lockctl::on(&server, &run(&["--wait", "300ms"], &["echo"])));
    assert_eq!(timeout, 75);
    assert!(
        stderr.contains("held by a client of another library; waited "),
        "{stderr}"
    );
    assert!(stderr.ends_with("nothing was run (exit 75)\n"), "{stderr}");
}

#[test]
fn contended_text_names_the_holder_and_its_time() {
    let server = RedisServer::start();
    let holder = Lockctl::on(&server, &run(&["--label", "web-1:42"], &["sleep", "60"])).start();
    eventually(SOON, || exists(&server, KEY));
    let (_, stderr) = code(&Lockctl::on(&server, &run(&[], &["echo"])));
    let start = "lockctl: the lock `job` is held by web-1:42 for ";
    assert!(stderr.starts_with(start), "{stderr}");
    assert!(
        stderr.ends_with("s; nothing was run (exit 75)\n"),
        "{stderr}"
    );
    drop(holder);
}

#[test]
fn full_queue_is_a_busy_lock() {
    let server = RedisServer::start();
    let holder = Lockctl::on(&server, &run(&["--label", "web-1:42"], &["sleep", "60"])).start();
    eventually(SOON, || exists(&server, KEY));
    let waiter = Lockctl::on(&server, &run(&["--wait", "60s"], &["true"])).start();
    eventually(SOON, || exists(&server, "{lock:job}:q"));
    let flags = ["--wait", "60s", "--max-queue", "1"];
    let (code, stderr) = code(&Lockctl::on(&server, &run(&flags, &["true"])));
    assert_eq!(code, 75);
    assert!(
        stderr.starts_with("lockctl: the lock `job` is held by web-1:42 for "),
        "{stderr}"
    );
    let end = "; callers that wait already: 1; nothing was run (exit 75)\n";
    assert!(stderr.ends_with(end), "{stderr}");
    drop((waiter, holder));
}

#[test]
fn exit_codes_of_wrong_arguments() {
    let server = RedisServer::start();
    for arguments in [
        vec![],
        vec!["rum"],
        vec!["run", "--", "true"],
        vec!["run", "--name", NAME],
        run(&["--ttl", "30"], &["true"]),
        run(&["--ttl", "1ms"], &["true"]),
        run(&["--ttl", "25h"], &["true"]),
        run(&["--max-hold", "1s"], &["true"]),
        run(&["--min-hold", "30s"], &["true"]),
        run(&["--weight", "2"], &["true"]),
        run(&["--max-queue", "2"], &["true"]),
        run(&["--wait", "1s", "--max-queue", "0"], &["true"]),
        vec!["run", "--name", "", "--", "true"],
        vec!["run", "--name", "a{b", "--", "true"],
        vec!["man", "no-such-command"],
        vec!["watch", "--interval", "0s"],
        vec!["list", "--limit", "0"],
    ] {
        let (code, stderr) = code(&Lockctl::on(&server, &arguments));
        assert_eq!(code, 64, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("lockctl: "), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        // The variable has the URL.
        assert!(!stderr.contains("--url"), "{arguments:?}: {stderr}");
    }
    let (_, stderr) = code(&Lockctl::on(&server, &run(&["--ttl", "30"], &["true"])));
    let text = "lockctl: invalid value '30' for '--ttl <TIME>': write it as \"30s\"; see `lockctl run --help`\n";
    assert_eq!(stderr, text);
    let (_, stderr) = code(&Lockctl::on(&server, &["watch", "--intervall", "1s"]));
    let text = "lockctl: unexpected argument '--intervall' found; a similar argument exists: \
                '--interval'; see `lockctl watch --help`\n";
    assert_eq!(stderr, text);
    let (_, stderr) = code(&Lockctl::on(&server, &["run"]));
    let text = "lockctl: the following required arguments were not provided: <--name <NAME>|--resume <FROM>> <CMD>...; \
                see `lockctl run --help`\n";
    assert_eq!(stderr, text);
    let (_, stderr) = code(&Lockctl::on(&server, &["doctor", "--role", "x"]));
    let text = "lockctl: invalid value 'x' for '--role <ROLE>' [possible values: app, operator]; see \
                `lockctl doctor --help`\n";
    assert_eq!(stderr, text);
}

/// The texts of the library name the settings of programs; those of lockctl name its flags.
#[test]
fn wrong_times_and_settings_name_their_flags() {
    let server = RedisServer::start();
    for (flags, text) in [
        (
            &["--ttl", "48h"][..],
            "invalid --ttl 48h: use at least 100ms and at most 24h",
        ),
        (
            &["--max-hold", "1m30s", "--ttl", "2m"],
            "invalid --max-hold 1m30s: use more than the --ttl",
        ),
        (
            &["--min-hold", "30s"],
            "invalid --min-hold 30s: use less than the --ttl",
        ),
        (
            &["--timeout", "0s"],
            "invalid --timeout `0s`: use at least 1 ms",
        ),
        (
            &["--prefix", "a{b"],
            "invalid --prefix `a{b`: use no braces; put the hash tag into the name",
        ),
        (
            &["--address-map", "10.0.0.2=h,10.0.0.3:0=h:1"],
            "invalid --address-map `10.0.0.3:0=h:1`: write two addresses such as `10.0.0.2:6379` and \
             `localhost:7001`, or two hosts; an IPv6 address with a port is in brackets",
        ),
        (
            &["--address-map", "10.0.0.2"],
            "invalid --address-map `10.0.0.2`: write `announced=reachable`, such as \
             `10.0.0.2:6379=localhost:7001`, with a comma between two pairs",
        ),
    ] {
        let (_, stderr) = code(&Lockctl::on(&server, &run(flags, &["true"])));
        assert_eq!(stderr, format!("lockctl: {text}\n"));
    }
    server.cli(&["SET", KEY, "of-a-program-that-died"]);
    let (foreign, stderr) = code(&Lockctl::on(&server, &run(&["--wait", "1s"], &["true"])));
    assert_eq!(foreign, 78);
    let text = "a service with the dialect `SetnxExpire` sets the missing expiry";
    assert!(stderr.contains(text), "{stderr}");
    let shown = Lockctl::on(&server, &["show", NAME]).run();
    assert!(shown.stdout.contains(text), "{shown:?}");
}

#[test]
fn exit_codes_of_the_server_and_its_url() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+ping", "+info", "+role",
        "+time",
    ]);
    server.cli(&["SADD", "lock:set", "member"]);
    let closed = RedisServer::start();
    closed.kill9();
    let address = server.address();
    let on = |url: String, name: &str| {
        let program = Lockctl::new(&["run", "--name", name, "--", "true"]);
        code(&program.env("DISTRIBUTED_LOCK_URL", url))
    };
    for (url, name, expected, text) in [
        (
            closed.url(),
            NAME,
            69,
            "; is the server running? URL from DISTRIBUTED_LOCK_URL\n",
        ),
        (
            format!("redis://nobody:wrong@{address}"),
            NAME,
            77,
            "check user and password",
        ),
        (
            format!("redis://reader:secret@{address}"),
            NAME,
            77,
            "grant the user",
        ),
        (
            "http://h".to_owned(),
            NAME,
            78,
            "unknown scheme `http` in the lock URL: use redis://, rediss://, unix://, \
             redis+sentinel://, redis+cluster:// or redis+quorum://\n",
        ),
        (
            format!("{}/99", server.url()),
            NAME,
            78,
            " has no database 99: the server has fewer databases: use a lower number, or raise \
             `databases` in its redis.conf\n",
        ),
        (
            format!("{}/xyz", server.url()),
            NAME,
            78,
            "the path of the URL must be a database number such as /0, or empty\n",
        ),
        ("redis://a,b".to_owned(), NAME, 78, "redis+cluster://"),
        (
            "memory://".to_owned(),
            NAME,
            78,
            "locks in memory exist only in one process",
        ),
        (server.url(), "set", 78, "holds a set, and cannot be locked"),
        (
            String::new(),
            NAME,
            78,
            "no server is configured; set DISTRIBUTED_LOCK_URL, or pass --url\n",
        ),
    ] {
        let (code, stderr) = on(url.clone(), name);
        assert_eq!(code, expected, "{url}: {stderr}");
        assert!(stderr.contains(text), "{url}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            !stderr.contains("secret") && !stderr.contains("wrong"),
            "{stderr}"
        );
        if expected == 78 && name == NAME {
            // All commands say the same about a URL.
            let doctor = Lockctl::new(&["doctor"]).env("DISTRIBUTED_LOCK_URL", url);
            assert_eq!(doctor.run().stderr, stderr);
        }
        for word in ["::", "or memory://"] {
            let text = stderr.replace("redis://", "").replace("https://", "");
            assert!(!text.contains(word), "{stderr}");
        }
    }
    let (_, stderr) = on(closed.url(), NAME);
    let start = format!(
        "lockctl: cannot reach {} (connection refused); ",
        closed.address()
    );
    assert!(stderr.starts_with(&start), "{stderr}");
    // A long prefix is a fault of the configuration.
    let program = Lockctl::on(&server, &run(&[], &["true"]));
    let (code, _) = code(&program.env("DISTRIBUTED_LOCK_PREFIX", "x".repeat(65)));
    assert_eq!(code, 78);
}

#[test]
fn exit_codes_of_a_signal_during_the_wait() {
    let server = RedisServer::start();
    for (signal, expected) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        hold(&server);
        let waiting = Lockctl::on(&server, &run(&["--wait", "1m"], &["true"])).start();
        eventually(SOON, || queue_length(&server) == 1);
        waiting.signal(signal);
        assert_eq!(waiting.wait().code, Some(expected));
    }
}

#[test]
fn errors_in_json_are_one_object_on_stdout() {
    let server = RedisServer::start();
    hold(&server);
    for (arguments, kind, code, expected) in [
        (
            run(&["--json"], &["true"]),
            "contended",
            Some("contended"),
            75,
        ),
        (
            run(&["--json", "--on-contended", "skip"], &["true"]),
            "contended",
            Some("contended"),
            0,
        ),
        (
            run(&["--json", "--ttl", "1ms"], &["true"]),
            "invalid-time",
            Some("invalid_ttl"),
            64,
        ),
        (
            vec!["--json", "run", "--name", "free", "--", "no-such-program"],
            "not-found",
            None,
            127,
        ),
        (vec!["--json", "run", "--name", "free"], "usage", None, 64),
        (
            vec![
                "--json",
                "--url",
                "redis://127.0.0.1:1",
                "run",
                "--name",
                "a",
                "--",
                "true",
            ],
            "unreachable",
            Some("unreachable"),
            69,
        ),
    ] {
        let outcome = Lockctl::on(&server, &arguments).run();
        assert_eq!(outcome.code, Some(expected), "{arguments:?}");
        assert_eq!(outcome.stderr, "", "{arguments:?}");
        assert!(
            outcome
                .stdout
                .starts_with("{\"schema\":\"lockctl.error/1\",")
        );
        let record: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(record["kind"], kind);
        assert_eq!(record["code"].as_str(), code);
        assert_eq!(record["exit"], expected);
        let text = record["text"].as_str().unwrap();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
    }
}

/// The caller of these runs cannot see something that it may rely on.
#[test]
fn flags_that_hide_or_weaken_are_warned_about() {
    let server = RedisServer::start();
    let (_, stderr) = code(&Lockctl::on(&server, &run(&["-E", "0"], &["true"])));
    assert_eq!(
        stderr,
        "lockctl: warning: with the conflict exit code 0, a caller cannot see that another holder has the \
         lock; if that is meant, use --on-contended skip\n"
    );
    let flags = ["--ttl", "30s", "--kill-after", "1m"];
    let (_, stderr) = code(&Lockctl::on(&server, &run(&flags, &["true"])));
    assert_eq!(
        stderr,
        "lockctl: warning: --kill-after 1m is more than two thirds of the --ttl 30s; if lockctl is killed, \
         the command may work on after the lease\n"
    );
    let flags = ["-E", "0", "--kill-after", "1m", "-q"];
    let (_, stderr) = code(&Lockctl::on(&server, &run(&flags, &["true"])));
    assert_eq!(stderr, "");
    let flags = ["--ttl", "30s", "--kill-after", "20s"];
    let (_, stderr) = code(&Lockctl::on(&server, &run(&flags, &["true"])));
    assert_eq!(stderr, "");
}

#[test]
fn password_in_an_argument_is_warned_about() {
    let server = RedisServer::options().password("secret").start();
    let url = server.url();
    let program = Lockctl::new(&["--url", &url, "run", "--name", NAME, "--", "true"]);
    let outcome = program.run();
    assert_eq!(outcome.code, Some(0));
    assert_eq!(
        outcome.stderr,
        "lockctl: warning: the password is visible in the process list; set DISTRIBUTED_LOCK_URL instead\n"
    );
    let outcome = Lockctl::on(&server, &["run", "--name", NAME, "--", "true"]).run();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    // Sentinels have a password of their own.
    let url = "redis+sentinel://127.0.0.1:1/mymaster?sentinel_password=secret";
    let program = Lockctl::new(&["--url", url, "show", NAME]);
    let (exit, stderr) = code(&program);
    assert_eq!(exit, 69, "{stderr}");
    let begin = "lockctl: warning: the password is visible in the process list;";
    assert!(stderr.starts_with(begin), "{stderr}");
    assert!(!stderr.contains("secret"), "{stderr}");
}

/// The lookup goes on in a thread that cannot be stopped.
#[cfg(target_os = "linux")]
#[test]
fn resolver_that_never_answers_delays_no_end() {
    let resolver = SilentResolver::build();
    let url = format!("redis://{}:6379", SilentResolver::NAME);
    let programs: Vec<_> = [
        &["show", NAME][..],
        &["list"],
        &["doctor"],
        &["release", NAME, "--yes"],
        &["run", "--name", NAME, "--wait", "1s", "--", "true"],
    ]
    .into_iter()
    .map(|arguments| {
        let mut program = Lockctl::new(&["--timeout", "200ms"]).env("DISTRIBUTED_LOCK_URL", &url);
        for argument in arguments {
            program = program.arg(argument);
        }
        for (name, value) in resolver.variables() {
            program = program.env(name.to_str().unwrap(), value);
        }
        (arguments, program.start())
    })
    .collect();
    for (arguments, program) in programs {
        let Outcome { code, stderr, .. } = program.wait();
        assert_eq!(code, Some(69), "{arguments:?}: {stderr}");
        assert!(stderr.contains(SilentResolver::NAME), "{stderr}");
    }
}

/// With a misspelt prefix, a job would run beside the one that it must exclude.
#[test]
fn unknown_variables_are_warned_about() {
    const GUIDE: &str = include_str!("../../../lock-core/docs/configuration.md");
    let server = RedisServer::start();
    // A job with `-q` reports a wrong prefix too.
    let list = || Lockctl::on(&server, &["list", "-q"]);
    let known = [
        "PREFIX",
        "DEFAULT_TTL",
        "DEFAULT_WAIT",
        "COMMAND_TIMEOUT",
        "SHUTDOWN_TIMEOUT",
        "LABEL",
        "CLIENT_NAME",
    ];
    let mut program = list();
    for name in known {
        let name = format!("DISTRIBUTED_LOCK_{name}");
        assert!(GUIDE.contains(&name), "{name}");
        program = program.env(&name, "1s");
    }
    let program = program.env("DISTRIBUTED_LOCK_ADDRESS_MAP", "a=b");
    assert_eq!(code(&program).1, "");
    let (exit, stderr) = code(&list().env("DISTRIBUTED_LOCK_PREFX", "s3cret"));
    assert_eq!(exit, 0);
    assert_eq!(
        stderr,
        "lockctl: warning: unknown variable `DISTRIBUTED_LOCK_PREFX`; lockctl reads \
         DISTRIBUTED_LOCK_URL, DISTRIBUTED_LOCK_PREFIX and DISTRIBUTED_LOCK_ADDRESS_MAP\n"
    );
    let loud = Lockctl::on(&server, &["list"]).env("DISTRIBUTED_LOCK_PREFX", "s3cret");
    assert!(code(&loud).1.starts_with(&stderr));
}

/// The words of the server come first, and once.
#[test]
fn refusal_in_unknown_words_is_quoted_once() {
    let server = RedisServer::start();
    let refused = Answer::Error("ERR max requests limit exceeded".into());
    let quirk = Quirk::Replies(Target::Script("acquire"), refused);
    let stand_in = StandIn::start(&server, [quirk]);
    let run = [
        "--url",
        &stand_in.url(),
        "run",
        "--name",
        "a",
        "--wait",
        "0s",
        "--",
        "true",
    ];
    let outcome = Lockctl::new(&run).run();
    assert_ne!(outcome.code, Some(0));
    let text = "lockctl: max requests limit exceeded (the lock server rejected the command)";
    assert!(outcome.stderr.contains(text), "{outcome:?}");
    assert_eq!(
        outcome.stderr.matches("limit exceeded").count(),
        1,
        "{outcome:?}"
    );
}
