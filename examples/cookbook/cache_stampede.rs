//! A cache that one caller fills, while the others wait for the value.
//!
//! `cargo run -p examples --example cache_stampede`
//!
//! For several instances: `--redis URL --cache FOLDER`. `--query MS` is the time of the slow query.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use examples::Table;
use lock_core::{LockManager, distributed_lock};
use tokio::task::JoinSet;

/// The callers of one instance.
const CALLERS: u32 = 20;

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let prices = Arc::new(Prices {
        locks: examples::locks().await?,
        cache: Table::open("--cache")?,
        query: examples::option("--query")?
            .map_or(Duration::from_millis(300), Duration::from_millis),
        queries: AtomicU32::new(0),
    });
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let prices = Arc::clone(&prices);
        callers.spawn(async move { prices.price(7).await });
    }
    let mut answers = 0;
    for answer in callers.join_all().await {
        answer.map_err(|failure| failure as Box<dyn Error>)?;
        answers += 1;
    }
    let queries = prices.queries.load(Ordering::Relaxed);
    println!("{answers} answers, {queries} queries");
    prices.locks.shutdown().await?;
    Ok(())
}

type Failure = Box<dyn Error + Send + Sync>;

struct Prices {
    locks: LockManager,
    cache: Table,
    query: Duration,
    queries: AtomicU32,
}

impl Prices {
    // region: price
    async fn price(&self, item: u32) -> Result<String, Failure> {
        // A hit needs no lock.
        match self.cached(item)? {
            Some(price) => Ok(price),
            None => self.load(item).await,
        }
    }

    #[distributed_lock(name = "price:{item}", ttl = "5s", wait = "10s", manager = self.locks)]
    async fn load(&self, item: u32) -> Result<String, Failure> {
        // The second look: another caller has filled the cache while this one waited.
        if let Some(price) = self.cached(item)? {
            return Ok(price);
        }
        let price = self.slow_query(item).await;
        self.cache.put(&item.to_string(), &price)?;
        Ok(price)
    }
    // endregion

    fn cached(&self, item: u32) -> std::io::Result<Option<String>> {
        self.cache.get(&item.to_string())
    }

    async fn slow_query(&self, item: u32) -> String {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.query).await;
        format!("{item} EUR")
    }
}
