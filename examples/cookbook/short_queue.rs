//! A report that one caller makes at a time. A few callers wait, and all others are told when to come back.
//!
//! `cargo run -p examples --example short_queue`
//!
//! For several instances: `--redis URL`. `--report MS` is the time of a report.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;

/// The callers of one instance, all at once.
const CALLERS: u32 = 20;

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let reports = Arc::new(Reports {
        locks: examples::locks().await?,
        time: examples::option("--report")?
            .map_or(Duration::from_millis(300), Duration::from_millis),
    });
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let reports = Arc::clone(&reports);
        callers.spawn(async move { reports.answer(7).await });
    }
    let (mut made, mut refused) = (0, 0);
    for status in callers.join_all().await {
        match status {
            200 => made += 1,
            429 => refused += 1,
            other => return Err(format!("status {other}").into()),
        }
    }
    println!("{made} reports, {refused} callers told to come back");
    reports.locks.shutdown().await?;
    Ok(())
}

struct Reports {
    locks: LockManager,
    time: Duration,
}

impl Reports {
    // region: report
    async fn answer(&self, customer: u32) -> u16 {
        match self.make(customer).await {
            Ok(()) => 200,
            Err(LockError::QueueFull { .. }) => 429,
            Err(_) => 503,
        }
    }

    #[distributed_lock(name = "report:{customer}", wait = "10s", max_queue = 3, manager = self.locks)]
    async fn make(&self, customer: u32) -> Result<(), LockError> {
        self.render(customer).await;
        Ok(())
    }
    // endregion

    async fn render(&self, _customer: u32) {
        tokio::time::sleep(self.time).await;
    }
}
