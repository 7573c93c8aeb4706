//! Consumers that share a queue: one consumer at a time for each customer, and each customer's jobs in
//! order.
//!
//! `cargo run -p examples --example queue_consumer`
//!
//! For several consumers: `--redis URL --queue FOLDER --log FILE`. `--add N` puts N jobs of each customer
//! into the queue first. `--work MS` is the time for one job.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use examples::Table;
use lock_core::{LockManager, distributed_lock};

const CUSTOMERS: [&str; 3] = ["acme", "bolt", "cargo"];

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let consumer = Consumer {
        locks: examples::locks().await?,
        queue: Table::open("--queue")?,
        log: examples::option("--log")?,
        work: examples::option("--work")?.map_or(Duration::from_millis(20), Duration::from_millis),
    };
    let jobs: u32 = examples::option("--add")?.unwrap_or(4);
    for number in 0..jobs {
        for customer in CUSTOMERS {
            let job = format!("{customer}/{number:04}");
            consumer.queue.put(&job, "ship")?;
        }
    }
    // A real consumer runs until it is stopped.
    while !consumer.queue.keys()?.is_empty() {
        for customer in CUSTOMERS {
            consumer.drain(customer).await?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    consumer.locks.shutdown().await?;
    Ok(())
}

struct Consumer {
    locks: LockManager,
    queue: Table,
    log: Option<PathBuf>,
    work: Duration,
}

impl Consumer {
    // region: drain
    /// Does all jobs of a customer, the oldest first. Skips a customer whose jobs another consumer does.
    #[distributed_lock(
        name = "customer:{customer}",
        ttl = "2s",
        on_contended = skip,
        manager = self.locks,
    )]
    async fn drain(&self, customer: &str) -> Result<(), Box<dyn Error>> {
        // Takes the job under the lock. A consumer that takes the job first, and then waits for the
        // lock, can be overtaken by a consumer with a later job.
        while let Some(job) = self.oldest(customer)? {
            self.ship(&job).await?;
            // Removed after the work: after a crash, the next consumer repeats the job.
            self.queue.remove(&job)?;
        }
        Ok(())
    }
    // endregion

    fn oldest(&self, customer: &str) -> std::io::Result<Option<String>> {
        let mut jobs = self.queue.keys()?.into_iter();
        Ok(jobs.find(|job| job.split('/').next() == Some(customer)))
    }

    async fn ship(&self, job: &str) -> std::io::Result<()> {
        tokio::time::sleep(self.work).await;
        println!("{job}");
        match &self.log {
            Some(log) => examples::append(log, job),
            None => Ok(()),
        }
    }
}
