//! A database that rejects the late write of a holder that was paused.
//!
//! `cargo run -p examples --features sqlite --example fenced -- --redis redis://127.0.0.1:6379`
//!
//! A child process acquires the lock, reads an account, and is stopped (SIGSTOP) before it writes. Its
//! lease expires. The parent acquires the lock, reads and writes. Then the child continues (SIGCONT)
//! and writes a balance that is out of date. No lock can prevent this: the process was stopped between its
//! last check of the lock and its write. The table without a token accepts the late write, and the
//! parent's write is lost. The table with a token rejects the late write.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use lock_core::{FencingToken, LockManager};
use rusqlite::{Connection, params};
use rustix::process::{Pid, Signal, kill_process};

const LOCK: &str = "account:1";
/// Short, so that the parent soon gets the lock of the stopped child.
const TTL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> ExitCode {
    let result = match examples::option::<PathBuf>("--child") {
        Ok(Some(path)) => child(&path).await,
        Ok(None) => parent().await,
        Err(error) => Err(error.into()),
    };
    examples::end(result)
}

async fn parent() -> Result<(), Box<dyn Error>> {
    let url = examples::lock_url()?;
    let path = std::env::temp_dir().join(format!("fenced-{}.sqlite", std::process::id()));
    let database = Accounts::create(&path)?;
    let locks = LockManager::connect(&url).await?;

    let mut child = start_child(&path, &url)?;
    child.read("read")?;
    kill_process(child.pid()?, Signal::STOP)?;
    println!("the child holds the lock, has read both accounts, and is stopped");

    let guard = locks.lock(LOCK).ttl(TTL).wait(TIMEOUT).acquire().await?;
    let token = column(guard.fencing_token())?;
    let read = database.read(token)?;
    let answer = database.write(token, &read.minus(30))?;
    println!("the parent acquired the lock and withdraws 30: {answer}");
    guard.release().await?;
    locks.shutdown().await?;

    kill_process(child.pid()?, Signal::CONT)?;
    child.send("continue")?;
    let late = child.read("wrote")?;
    println!("the child continues and withdraws 50 from the balance that it read: {late}");
    child.process.wait()?;

    // The fenced table has 100 - 30, and the child knows that its withdrawal was rejected.
    let end = database.read(token)?;
    println!(
        "=> without a token: {} left, the parent's write is lost",
        end.plain
    );
    println!(
        "=> with a token: {} left, the late write was rejected",
        end.fenced
    );
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Acquires the lock, reads, is stopped by the parent, and writes too late.
async fn child(path: &Path) -> Result<(), Box<dyn Error>> {
    let database = Accounts::open(path)?;
    let locks = LockManager::connect(&examples::lock_url()?).await?;
    let guard = locks.lock(LOCK).ttl(TTL).acquire().await?;
    let token = column(guard.fencing_token())?;
    // The read records the token too: from now on the table rejects older tokens.
    let read = database.read(token)?;
    println!("read");
    // The parent stops the process here, while it does not check the lock.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    println!("wrote {}", database.write(token, &read.minus(50))?);
    drop(guard);
    locks.shutdown().await?;
    Ok(())
}

/// Converts the token to the type that SQLite stores.
fn column(token: Option<FencingToken>) -> Result<i64, Box<dyn Error>> {
    let token = token.ok_or("the lock has no fencing token")?;
    Ok(token.try_into()?)
}

/// Two accounts with the same balance: one accepts every write, the other rejects late writes.
struct Accounts(Connection);

struct Balances {
    plain: i64,
    fenced: i64,
}

impl Balances {
    fn minus(&self, amount: i64) -> Self {
        Self {
            plain: self.plain - amount,
            fenced: self.fenced - amount,
        }
    }
}

impl Accounts {
    fn create(path: &Path) -> rusqlite::Result<Self> {
        let accounts = Self::open(path)?;
        accounts.0.execute_batch(
            "CREATE TABLE plain (balance INTEGER NOT NULL);
             CREATE TABLE fenced (balance INTEGER NOT NULL, token INTEGER NOT NULL);
             INSERT INTO plain VALUES (100);
             INSERT INTO fenced VALUES (100, 0);",
        )?;
        Ok(accounts)
    }

    fn open(path: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(TIMEOUT)?;
        Ok(Self(connection))
    }

    /// Reads both accounts, and records the token of the reader.
    fn read(&self, token: i64) -> rusqlite::Result<Balances> {
        self.0
            .execute("UPDATE fenced SET token = max(token, ?1)", params![token])?;
        let balance = |table| {
            let query = format!("SELECT balance FROM {table}");
            self.0.query_row(&query, [], |row| row.get(0))
        };
        Ok(Balances {
            plain: balance("plain")?,
            fenced: balance("fenced")?,
        })
    }

    /// Writes both accounts. One statement checks the token and writes, so that no other write comes
    /// between.
    fn write(&self, token: i64, new: &Balances) -> rusqlite::Result<&'static str> {
        self.0
            .execute("UPDATE plain SET balance = ?1", params![new.plain])?;
        // region: write
        let rows = self.0.execute(
            "UPDATE fenced SET balance = ?1, token = ?2 WHERE token <= ?2",
            params![new.fenced, token],
        )?;
        // endregion
        Ok(if rows == 1 { "accepted" } else { "rejected" })
    }
}

struct ChildProcess {
    process: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

fn start_child(path: &Path, url: &str) -> Result<ChildProcess, Box<dyn Error>> {
    let mut process = Command::new(std::env::current_exe()?)
        .args(["--redis", url, "--child"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let input = process.stdin.take().ok_or("the child has no input")?;
    let output = process.stdout.take().ok_or("the child has no output")?;
    Ok(ChildProcess {
        process,
        input,
        output: BufReader::new(output),
    })
}

impl ChildProcess {
    fn pid(&self) -> Result<Pid, Box<dyn Error>> {
        Ok(Pid::from_raw(i32::try_from(self.process.id())?).ok_or("no such process")?)
    }

    /// Waits for a line with this beginning, and returns the rest of the line.
    fn read(&mut self, beginning: &str) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let rest = line.trim().strip_prefix(beginning);
        Ok(rest.ok_or("the child failed")?.trim().to_owned())
    }

    fn send(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.input, "{line}")
    }
}
