//! Instances that start together, one of which migrates the database.
//!
//! `cargo run -p examples --features sqlite --example migrations_at_startup -- --redis URL --database FILE`
//!
//! `--step MS` makes each migration slower.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{LockManager, distributed_lock};
use rusqlite::Connection;

/// The migrations, in order. A migration never changes after its release.
const STEPS: [&str; 3] = [
    "CREATE TABLE account (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)",
    "ALTER TABLE account ADD COLUMN token INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX account_by_cents ON account (cents)",
];

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let mut database = match examples::option::<PathBuf>("--database")? {
        Some(file) => Connection::open(file)?,
        None => Connection::open_in_memory()?,
    };
    database.busy_timeout(Duration::from_secs(10))?;
    let pause = examples::option("--step")?.map_or(Duration::ZERO, Duration::from_millis);
    let version = migrate(&locks, &mut database, pause).await?;
    // Only now the service accepts requests.
    println!("ready at version {version}");
    locks.shutdown().await?;
    Ok(())
}

// region: migrate
/// Waits while another instance migrates, and then finds nothing to do.
///
/// The ttl is long: no instance may begin in the middle of a migration only because the first one was
/// paused for some seconds. The wait is as long as all migrations may take.
#[distributed_lock(name = "migrations", ttl = "1m", wait = "5m", manager = locks)]
async fn migrate(
    locks: &LockManager,
    database: &mut Connection,
    pause: Duration,
) -> Result<u32, Box<dyn Error>> {
    // Read under the lock: another instance may have migrated meanwhile.
    let first = version(database)?;
    for (number, step) in (0..).zip(STEPS).filter(|(number, _)| *number >= first) {
        let transaction = database.transaction()?;
        transaction.execute_batch(step)?;
        // The row is the fence. It refuses this step when another instance has made it.
        let rows = transaction.execute(
            "UPDATE schema_version SET version = ?1 + 1 WHERE version = ?1",
            [number],
        )?;
        if rows != 1 {
            return Err("another instance migrated at the same time".into());
        }
        transaction.commit()?;
        println!("applied step {number}");
        // SQLite does not await. Here the body can end when the lock is lost.
        tokio::time::sleep(pause).await;
    }
    Ok(version(database)?)
}
// endregion

/// Returns how many steps the database has.
fn version(database: &Connection) -> rusqlite::Result<u32> {
    database.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL);
         INSERT INTO schema_version SELECT 0 WHERE NOT EXISTS (SELECT * FROM schema_version);",
    )?;
    database.query_row("SELECT version FROM schema_version", [], |row| row.get(0))
}
