//! Starts a Redis Cluster of six local nodes, and shows one lock while its slot moves to another node, and
//! while its node is killed.
//!
//! Needs `redis-server`, and no running server: `cargo run -p examples --example cluster`

mod nodes;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lock_core::config::Confirm;
use lock_core::{FencingToken, LockManager, distributed_lock};

use nodes::LocalCluster;

const ORDER: u32 = 7;
/// The key of the order's lock.
const KEY: &str = "lock:order:7";
/// Longer than a failover, which takes 3 s to 4 s here.
const TTL: Duration = Duration::from_secs(20);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await.map_err(|error| error as Box<dyn Error>))
}

async fn run() -> Result<(), BoxError> {
    let mut cluster = LocalCluster::start().await?;
    let show = Story::begin();
    show.line(&format!("six nodes run: {}", cluster.url()));

    // A lock counts when a replica has it too, so a failover cannot lose it.
    let confirm = Confirm::replicas(1).within(Duration::from_millis(500));
    let here = LockManager::builder().confirm(confirm).default_ttl(TTL);
    let here = here.connect(&cluster.url()).await?;
    let there = LockManager::connect(&cluster.url()).await?;

    let guard = here.lock(format!("order:{ORDER}")).acquire().await?;
    let token = examples::token(&guard)?;
    let first = cluster.owner_of(KEY).await?;
    show.line(&format!("acquired at node {first}, token {token}"));
    let waiting = tokio::spawn(pay(there.clone(), ORDER));

    let second = cluster.move_slot(KEY).await?;
    guard.renew().await?;
    show.line(&format!("slot moved to node {second}, lock renewed there"));

    cluster.kill(second);
    show.line(&format!("node {second} killed"));
    let third = cluster.owner_after(KEY, second).await?;
    show.line(&format!("its replica, node {third}, took over"));
    // Comes back as the replica that acknowledges the next renewal.
    cluster.restart(second).await?;
    cluster.wait_for_replica_of(third).await?;
    // A renewal that was on its way before may still fail, and the next one is acknowledged.
    nodes::until("a confirmed renewal", async || {
        Ok(guard.renew().await.is_ok())
    })
    .await?;
    let free = there.lock(format!("order:{ORDER}")).try_acquire().await?;
    if guard.is_lost() || free.is_some() {
        return Err("the lock was lost".into());
    }
    show.line(&format!("lock renewed at node {third}, nobody else got it"));

    guard.release().await?;
    let next = waiting.await??;
    if next <= token {
        return Err(format!("token {next} is not above {token}").into());
    }
    show.line(&format!("released: the waiting call ran with token {next}"));
    here.shutdown().await?;
    there.shutdown().await?;
    Ok(())
}

/// Waits until the order is free. The URL of the manager is all that a cluster changes.
#[distributed_lock(name = "order:{order}", wait = "60s", manager = locks, bind = held)]
async fn pay(locks: LockManager, order: u32) -> Result<FencingToken, BoxError> {
    Ok(examples::token(held)?)
}

/// Prints lines with the time since the beginning.
struct Story(Instant);

impl Story {
    fn begin() -> Self {
        Self(Instant::now())
    }

    fn line(&self, text: &str) {
        println!("{:6} ms  {text}", self.0.elapsed().as_millis());
    }
}
