//! Clusters with a node that is down.

use serde_json::Value;
use test_support::fixtures::SOON;
use test_support::{RedisCluster, RedisServer, eventually};

use crate::program::{LOCKCTL, Lockctl, Outcome};
use crate::terminal::Terminal;

/// Enough for each primary to have some.
const LOCKS: usize = 24;

fn on(cluster: &RedisCluster, arguments: &[&str]) -> Lockctl {
    Lockctl::new(arguments).env("DISTRIBUTED_LOCK_URL", cluster.url())
}

/// Starts a cluster whose nodes go on with their slots while another one is down, with locks on each primary. Returns a
/// primary without a replica.
fn start() -> (RedisCluster, usize) {
    let alone = ["--cluster-require-full-coverage", "no"];
    let cluster = RedisCluster::start_with(|_, options| options.args(alone));
    for at in 0..LOCKS {
        set(&cluster, &format!("lock:n:{at}"));
    }
    let owner = cluster.owner_of("lock:n:0");
    cluster.detach(cluster.replica_of(owner));
    let port = owner.port();
    let mut nodes = cluster.nodes().iter();
    let at = nodes.position(|node| node.port() == port);
    (cluster, at.expect("it is one of them"))
}

/// Writes a lock, as the library does, once its node accepts it.
fn set(cluster: &RedisCluster, key: &str) {
    let value = "lk1:00000001-0000-4000-8000-000000000000 7 1700000000000 web-1:42";
    let command = ["SET", key, value, "PX", "600000"];
    eventually(SOON, || {
        cluster.owner_of(key).cli(&command).error().is_none()
    });
}

fn names(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stdout.lines().skip(1);
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

#[test]
fn list_with_a_dead_node_shows_the_others_and_names_it() {
    let (cluster, at) = start();
    let dead = &cluster.nodes()[at];
    let address = dead.address().to_string();
    dead.kill9();
    let outcome = on(&cluster, &["list", "-v"]).run();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let listed = names(&outcome);
    assert!(!listed.is_empty() && listed.len() < LOCKS, "{outcome:?}");
    assert!(!listed.contains(&"n:0"), "{outcome:?}");
    let text = format!(
        "lockctl: the list lacks the locks of a node that cannot be read: {address}\n\
         lockctl: caused by: "
    );
    assert!(outcome.stderr.starts_with(&text), "{outcome:?}");
    // A pattern that only the dead node has.
    let outcome = on(&cluster, &["list", "n:0", "-q"]).run();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains(&address), "{outcome:?}");
    let outcome = on(&cluster, &["list", "--json"]).run();
    assert_eq!((outcome.code, &*outcome.stderr), (Some(1), ""));
    let last: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["schema"], "lockctl.error/1");
    assert_eq!(last["kind"], "incomplete");
    assert_eq!(outcome.stdout.lines().count(), listed.len() + 1);
    // Without a file, it has forgotten its locks.
    dead.restart();
    eventually(SOON, || {
        let outcome = on(&cluster, &["list"]).run();
        outcome.code == Some(0) && names(&outcome).len() == listed.len()
    });
}

#[test]
fn watch_does_not_take_the_locks_of_a_frozen_node_for_free() {
    let (cluster, at) = start();
    let frozen = &cluster.nodes()[at];
    let watch = on(&cluster, &["watch", "n:*", "--interval", "20ms"]).start();
    eventually(SOON, || watch.stdout().lines().count() == LOCKS);
    frozen.stop();
    eventually(SOON, || watch.stderr().contains("the list lacks"));
    let address = frozen.address().to_string();
    assert!(watch.stderr().contains(&address), "{}", watch.stderr());
    // A lock of another node is followed in the meantime.
    let mut others = (0..1_000).map(|at| format!("lock:n:other:{at}"));
    let is_elsewhere = |key: &String| cluster.owner_of(key).port() != frozen.port();
    let other = others.find(is_elsewhere).unwrap();
    set(&cluster, &other);
    let name = other.trim_start_matches("lock:");
    eventually(SOON, || watch.stdout().contains(name));
    frozen.cont();
    // The next look that succeeds finds a new lock, and no other change.
    set(&cluster, "lock:n:new");
    eventually(SOON, || watch.stdout().contains("n:new"));
    let changes: Vec<_> = watch
        .stdout()
        .lines()
        .skip(LOCKS)
        .map(ToOwned::to_owned)
        .collect();
    assert!(
        changes.len() == 2 && changes[0].contains(name) && changes[1].contains("n:new"),
        "{changes:?}"
    );
}

#[test]
fn watch_on_a_terminal_shows_the_others_of_a_dead_node_and_names_it() {
    let (cluster, at) = start();
    let dead = &cluster.nodes()[at];
    let is_elsewhere = |at: &usize| cluster.owner_of(&format!("lock:n:{at}")).port() != dead.port();
    let other = (0..LOCKS).find(is_elsewhere).unwrap();
    let address = dead.address().to_string();
    dead.kill9();
    let nobody = RedisServer::start();
    let url = cluster.url();
    let program = [LOCKCTL, "watch", "n:*", "--interval", "20ms", "--url", &url];
    let terminal = Terminal::start(&nobody, &program);
    eventually(SOON, || terminal.screen().contains("the list lacks"));
    eventually(SOON, || terminal.screen().contains(&format!("n:{other} ")));
    let screen = terminal.screen();
    assert!(screen.contains(&address), "{screen}");
}
