//! `doctor` on healthy servers and on servers with one defect each.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use test_support::fixtures::{NAME, SOON, queue_length};
use test_support::stand_in::{Answer, HelloRefusal, Quirk, Target};
use test_support::{Direction, FrozenClock, Proxy, RedisServer, StandIn, eventually};

use crate::admin::hold;
use crate::program::{Lockctl, Outcome};

/// The findings of a run.
pub(crate) struct Findings {
    pub(crate) code: i32,
    pub(crate) checks: BTreeMap<String, Value>,
}

impl Findings {
    pub(crate) fn of(url: &str, flags: &[&str]) -> Self {
        let mut arguments = vec!["doctor", "--json"];
        arguments.extend(flags);
        let outcome = Lockctl::new(&arguments)
            .env("DISTRIBUTED_LOCK_URL", url)
            .run();
        assert_eq!(outcome.stderr, "");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert!(
            outcome
                .stdout
                .starts_with("{\"schema\":\"lockctl.doctor/1\",")
        );
        let checks = report["checks"].as_array().unwrap();
        for check in checks {
            assert_ne!(
                check["means"], "",
                "{check}: it says what it means for locks"
            );
            assert!(check["level"] == "ok" || check["do"] != "", "{check}");
        }
        Self {
            code: outcome.code.unwrap(),
            checks: checks
                .iter()
                .map(|check| (check["id"].as_str().unwrap().to_owned(), check.clone()))
                .collect(),
        }
    }

    fn on(server: &RedisServer) -> Self {
        Self::of(&server.url(), &[])
    }

    /// The ids of the findings of this level.
    pub(crate) fn ids(&self, level: &str) -> Vec<&str> {
        let found = self
            .checks
            .iter()
            .filter(|(_, check)| check["level"] == level);
        found.map(|(id, _)| id.as_str()).collect()
    }

    pub(crate) fn text(&self, id: &str) -> &str {
        self.checks[id]["text"].as_str().unwrap()
    }

    /// Checks that exactly this check failed.
    #[track_caller]
    pub(crate) fn fails_only(&self, id: &str) {
        assert_eq!(self.ids("fail"), [id], "{:#?}", self.checks);
        assert_eq!(self.code, 1);
    }
}

/// The checks of one server without TLS.
pub(crate) const ALL: [&str; 18] = [
    "app_rights",
    "clients",
    "clock",
    "eviction",
    "foreign",
    "memory",
    "no_expiry",
    "notifications",
    "operator_rights",
    "persistence",
    "probe",
    "queue_orphans",
    "reachable",
    "replicas",
    "role",
    "tls",
    "topology",
    "version",
];

#[test]
fn healthy_server_passes_each_check() {
    let server = RedisServer::options().args(["--appendonly", "yes"]).start();
    let findings = Findings::of(&server.url(), &["--strict"]);
    assert_eq!(findings.ids("ok"), ALL, "{:#?}", findings.checks);
    assert_eq!(findings.code, 0);
    // The probe leaves no key, except the counter of its fencing tokens, which expires.
    assert_eq!(test_support::fixtures::keys(&server), [""; 0]);
}

#[test]
fn doctor_names_each_defect() {
    let on = |arguments: &[&str]| RedisServer::options().args(arguments).start();

    let server = on(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let findings = Findings::on(&server);
    findings.fails_only("eviction");
    assert_eq!(
        findings.text("eviction"),
        "maxmemory-policy is allkeys-lru, with maxmemory 104 MB"
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let findings = Findings::on(&server);
    assert_eq!(
        (findings.code, findings.ids("warn")),
        (0, vec!["eviction", "persistence"])
    );
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);

    server.cli(&["CONFIG", "SET", "maxclients", "40"]);
    let connections: Vec<_> = (0..31).map(|_| server.connect().unwrap()).collect();
    eventually(SOON, || {
        Findings::on(&server).ids("warn") == ["clients", "persistence"]
    });
    drop(connections);

    let address = server.address();
    let port = address.port().to_string();
    let replica = on(&["--replicaof", "127.0.0.1", &port]);
    Findings::on(&replica).fails_only("role");
    eventually(SOON, || {
        let findings = Findings::on(&server);
        let text = "1 connected, and min-replicas-to-write is 0";
        findings.ids("warn").contains(&"replicas") && findings.text("replicas") == text
    });
    drop(replica);

    let node = on(&["--cluster-enabled", "yes"]);
    Findings::on(&node).fails_only("topology");
}

/// A service with many instances may not fit, although few clients are connected.
#[test]
fn doctor_counts_the_connections_of_all_instances() {
    let server = RedisServer::options()
        .args(["--maxclients", "1000"])
        .start();
    let findings = Findings::of(&server.url(), &["--instances", "405"]);
    assert!(
        findings.ids("warn").contains(&"clients"),
        "{:#?}",
        findings.checks
    );
    let text = findings.text("clients");
    let end = " of 1000 connected; 405 instances of a service open up to 810";
    assert!(text.ends_with(end), "{text}");
    Findings::of(&server.url(), &["--instances", "600"]).fails_only("clients");
    let outcome = Lockctl::on(&server, &["doctor", "--instances", "0"]).run();
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
}

/// The number is one of the library, which it must not change alone.
#[test]
fn instance_opens_as_many_connections_as_doctor_expects() {
    let server = RedisServer::start();
    let text = Findings::on(&server).text("clients").to_owned();
    let (_, expected) = text.rsplit_once(" opens up to ").unwrap();
    let holder = hold(&server, NAME, "web-1:42");
    let flags = [
        "run", "--name", NAME, "--label", "web-2:7", "--wait", "1m", "--ttl", "1s", "--", "sleep",
        "60",
    ];
    let instance = Lockctl::on(&server, &flags).start();
    eventually(SOON, || queue_length(&server) == 1);
    // The instance has waited, and renews its lock: it has all of its connections.
    holder.signal(Signal::TERM);
    holder.wait();
    let count = || {
        let list = server.cli(&["CLIENT", "LIST"]);
        let of_instance = list.text().matches(" name=lock:web-2:7:");
        of_instance.count()
    };
    eventually(SOON, || count() == expected.parse::<usize>().unwrap());
    drop(instance);
}

#[test]
fn doctor_compares_the_clocks() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let clock = FrozenClock::at(now.as_micros().try_into().unwrap());
    let server = RedisServer::options().clock(&clock).start();
    clock.run_ahead_by(0);
    assert!(Findings::on(&server).ids("ok").contains(&"clock"));
    clock.run_ahead_by(-1_500_000);
    let findings = Findings::on(&server);
    assert!(
        findings.text("clock").contains("s behind, "),
        "{}",
        findings.text("clock")
    );
    assert!(findings.ids("warn").contains(&"clock"));
    clock.run_ahead_by(6_500_000);
    let findings = Findings::on(&server);
    findings.fails_only("clock");
    assert!(
        findings.text("clock").starts_with("6."),
        "{}",
        findings.text("clock")
    );
}

#[test]
fn doctor_finds_full_memory() {
    let server = RedisServer::start();
    let info = server.cli(&["INFO", "memory"]);
    let used = info
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.unwrap().trim().parse().unwrap();
    let limit = (used * 100 / 85).to_string();
    server.cli(&["CONFIG", "SET", "maxmemory", &limit]);
    let findings = Findings::on(&server);
    let level = &findings.checks["memory"]["level"];
    assert!(level == "warn" || level == "fail", "{:#?}", findings.checks);
    // No lock can be granted, and a held one is renewed.
    server.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let findings = Findings::on(&server);
    let meaning = findings.checks["memory"].to_string();
    assert!(meaning.contains("refuses to grant locks"), "{meaning}");
    assert!(meaning.contains("still renews"), "{meaning}");
    assert_eq!(
        findings.ids("fail"),
        ["memory", "probe"],
        "{:#?}",
        findings.checks
    );
}

#[test]
fn doctor_finds_keys_that_block_names() {
    let server = RedisServer::start();
    server.cli(&["SET", "lock:forgotten", "me"]);
    server.cli(&["SET", "lock:theirs", "uuid", "PX", "60000"]);
    server.cli(&["ZADD", "{lock:dead}:q", "1", "a waiter that died"]);
    // Neither under the prefix nor a lock.
    server.cli(&["SET", "session:1", "me"]);
    let findings = Findings::on(&server);
    findings.fails_only("no_expiry");
    assert_eq!(
        findings.text("no_expiry"),
        "`lock:forgotten` is without an expiry"
    );
    assert_eq!(
        findings.text("foreign"),
        "`lock:theirs` is written by other programs"
    );
    assert!(
        findings
            .text("queue_orphans")
            .starts_with("`lock:dead` is free")
    );
    assert_eq!(
        findings.ids("warn"),
        ["foreign", "persistence", "queue_orphans"]
    );
    // Characters of the prefix that have a meaning in patterns.
    let findings = Findings::of(&server.url(), &["--prefix", "l*"]);
    assert_eq!(findings.ids("fail"), [""; 0], "{:#?}", findings.checks);
}

/// The value of another program may have any size, and says what it is in its first bytes.
#[test]
fn doctor_reads_only_the_beginning_of_a_value() {
    const SIZE: u64 = 8 << 20;
    let server = RedisServer::start();
    server.cli(&["SET", "lock:theirs", "a", "PX", "60000"]);
    server.cli(&["SETRANGE", "lock:theirs", &SIZE.to_string(), "z"]);
    server.cli(&["SET", "lock:empty", "", "PX", "60000"]);
    let sent = || -> u64 {
        let info = server.cli(&["INFO", "stats"]);
        let mut lines = info.text().lines();
        let sent = lines.find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        sent.unwrap().trim().parse().unwrap()
    };
    let before = sent();
    let findings = Findings::on(&server);
    assert_eq!(
        findings.text("foreign"),
        "2 keys, such as `lock:empty`, are written by other programs"
    );
    let by_doctor = sent() - before;
    assert!(by_doctor < SIZE / 8, "the server sent {by_doctor} bytes");
}

/// Values are read together, so that a distant server with many keys costs no round trip for each.
#[test]
fn doctor_reads_many_values_of_a_distant_server() {
    let server = RedisServer::start();
    fill(&server, "lock:", 2_000);
    let proxy = Proxy::in_front_of(&server);
    proxy.delay(Direction::ToClient, Duration::from_millis(25));
    let findings = Findings::of(&proxy.url(), &[]);
    assert_eq!(findings.ids("fail"), [""; 0], "{:#?}", findings.checks);
    let text = findings.text("foreign");
    assert!(text.starts_with("2000 keys, such as `lock:1`, "), "{text}");
}

/// A search that takes long says nothing about the server.
#[test]
fn doctor_ends_a_search_of_keys_that_takes_too_long() {
    let server = RedisServer::start();
    fill(&server, "session:", 100_000);
    let proxy = Proxy::in_front_of(&server);
    proxy.delay(Direction::ToClient, Duration::from_millis(25));
    let findings = Findings::of(&proxy.url(), &[]);
    assert_eq!(findings.ids("fail"), [""; 0], "{:#?}", findings.checks);
    for id in ["no_expiry", "foreign", "queue_orphans"] {
        let text = "not checked: the search took longer than 10 s";
        assert_eq!(findings.text(id), text);
    }
    for id in ["app_rights", "notifications", "probe"] {
        assert_eq!(findings.checks[id]["level"], "ok", "{:#?}", findings.checks);
    }
}

/// Writes this many keys of another program.
fn fill(server: &RedisServer, prefix: &str, count: u32) {
    let script = "for i = 1, ARGV[2] do redis.call('SET', ARGV[1] .. i, 'me', 'PX', 600000) end";
    server.cli(&["EVAL", script, "0", prefix, &count.to_string()]);
}

#[test]
fn doctor_measures_round_trips() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.delay(Direction::ToClient, Duration::from_millis(150));
    let findings = Findings::of(&proxy.url(), &[]);
    assert!(
        findings.ids("warn").contains(&"reachable"),
        "{:#?}",
        findings.checks
    );
}

#[test]
fn doctor_explains_findings_to_people() {
    let server = RedisServer::start();
    server.cli(&["SET", "lock:forgotten", "me"]);
    let Outcome { code, stdout, .. } = Lockctl::on(&server, &["doctor"]).run();
    assert_eq!(code, Some(1));
    let lines: Vec<_> = stdout.lines().collect();
    let finding = lines
        .iter()
        .position(|line| line.starts_with("FAIL  no_expiry        `lock:forgotten`"));
    let finding = finding.unwrap_or_else(|| panic!("{stdout}"));
    assert!(lines[finding + 1].starts_with("      means  "), "{stdout}");
    assert!(lines[finding + 2].starts_with("      do     "), "{stdout}");
    let last = format!(
        "{}: not fit for locks: 1 defect, and 1 warning; the user `default` may lock and operate",
        server.address()
    );
    assert_eq!(lines.last(), Some(&last.as_str()));
    assert!(!stdout.contains('\x1b'));
}

#[test]
fn doctor_without_a_server_has_nothing_to_check() {
    let closed = RedisServer::start();
    closed.kill9();
    let doctor = |url: &str| {
        Lockctl::new(&["doctor"])
            .env("DISTRIBUTED_LOCK_URL", url)
            .run()
    };
    let outcome = doctor(&closed.url());
    assert_eq!(outcome.code, Some(69));
    let text = format!(
        "lockctl: cannot reach {} (connection refused); is the server running? URL from DISTRIBUTED_LOCK_URL\n",
        closed.address()
    );
    assert_eq!(outcome.stderr, text);
    let server = RedisServer::options().password("secret").start();
    let outcome = doctor(&format!("redis://:wrong@{}", server.address()));
    assert_eq!(outcome.code, Some(77), "{outcome:?}");
    assert!(!outcome.stderr.contains("wrong@"), "{outcome:?}");
}

/// The library connects to such a server, and so does `doctor`.
#[test]
fn doctor_of_a_server_without_resp3_passes() {
    let server = RedisServer::options().args(["--appendonly", "yes"]).start();
    let stand_in = StandIn::start(&server, [Quirk::Hello(HelloRefusal::Unknown)]);
    let findings = Findings::of(&stand_in.url(), &[]);
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
    assert_eq!(findings.ids("warn"), ["notifications"]);
    let text = findings.text("notifications");
    let begin = "none in RESP2, and the server refuses RESP3 (";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.ends_with("unknown command 'HELLO')"), "{text}");
    let outcome = Lockctl::new(&["doctor"])
        .env("DISTRIBUTED_LOCK_URL", stand_in.url())
        .run();
    let end = "; the user `default` may lock and operate; works, waiters poll\n";
    assert!(outcome.stdout.ends_with(end), "{}", outcome.stdout);
    // The same of our own will.
    let findings = Findings::of(&format!("{}?protocol=2", server.url()), &[]);
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
    assert_eq!(
        findings.text("notifications"),
        "none in RESP2, which the URL asks for"
    );
}

/// A hostile server may say megabytes where others say a word.
#[test]
fn values_and_errors_of_a_server_are_cut() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let long = "x".repeat(50_000);
    let info = format!("redis_version:7.0.0\r\nmaxmemory_policy:{long}\r\n");
    let info = format!("${}\r\n{info}\r\n", info.len()).into_bytes();
    for answer in [Answer::Raw(info), Answer::Error(long)] {
        stand_in.set([Quirk::Replies(Target::Command("INFO"), answer)]);
        let findings = Findings::of(&stand_in.url(), &[]);
        let text = findings.text("eviction");
        assert!(text.contains("xxx") && text.len() < 1_000, "{}", text.len());
    }
}

/// Nobody knows what a server is that sends no end of it.
#[test]
fn replies_without_a_bound_are_not_read() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    for answer in [Answer::Giant(1 << 40), Answer::Endless, Answer::Malformed] {
        let target = Target::Command("INFO");
        stand_in.set([Quirk::Replies(target, answer.clone())]);
        let findings = Findings::of(&stand_in.url(), &[]);
        findings.fails_only("reachable");
        let text = findings.text("reachable");
        assert!(
            text.starts_with("lost the connection to "),
            "{answer:?}: {text}"
        );
        assert_eq!(findings.checks.len(), 1, "{answer:?}");
    }
}
