//! Credentials that change while a manager uses a cluster.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use lock_core::LockManager;
use lock_core::config::{CredentialProvider, Credentials};
use test_support::fixtures::SOON;
use test_support::{Failover, RedisCluster, RedisServer, eventually_async};
use tests::one_attempt;

use super::{FAILOVER, KEY, NAME, start_waiter};

const USER: &str = "app";

/// Gives out the password that the test has set last.
#[derive(Clone, Default)]
struct Vault(Arc<Mutex<String>>);

impl Vault {
    fn provider(&self) -> impl CredentialProvider {
        let password = Arc::clone(&self.0);
        move || {
            let password = password.lock().unwrap().clone();
            async move { Ok::<_, Infallible>(Credentials::new(USER, password)) }
        }
    }

    /// Makes this the only password of the user at all nodes, and ends the connections of the old one. Returns how many
    /// there were.
    fn rotate(&self, cluster: &RedisCluster, password: &str) -> i64 {
        let new = format!(">{password}");
        for node in cluster.nodes() {
            let words = ["ACL", "SETUSER", USER, "on", "resetpass", &new];
            let reply = node.cli(&[&words[..], &["~*", "&*", "+@all"]].concat());
            assert_eq!(reply.error(), None);
        }
        password.clone_into(&mut self.0.lock().unwrap());
        let kill = |node: &RedisServer| node.cli(&["CLIENT", "KILL", "USER", USER]).integer();
        cluster.nodes().iter().map(kill).sum()
    }
}

/// Returns how many connections of the user a node has.
fn logins(node: &RedisServer) -> usize {
    let list = node.cli(&["CLIENT", "LIST"]);
    list.text().matches(&format!(" user={USER} ")).count()
}

/// Returns names of locks of all primaries.
fn names(cluster: &RedisCluster) -> Vec<String> {
    let mut seen = Vec::new();
    let names = (0..).map(|at| format!("n:{at}"));
    let names = names.filter(|name| {
        let owner = cluster.owner_of(&format!("lock:{name}")).port();
        let is_new = !seen.contains(&owner);
        seen.push(owner);
        is_new
    });
    names.take(3).collect()
}

/// Waits until the manager uses a lock of each primary, with a connection of the user.
async fn use_all(locks: &LockManager, cluster: &RedisCluster) {
    for name in names(cluster) {
        let request = || locks.lock(name.clone()).wait(FAILOVER);
        let held = request().acquire().await.unwrap();
        assert!(logins(cluster.owner_of(&format!("lock:{name}"))) > 0);
        held.release().await.unwrap();
    }
}

/// No node knows the old password any more, and all connections have ended. A replica that takes over gets the new
/// password too, and the waiter stays in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_is_used_at_every_node() {
    let cluster = RedisCluster::start();
    let vault = Vault::default();
    vault.rotate(&cluster, "first");
    let builder = one_attempt(LockManager::builder()).credentials(vault.provider());
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let mut held = locks.lock(NAME).acquire().await.unwrap();
    use_all(&locks, &cluster).await;
    for password in ["second", "third"] {
        let waiter = start_waiter(&locks).await;
        assert!(vault.rotate(&cluster, password) >= 3);
        use_all(&locks, &cluster).await;
        eventually_async(SOON, async || held.renew().await.is_ok()).await;
        let replica = cluster.replica_of(cluster.owner_of(KEY));
        cluster.failover(KEY, replica, Failover::Agreed);
        eventually_async(SOON, async || held.renew().await.is_ok()).await;
        assert!(logins(replica) > 0);
        held.release().await.unwrap();
        held = tokio::time::timeout(SOON, waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        cluster.wait_stable();
    }
    held.release().await.unwrap();
    assert_eq!(locks.stats().lost, 0);
    for node in cluster.nodes() {
        let old = node.cli(&["AUTH", USER, "second"]);
        assert!(
            old.error()
                .is_some_and(|line| line.starts_with("WRONGPASS"))
        );
    }
}
