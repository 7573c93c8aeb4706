//! `doctor` behind Sentinels, in a cluster and at a quorum: one report for each server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use test_support::fixtures::SOON;
use test_support::sentinel::SERVICE;
use test_support::tls::shown;
use test_support::{
    Authority, FrozenClock, RedisCluster, RedisServer, Reply, SentinelService, eventually,
};

use crate::program::{Lockctl, Outcome};

/// The findings of a run, by server.
#[derive(Debug)]
struct Findings {
    code: i32,
    /// The kind of each server, by its address.
    kinds: BTreeMap<String, String>,
    /// The checks of each server by its address. The checks about all servers together are at "".
    checks: BTreeMap<String, BTreeMap<String, Value>>,
}

impl Findings {
    fn of(url: &str, flags: &[&str]) -> Self {
        let outcome = doctor(url, &[&["--json"], flags].concat());
        assert_eq!(outcome.stderr, "");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut findings = Self {
            code: outcome.code.unwrap(),
            kinds: BTreeMap::new(),
            checks: BTreeMap::new(),
        };
        for node in report["nodes"].as_array().unwrap() {
            let kind = text(&node["kind"]);
            let earlier = findings.kinds.insert(text(&node["address"]), kind);
            assert_eq!(earlier, None, "each server has one report: {report:#}");
        }
        for check in report["checks"].as_array().unwrap() {
            assert_ne!(check["means"], "", "{check}");
            let of_node = findings.checks.entry(text(&check["node"])).or_default();
            of_node.insert(text(&check["id"]), check.clone());
        }
        findings
    }

    /// The servers of this kind.
    fn of_kind(&self, kind: &str) -> BTreeSet<String> {
        let found = self.kinds.iter().filter(|(_, known)| *known == kind);
        found.map(|(address, _)| address.clone()).collect()
    }

    /// The servers and checks of this level.
    fn at_level(&self, level: &str) -> Vec<(&str, &str)> {
        let mut found = Vec::new();
        for (address, checks) in &self.checks {
            let of_level = checks.iter().filter(|(_, check)| check["level"] == level);
            found.extend(of_level.map(|(id, _)| (address.as_str(), id.as_str())));
        }
        found
    }

    fn text(&self, address: &str, id: &str) -> &str {
        let check = self.checks.get(address).and_then(|checks| checks.get(id));
        let check = check.unwrap_or_else(|| panic!("no `{id}` of `{address}` in {self:#?}"));
        check["text"].as_str().unwrap()
    }
}

fn doctor(url: &str, flags: &[&str]) -> Outcome {
    let lockctl = Lockctl::new(&[&["doctor"], flags].concat());
    lockctl.env("DISTRIBUTED_LOCK_URL", url).run()
}

fn addresses<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> BTreeSet<String> {
    let servers = servers.into_iter();
    servers.map(|server| server.address().to_string()).collect()
}

#[test]
fn each_server_behind_sentinels_has_a_report() {
    let service = SentinelService::start();
    let findings = Findings::of(&service.url(), &[]);
    assert_eq!(findings.code, 0, "{findings:#?}");
    let (primary, replicas) = service.servers().split_first().unwrap();
    assert_eq!(findings.of_kind("primary"), addresses([primary]));
    assert_eq!(findings.of_kind("replica"), addresses(replicas));
    assert_eq!(findings.of_kind("sentinel"), addresses(service.sentinels()));
    let primary = primary.address().to_string();
    assert_eq!(findings.text(&primary, "topology"), "behind Sentinels");
    assert_eq!(
        findings.text(&primary, "probe"),
        "acquired, renewed and released a lock"
    );
    for replica in replicas {
        let address = replica.address().to_string();
        assert_eq!(findings.text(&address, "role"), "replica");
        assert_eq!(
            findings.text(&address, "replication"),
            "connected to its primary"
        );
        // A failover needs its user too.
        findings.text(&address, "app_rights");
    }
    for sentinel in service.sentinels() {
        let address = sentinel.address().to_string();
        assert_eq!(findings.text(&address, "names_primary"), primary);
    }
    assert_eq!(findings.at_level("fail"), []);

    // Only one Sentinel is named, and the others are learned from it.
    let sentinel = service.sentinels()[0].address();
    let url = format!("redis+sentinel://{sentinel}/{SERVICE}");
    let learned = Findings::of(&url, &[]);
    assert_eq!(learned.kinds, findings.kinds);

    // One server that is down is a finding about it, and the others have their reports.
    let replica = &replicas[0];
    replica.kill9();
    let address = replica.address().to_string();
    let outcome = doctor(&service.url(), &[]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for text in [
        format!("{primary}, primary\nok    reachable        {primary}, 20 pings"),
        format!(
            "{address}, replica\nFAIL  reachable        cannot connect to the lock server at {address} (connection refused) \
             (the Sentinels announced this address; if this client reaches the server at another one, set \
             --address-map)"
        ),
        format!("\n{address}: not fit for locks: 1 defect\n\n"),
        format!(
            "\nservice `{SERVICE}` (3 servers, 3 Sentinels): not fit for locks: 1 defect, and "
        ),
        format!("; see {address}\n"),
    ] {
        assert!(outcome.stdout.contains(&text), "{text}: {}", outcome.stdout);
    }
    let findings = Findings::of(&service.url(), &[]);
    assert_eq!(findings.at_level("fail"), [(address.as_str(), "reachable")]);
    assert_eq!(findings.kinds.len(), 6);
}

#[test]
fn sentinels_and_servers_with_tls_are_reached() {
    let authority = Authority::new();
    let service = SentinelService::start_tls(&authority, &authority.server());
    let url = format!(
        "{}?ssl_ca_certs={}",
        service.tls_url(),
        shown(&authority.ca())
    );
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.code, 0, "{findings:#?}");
    assert_eq!(findings.kinds.len(), 6);
    for address in findings.kinds.keys() {
        assert_eq!(findings.text(address, "tls"), "TLS");
        let text = findings.text(address, "certificate");
        assert!(text.ends_with("Z, for 29 days"), "{text}");
    }
}

#[test]
fn unknown_service_is_a_finding_about_each_sentinel() {
    let service = SentinelService::start();
    let url = service.url().replace(SERVICE, "other");
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.code, 1);
    assert_eq!(findings.kinds.len(), 3);
    for address in addresses(service.sentinels()) {
        assert_eq!(
            findings.text(&address, "names_primary"),
            "it knows no service `other`"
        );
    }
    assert!(findings.at_level("fail").contains(&("", "nodes")));
}

#[test]
fn each_node_of_a_cluster_has_a_report() {
    let cluster = RedisCluster::start();
    // By one node, under a name that no other node knows.
    let port = cluster.nodes()[0].port();
    let findings = Findings::of(&format!("redis+cluster://localhost:{port}"), &[]);
    assert_eq!(findings.code, 0, "{findings:#?}");
    let known: BTreeSet<_> = findings.kinds.keys().cloned().collect();
    assert_eq!(known, addresses(cluster.nodes()));
    assert_eq!(findings.of_kind("primary").len(), 3);
    for primary in findings.of_kind("primary") {
        assert_eq!(findings.text(&primary, "topology"), "a node of a cluster");
        // A lock that lives there, and a message on a sharded channel.
        for (id, text) in [
            ("probe", "acquired, renewed"),
            ("notifications", "arrived after"),
        ] {
            assert!(
                findings.text(&primary, id).starts_with(text),
                "{findings:#?}"
            );
        }
    }
    assert_eq!(findings.of_kind("replica").len(), 3);
    assert_eq!(findings.at_level("fail"), []);

    let owner = cluster.owner_of("lock:a");
    let replica = cluster.replica_of(owner);
    replica.kill9();
    let address = replica.address().to_string();
    let findings = Findings::of(&cluster.url(), &[]);
    assert_eq!(findings.code, 1);
    assert_eq!(findings.at_level("fail"), [(address.as_str(), "reachable")]);
}

/// As after a resharding, or before one: no lock lives there.
#[test]
fn node_without_slots_is_no_defect() {
    let cluster = RedisCluster::start_primaries(3);
    let node = RedisServer::options().args(["--cluster-enabled", "yes"]);
    let node = node.start();
    let port = cluster.nodes()[0].port().to_string();
    assert_eq!(
        node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port]),
        Reply::Status("OK".into())
    );
    let (url, address) = (cluster.url(), node.address().to_string());
    let mut findings = Findings::of(&url, &[]);
    eventually(SOON, || {
        findings = Findings::of(&url, &[]);
        findings.kinds.contains_key(&address)
    });
    assert_eq!(findings.code, 0, "{findings:#?}");
    for id in ["probe", "notifications"] {
        let text = "not checked: the node owns no slot, or very few";
        assert_eq!(findings.text(&address, id), text);
    }
    assert_eq!(findings.checks[&address]["app_rights"]["level"], "ok");
}

#[test]
fn rights_in_a_cluster_are_those_of_a_cluster() {
    let cluster = RedisCluster::start();
    let mut command = test_support::guide::acl_command("locks");
    let more = ["+cluster|slots", "+cluster|info", "+ssubscribe", "+asking"];
    command.extend(more.map(ToOwned::to_owned));
    for node in cluster.nodes() {
        assert_eq!(node.cli(&command), Reply::Status("OK".into()));
    }
    let url = cluster.url().replace("://", "://locks:secret@");
    let findings = Findings::of(&url, &["--role", "app"]);
    assert_eq!(findings.code, 0, "{findings:#?}");
    for primary in findings.of_kind("primary") {
        assert_eq!(
            findings.text(&primary, "app_rights"),
            "the user `locks` may acquire, renew and release; locks work without +cluster|myid"
        );
        assert_eq!(
            findings.text(&primary, "notifications"),
            "the user lacks +spublish, +pubsub|shardnumsub"
        );
    }
    let one = cluster.owner_of("lock:a");
    one.cli(&["ACL", "SETUSER", "locks", "-cluster|info"]);
    let findings = Findings::of(&url, &["--role", "app"]);
    let address = one.address().to_string();
    assert_eq!(
        findings.at_level("fail"),
        [(address.as_str(), "app_rights")]
    );
    assert_eq!(
        findings.text(&address, "app_rights"),
        "the user `locks` cannot acquire: it lacks +cluster|info"
    );
}

#[test]
fn each_server_of_a_quorum_has_a_report() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let clock = FrozenClock::at(now.as_micros().try_into().unwrap());
    clock.run_ahead_by(0);
    let start = || RedisServer::options().clock(&clock).start();
    let servers = [start(), start(), start()];
    let hosts: Vec<_> = servers.iter().map(|it| it.address().to_string()).collect();
    let url = format!("redis+quorum://{}", hosts.join(","));
    // A server that has just started may have forgotten locks.
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.at_level("fail"), [("", "probe")]);
    // Longer ago than the quarantine.
    clock.run_ahead_by(120_000_000);
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.of_kind("member"), addresses(&servers));
    assert_eq!(
        findings.text("", "probe"),
        "acquired, renewed and released a lock"
    );
    for host in &hosts {
        assert_eq!(findings.text(host, "topology"), "a server of a quorum");
        // Waiters at a quorum poll, so nothing is said about notifications.
        for id in ["notifications", "probe"] {
            assert!(!findings.checks[host].contains_key(id), "{findings:#?}");
        }
    }
    // Nor does a user need the rights of notifications.
    for server in &servers {
        let rights = ["+@all", "-subscribe", "-publish", "-pubsub"];
        let user = ["ACL", "SETUSER", "locks", "on", ">secret", "~*"];
        server.cli(&[&user[..], &rights].concat());
    }
    let of_user = url.replace("://", "://locks:secret@");
    let findings = Findings::of(&of_user, &["--role", "operator"]);
    for host in &hosts {
        assert_eq!(findings.checks[host]["operator_rights"]["level"], "ok");
    }
    // One that hangs costs its time, and nothing else.
    servers[1].stop();
    let findings = Findings::of(&url, &[]);
    assert!(
        findings
            .at_level("fail")
            .contains(&(&hosts[1], "reachable"))
    );
    findings.text(&hosts[2], "app_rights");
    servers[1].cont();
    // A majority is left.
    let dead = &hosts[2];
    servers[2].kill9();
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.code, 1);
    assert!(findings.at_level("fail").contains(&(dead, "reachable")));
    assert_eq!(findings.checks[""]["probe"]["level"], "ok");
}

/// A node that doesn't tell its id may still mark its own line in the list of nodes.
#[test]
fn seed_of_a_user_without_ids_is_no_second_server() {
    let cluster = RedisCluster::start_primaries(3);
    let create = |more: &[&str]| {
        let mut command = test_support::guide::acl_command("locks");
        let cluster_rights = ["+cluster|slots", "+cluster|info", "+asking"];
        let more = cluster_rights.iter().chain(more);
        command.extend(more.map(|right| (*right).to_owned()));
        for node in cluster.nodes() {
            node.cli(&["ACL", "DELUSER", "locks"]);
            assert_eq!(node.cli(&command), Reply::Status("OK".into()));
        }
    };
    let seed = format!("localhost:{}", cluster.nodes()[0].port());
    let url = format!("redis+cluster://locks:secret@{seed}");
    create(&["+cluster|nodes"]);
    let findings = Findings::of(&url, &[]);
    let known: BTreeSet<_> = findings.kinds.keys().cloned().collect();
    assert_eq!(known, addresses(cluster.nodes()));
    assert!(!findings.checks.contains_key(""), "{findings:#?}");
    create(&[]);
    let findings = Findings::of(&url, &[]);
    assert!(!findings.kinds.contains_key(&seed), "{findings:#?}");
    assert_eq!(findings.code, 0, "{findings:#?}");
    let outcome = doctor(&url, &[]);
    let text = format!("{seed} does not say which node of the cluster it is");
    assert!(outcome.stdout.contains(&text), "{outcome:?}");
}

/// The reports of the servers say why, and what to do at which of them.
#[test]
fn quorum_without_a_fit_server_has_no_probe() {
    let nowhere = ["--replicaof", "127.0.0.1", "1"];
    let start = |password| RedisServer::options().args(nowhere).password(password);
    let servers = [
        start("secret").start(),
        start("secret").start(),
        start("other").start(),
    ];
    let hosts: Vec<_> = servers.iter().map(|it| it.address().to_string()).collect();
    let url = format!("redis+quorum://:secret@{}", hosts.join(","));
    let findings = Findings::of(&url, &[]);
    assert_eq!(
        findings.text("", "probe"),
        "not checked: no server of the quorum has passed the checks that a lock needs"
    );
    assert_eq!(
        findings.checks[&hosts[2]]["reachable"]["do"],
        "check the user and the password on this server"
    );
}

/// As in containers: the nodes announce names that only they can resolve.
#[test]
fn announced_addresses_are_reached_as_a_service_reaches_them() {
    let cluster = RedisCluster::start_with(|at, options| {
        options
            .args(["--cluster-announce-hostname", &format!("node-{at}.invalid")])
            .args(["--cluster-preferred-endpoint-type", "hostname"])
    });
    let url = format!("redis+cluster://{}", cluster.nodes()[0].address());
    let ports = cluster.nodes().iter().map(RedisServer::port).enumerate();
    let announced = |(at, port)| (format!("node-{at}.invalid:{port}"), port);
    let announced: Vec<_> = ports.map(announced).collect();
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.code, 1);
    let primaries = findings.of_kind("primary");
    assert_eq!(primaries.len(), 3, "{findings:#?}");
    for primary in &primaries {
        let text = findings.text(primary, "reachable");
        assert!(text.contains(primary), "{text}");
        let advice = "the cluster announced this address; if this client reaches the server at another one, set \
            --address-map";
        assert!(text.contains(advice), "{text}");
    }
    let map = announced
        .iter()
        .map(|(name, port)| format!("{name}=127.0.0.1:{port}"));
    let map = map.collect::<Vec<_>>().join(",");
    let findings = Findings::of(&url, &["--address-map", &map]);
    assert_eq!(findings.code, 0, "{findings:#?}");
    assert_eq!(findings.of_kind("primary"), primaries);
    for (name, port) in announced
        .iter()
        .filter(|(name, _)| primaries.contains(name))
    {
        let text = findings.text(name, "reachable");
        let begin = format!("127.0.0.1:{port} (announced as {name}), 20 pings");
        assert!(text.starts_with(&begin), "{text}");
    }
}

/// As the other commands end.
#[test]
fn servers_of_which_none_can_be_reached_have_nothing_to_check() {
    let service = SentinelService::start();
    for server in service.sentinels() {
        server.kill9();
    }
    let list = Lockctl::new(&["list"]).env("DISTRIBUTED_LOCK_URL", service.url());
    let (list, doctor) = (list.run(), doctor(&service.url(), &[]));
    assert_eq!((doctor.code, &*doctor.stdout), (Some(69), ""), "{doctor:?}");
    assert_eq!(doctor.code, list.code);
    assert!(
        doctor.stderr.contains("no Sentinel of the service"),
        "{doctor:?}"
    );
}

/// A slot map that a node has lost, or a service that the URL takes for a cluster.
#[test]
fn server_that_is_no_cluster_fails_as_one() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://{}", server.address());
    let findings = Findings::of(&url, &[]);
    assert_eq!(findings.code, 1, "{findings:#?}");
    assert!(findings.at_level("fail").contains(&("", "nodes")));
    let text = findings.text("", "nodes");
    assert!(
        text.contains("does not tell the slots of the cluster"),
        "{text}"
    );
    assert_eq!(
        findings.text(&server.address().to_string(), "topology"),
        "not in the slot map of the cluster"
    );
}
