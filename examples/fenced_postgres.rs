//! PostgreSQL refuses the write of a holder that comes too late.
//!
//! ```sh
//! cargo run -p examples --features postgres --example fenced_postgres -- \
//!     --database 'host=localhost user=postgres' --redis redis://127.0.0.1:6379
//! ```
//!
//! Uses the table `fenced_account`, and creates it if it is missing.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{FencingToken, Renew};
use tokio_postgres::{Client, NoTls};

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let url: Option<String> = examples::option("--database")?;
    let url = url.ok_or("pass `--database 'host=localhost user=postgres'`")?;
    let account = Account::open(&url).await?;

    // This holder reads, and is paused before it writes. `Renew::Never` stands for the pause: the lease
    // ends as it does when the process does not run.
    let lock = locks.lock("account:1").ttl(Duration::from_secs(1));
    let paused = lock.renew(Renew::Never).acquire().await?;
    let old = examples::token(&paused)?;
    let read = account.read(old).await?.ok_or("a later holder has read")?;
    paused.lost().await;
    drop(paused);

    let held = locks.lock("account:1").acquire().await?;
    let new = examples::token(&held)?;
    let cents = account.read(new).await?.ok_or("a later holder has read")?;
    println!(
        "in time: {}",
        verdict(account.write(new, cents - 30).await?)
    );
    held.release().await?;

    println!("late: {}", verdict(account.write(old, read - 50).await?));
    let left = account.read(new).await?.ok_or("a later holder has read")?;
    println!("=> {left} left");
    locks.shutdown().await?;
    Ok(())
}

fn verdict(accepted: bool) -> &'static str {
    if accepted { "accepted" } else { "refused" }
}

struct Account(Client);

impl Account {
    async fn open(url: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let table = "
            CREATE TABLE IF NOT EXISTS fenced_account
                (id bigint PRIMARY KEY, cents bigint NOT NULL, token bigint NOT NULL DEFAULT 0);
            INSERT INTO fenced_account VALUES (1, 100) ON CONFLICT DO NOTHING";
        client.batch_execute(table).await?;
        Ok(Self(client))
    }

    // region: account
    /// Reads the account, and records the token: from now on, the table refuses lower tokens. Returns
    /// nothing if a later holder was here.
    async fn read(&self, token: FencingToken) -> Result<Option<i64>, tokio_postgres::Error> {
        let sql =
            "UPDATE fenced_account SET token = $1 WHERE id = 1 AND token <= $1 RETURNING cents";
        let row = self.0.query_opt(sql, &[&token.as_i64()]).await?;
        row.map(|row| row.try_get(0)).transpose()
    }

    /// Writes the account. Returns whether it did: no row changes when the token is too low.
    async fn write(&self, token: FencingToken, cents: i64) -> Result<bool, tokio_postgres::Error> {
        let sql = "UPDATE fenced_account SET cents = $2, token = $1 WHERE id = 1 AND token <= $1";
        Ok(self.0.execute(sql, &[&token.as_i64(), &cents]).await? == 1)
    }
    // endregion
}
