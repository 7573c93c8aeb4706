//! A batch job that stops at a safe point when its lock is about to be lost, and continues there later.
//!
//! `cargo run -p examples --example safe_point`
//!
//! For a real outage: `--redis URL --state FOLDER`. `--rows N` is the number of rows, and `--row MS` the time for one.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use examples::Table;
use lock_core::{LockManager, distributed_lock};

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let import = Import {
        state: Table::open("--state")?,
        rows: examples::option("--rows")?.unwrap_or(5),
        row: examples::option("--row")?.map_or(Duration::from_millis(20), Duration::from_millis),
    };
    let locks = examples::locks().await?;
    let copied = import.copy(&locks).await?;
    if copied < import.rows {
        println!("stopped behind row {copied}: the lock is about to be lost");
    } else {
        println!("copied all {copied} rows");
    }
    locks.shutdown().await?;
    Ok(())
}

struct Import {
    state: Table,
    rows: u32,
    row: Duration,
}

impl Import {
    // region: copy
    /// Copies the rows that are left, and returns how many have been copied, by all runs together.
    #[distributed_lock(name = "import", ttl = "3s", bind = held, manager = locks)]
    async fn copy(&self, locks: &LockManager) -> Result<u32, Box<dyn Error>> {
        let mut next = self.checkpoint()?;
        // Between two rows, the job can stop and lose nothing. In the middle of one, it can't: if the lock were lost
        // there, the library would drop the body, and the row would stay half-copied.
        while next < self.rows && !held.is_at_risk() {
            self.copy_row(next).await;
            next += 1;
            self.state.put("checkpoint", &next.to_string())?;
        }
        Ok(next)
    }
    // endregion

    /// Returns how many rows have been copied.
    fn checkpoint(&self) -> Result<u32, Box<dyn Error>> {
        match self.state.get("checkpoint")? {
            Some(text) => Ok(text.parse()?),
            None => Ok(0),
        }
    }

    async fn copy_row(&self, row: u32) {
        println!("row {row}: begun");
        tokio::time::sleep(self.row).await;
        println!("row {row}: done");
    }
}
