//! `doctor` as users with the rights of an application, of an operator, of both and of neither.

use test_support::guide::acl_command;
use test_support::{Lost, Proxy, RedisServer, Reply};

use crate::doctor::Findings;
use crate::program::Lockctl;

/// Returns the words of the command in `guide::redis` that creates this user, without some rights.
fn guide(user: &str, without: &[&str]) -> Vec<String> {
    let mut words = acl_command(user);
    words.retain(|word| !without.contains(&word.as_str()));
    words
}

/// Creates a user, and returns its URL.
fn create(server: &RedisServer, command: &[String]) -> String {
    assert_eq!(server.cli(command), Reply::Status("OK".into()));
    format!("redis://{}:secret@{}", command[2], server.address())
}

fn human(url: &str, flags: &[&str]) -> (i32, String) {
    let mut arguments = vec!["doctor"];
    arguments.extend(flags);
    let doctor = Lockctl::new(&arguments).env("DISTRIBUTED_LOCK_URL", url);
    let outcome = doctor.run();
    (outcome.code.unwrap(), outcome.stdout)
}

const KEYS: [&str; 3] = ["foreign", "no_expiry", "queue_orphans"];

#[test]
fn user_of_an_application_passes() {
    let server = RedisServer::options().args(["--appendonly", "yes"]).start();
    let url = create(&server, &guide("locks", &[]));
    for flags in [&["--strict"][..], &["--strict", "--role", "app"]] {
        let findings = Findings::of(&url, flags);
        assert_eq!(findings.code, 0, "{:#?}", findings.checks);
        assert_eq!(
            findings.text("app_rights"),
            "the user `locks` may acquire, renew and release"
        );
        for id in KEYS {
            assert_eq!(findings.text(id), "not checked: the user lacks +scan");
        }
    }
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.checks["operator_rights"]["level"], "note");
    assert_eq!(
        findings.text("operator_rights"),
        "the user `locks` may show and release, and cannot list: it lacks +scan, +dump"
    );
    // A right is named once for the checks that need it.
    let (_, text) = human(&url, &["--role", "app"]);
    assert_eq!(text.matches("+scan").count(), 1, "{text}");
    let line = "note  not checked      no_expiry, foreign, queue_orphans: the user lacks +scan\n";
    assert!(text.contains(line), "{text}");
    let last = "fit for locks as far as it was checked; the user `locks` may lock\n";
    assert!(text.ends_with(last), "{text}");
    // Asked for the other role, the same user fails.
    Findings::of(&url, &["--role", "operator"]).fails_only("operator_rights");
}

#[test]
fn user_of_an_operator_passes() {
    let server = RedisServer::start();
    let url = create(&server, &guide("operator", &[]));
    for flags in [&[][..], &["--role", "operator"]] {
        let findings = Findings::of(&url, flags);
        assert_eq!(findings.code, 0, "{:#?}", findings.checks);
        assert_eq!(
            findings.text("operator_rights"),
            "the user `operator` may show, list and release"
        );
        assert_eq!(findings.ids("warn"), ["persistence"]);
        for id in ["probe", "notifications"] {
            assert_eq!(findings.text(id), "not checked: the user cannot acquire");
        }
        for id in KEYS {
            assert_eq!(findings.checks[id]["level"], "ok", "{id}");
        }
    }
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.checks["app_rights"]["level"], "note");
    // Each right once, though two commands need `+pexpire`. What only shared locks need is not named.
    assert_eq!(
        findings.text("app_rights"),
        "the user `operator` cannot acquire: it lacks +pexpire, +zscore"
    );
    Findings::of(&url, &["--role", "app"]).fails_only("app_rights");
    let (_, text) = human(&url, &[]);
    assert!(
        text.ends_with("; the user `operator` may operate, and not lock\n"),
        "{text}"
    );
    // The last right of operators is for keys of other programs only.
    let url = create(&server, &guide("operator", &["+dump"]));
    server.cli(&["ACL", "SETUSER", "operator", "-dump"]);
    let findings = Findings::of(&url, &["--role", "operator"]);
    assert_eq!(
        (findings.code, findings.text("operator_rights")),
        (
            0,
            "the user `operator` may show, list and release, and cannot release --foreign: it lacks +dump"
        )
    );
    server.cli(&["ACL", "SETUSER", "operator", "-publish"]);
    let findings = Findings::of(&url, &["--role", "operator"]);
    assert_eq!(
        (findings.code, findings.text("operator_rights")),
        (
            0,
            "the user `operator` may show, list and release, and its release --now notifies no waiter, \
             and cannot release --foreign: it lacks +publish, +dump"
        )
    );
}

/// With the rights of a release without shared locks: a service with exclusive locks needs no others.
#[test]
fn rights_of_shared_locks_are_named_and_not_required() {
    let server = RedisServer::options().args(["--appendonly", "yes"]).start();
    let shared = ["+zcard", "+zremrangebyscore", "+pexpireat"];
    let url = create(&server, &guide("locks", &shared));
    let findings = Findings::of(&url, &["--strict", "--role", "app"]);
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
    assert_eq!(findings.checks["app_rights"]["level"], "note");
    assert_eq!(
        findings.text("app_rights"),
        "the user `locks` may acquire, renew and release exclusive locks; for readers and permits it lacks \
         +zcard, +zremrangebyscore, +pexpireat"
    );
    let url = create(&server, &guide("operator", &["+zadd", "+pexpireat"]));
    let findings = Findings::of(&url, &["--strict", "--role", "operator"]);
    assert_eq!(findings.checks["operator_rights"]["level"], "note");
    assert_eq!(
        findings.text("operator_rights"),
        "the user `operator` may show, list and release, and its release --now hands over to exclusive \
         waiters only: it lacks +zadd, +pexpireat"
    );
}

/// As many hosting services create users: without ROLE and INFO.
#[test]
fn user_without_dangerous_commands_passes() {
    let server = RedisServer::start();
    let command = [
        "ACL", "SETUSER", "hosted", "on", ">secret", "~*", "&*", "+@all",
    ];
    let command = command.map(ToOwned::to_owned);
    let url = create(&server, &command);
    server.cli(&["ACL", "SETUSER", "hosted", "-@dangerous"]);
    for flags in [&[][..], &["--role", "app"], &["--role", "operator"]] {
        let findings = Findings::of(&url, flags);
        assert_eq!(findings.code, 0, "{:#?}", findings.checks);
        assert_eq!(findings.ids("fail"), [""; 0]);
        assert_eq!(findings.text("notifications"), "the user lacks +info");
        if flags != ["--role", "operator"] {
            assert_eq!(
                findings.text("app_rights"),
                "the user `hosted` may acquire, renew and release; locks work without +role"
            );
            assert_eq!(findings.checks["app_rights"]["level"], "note");
        }
        if flags != ["--role", "app"] {
            let may = "the user `hosted` may show, list and release; locks work without +role";
            assert_eq!(findings.text("operator_rights"), may);
        }
    }
    let (code, text) = human(&url, &["--role", "app"]);
    let end = "; the user `hosted` may lock and operate; works, waiters poll\n";
    assert!(code == 0 && text.ends_with(end), "{text}");
    // Neither does a lock need these.
    for right in ["-ping", "-script|load"] {
        server.cli(&["ACL", "SETUSER", "hosted", right]);
    }
    let findings = Findings::of(&url, &["--role", "app"]);
    assert_eq!(
        (findings.code, findings.text("app_rights")),
        (
            0,
            "the user `hosted` may acquire, renew and release; locks work without +role, +ping, +script|load"
        )
    );
    // Without the text of a script, it never reaches the server.
    server.cli(&["ACL", "SETUSER", "hosted", "-eval"]);
    let findings = Findings::of(&url, &["--role", "app"]);
    findings.fails_only("app_rights");
}

/// Expiries and queues need no value.
#[test]
fn user_that_may_not_read_values_gets_the_other_checks_of_keys() {
    let server = RedisServer::start();
    let url = create(&server, &guide("operator", &["+getrange"]));
    server.cli(&["SET", "lock:theirs", "theirs", "PX", "60000"]);
    let findings = Findings::of(&url, &["--role", "operator"]);
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
    assert_eq!(
        findings.text("foreign"),
        "not checked: the user lacks +getrange"
    );
    for id in ["no_expiry", "queue_orphans", "operator_rights"] {
        assert_eq!(findings.checks[id]["level"], "ok", "{id}");
    }
}

/// The other checks run without INFO.
#[test]
fn user_without_info_gets_the_other_checks() {
    let server = RedisServer::options().args(["--appendonly", "yes"]).start();
    let url = create(&server, &guide("locks", &["+info"]));
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.ids("fail"), [""; 0], "{:#?}", findings.checks);
    for id in ["clients", "eviction", "memory", "persistence", "replicas"] {
        assert_eq!(findings.text(id), "not checked: the user lacks +info");
    }
    for id in [
        "version",
        "role",
        "topology",
        "app_rights",
        "probe",
        "clock",
    ] {
        assert_eq!(findings.checks[id]["level"], "ok", "{id}");
    }
    assert_eq!(findings.text("notifications"), "the user lacks +info");
    assert_eq!(findings.ids("warn"), ["notifications"]);

    // Every user may run HELLO.
    let node = RedisServer::options().args(["--cluster-enabled", "yes"]);
    let node = node.start();
    let url = create(&node, &guide("locks", &["+info"]));
    Findings::of(&url, &[]).fails_only("topology");
    let port = server.address().port().to_string();
    let replica = RedisServer::options().args(["--replicaof", "127.0.0.1", &port]);
    let replica = replica.start();
    let url = create(&replica, &guide("locks", &["+info", "+role"]));
    Findings::of(&url, &[]).fails_only("role");
}

/// As an older version of the library needed them: without +time and +zscore, without channels.
#[test]
fn missing_rights_of_a_service_are_named() {
    let server = RedisServer::start();
    let url = create(
        &server,
        &guide("locks", &["+time", "+zscore", "+subscribe", "&lk1:lock::*"]),
    );
    let findings = Findings::of(&url, &["--role", "app"]);
    findings.fails_only("app_rights");
    assert_eq!(
        findings.text("app_rights"),
        "the user `locks` cannot acquire: it lacks +time, +zscore"
    );
    // Neither role: both say what is missing.
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.ids("fail"), ["app_rights", "operator_rights"]);
    let (code, text) = human(&url, &[]);
    assert_eq!(code, 1);
    assert!(
        text.ends_with(
            "; the user `locks` may neither lock nor operate; FAIL: app_rights, operator_rights\n"
        ),
        "{text}"
    );
    // With the rights to lock, the channels are for notifications only.
    server.cli(&["ACL", "SETUSER", "locks", "+time", "+zscore"]);
    let findings = Findings::of(&url, &["--role", "app"]);
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
    assert_eq!(
        findings.text("notifications"),
        "the user lacks +subscribe, &lk1:lock::*"
    );
}

#[test]
fn rights_for_another_prefix_are_named_by_their_patterns() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "other", "on", ">secret", "~other:*", "&*", "+@all",
    ]);
    let url = format!("redis://other:secret@{}", server.address());
    let findings = Findings::of(&url, &["--role", "app"]);
    findings.fails_only("app_rights");
    assert_eq!(
        findings.text("app_rights"),
        "the user `other` cannot acquire: it lacks ~lock:*, ~{lock:*}:*"
    );
}

#[test]
fn commands_that_the_server_does_not_have_are_missing() {
    let server = RedisServer::options().args(["--rename-command", "SCAN", ""]);
    let server = server.start();
    let findings = Findings::of(&server.url(), &["--role", "operator"]);
    findings.fails_only("operator_rights");
    assert_eq!(
        findings.text("operator_rights"),
        "the user `default` may show and release, and cannot list: it lacks +scan (the server does not \
         have the command)"
    );
    for id in KEYS {
        assert_eq!(
            findings.text(id),
            "not checked: the server does not have the command scan"
        );
    }
    // Services do not need it.
    let findings = Findings::of(&server.url(), &["--role", "app"]);
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
}

#[test]
fn operator_without_channels_is_warned() {
    let server = RedisServer::start();
    let url = create(&server, &guide("operator", &["&lk1:lock::*"]));
    server.cli(&["ACL", "SETUSER", "operator", "resetchannels"]);
    let findings = Findings::of(&url, &["--role", "operator"]);
    assert_eq!(
        findings.text("operator_rights"),
        "the user `operator` may show, list and release, and its release --now notifies no waiter: it \
         lacks &lk1:lock::*"
    );
    assert_eq!(findings.checks["operator_rights"]["level"], "warn");
    assert_eq!(
        Findings::of(&url, &["--role", "operator", "--strict"]).code,
        1
    );
}

/// A user that may write and can neither delete nor set an expiry.
#[test]
fn probes_of_rights_leave_no_key_without_an_expiry() {
    let server = RedisServer::start();
    for (right, without) in [
        ("zadd", &["+pexpire", "+zrem", "+del"][..]),
        ("incr", &["+set", "+pexpire", "+del"]),
    ] {
        let url = create(&server, &guide("locks", without));
        let minus = without.iter().map(|right| right.replace('+', "-"));
        let words = ["ACL", "SETUSER", "locks"].map(ToOwned::to_owned);
        server.cli(&words.into_iter().chain(minus).collect::<Vec<_>>());
        Findings::of(&url, &["--role", "app"]).fails_only("app_rights");
        let Reply::Array(keys) = server.cli(&["KEYS", "*"]) else {
            panic!("KEYS returns a list");
        };
        for key in keys {
            let left = server.cli(&["PTTL", key.text()]);
            assert!(matches!(left, Reply::Integer(1..)), "{right}: {key:?}");
        }
    }
}

/// Without a password, the client logs in as no user.
#[test]
fn secret_in_the_place_of_the_user_is_not_printed() {
    let server = RedisServer::start();
    let url = format!("redis://s3cret@{}", server.address());
    let findings = Findings::of(&url, &[]);
    assert_eq!(
        findings.text("app_rights"),
        "the user `default` may acquire, renew and release"
    );
    let (_, text) = human(&url, &[]);
    assert!(!text.contains("s3cret"), "{text}");
}

/// A connection that breaks proves no right.
#[test]
fn rights_are_not_known_after_the_connection_broke() {
    let server = RedisServer::start();
    for (flags, failed) in [
        (&[][..], &[][..]),
        (&["--role", "app"], &["app_rights"]),
        (&["--role", "operator"], &["operator_rights"]),
    ] {
        let proxy = Proxy::in_front_of(&server);
        proxy.lose_next(Lost::Request, "NUMSUB");
        let findings = Findings::of(&proxy.url(), flags);
        assert!(!proxy.is_armed());
        assert_eq!(findings.ids("fail"), failed, "{:#?}", findings.checks);
        for id in ["app_rights", "operator_rights", "probe"] {
            if let Some(check) = findings.checks.get(id) {
                assert_eq!(check["text"], "not checked: the connection broke", "{id}");
            }
        }
        assert!(findings.checks.contains_key("probe"));
    }
    let proxy = Proxy::in_front_of(&server);
    proxy.lose_next(Lost::Request, "NUMSUB");
    let (_, text) = human(&proxy.url(), &[]);
    let end = "; the rights of the user `default` are not known\n";
    assert!(text.ends_with(end), "{text}");
}
