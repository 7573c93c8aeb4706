//! A database that refuses the late write of a holder that was paused.
//!
//! `cargo run -p examples --features sqlite --example fenced -- --redis redis://127.0.0.1:6379`
//!
//! A child process takes the lock, reads an account and is stopped (SIGSTOP) before it writes.
//! Its lease ends, the parent takes the lock, reads and writes. Then the child goes on
//! (SIGCONT) and writes what it had computed long ago. No lock can prevent that: the process was
//! asleep between its last look at the lock and its write. The table without a token takes the
//! write and loses the parent's; the table with one refuses it.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use lock_core::{FencingToken, LockManager};
use rusqlite::{Connection, params};
use rustix::process::{Pid, Signal, kill_process};

const LOCK: &str = "account:1";
/// Short, so that nobody waits long for the end of a lease whose holder sleeps.
const TTL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> ExitCode {
    let result = match examples::option::<PathBuf>("--child") {
        Ok(Some(path)) => sleeper(&path).await,
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
    child.says("read")?;
    kill_process(child.pid()?, Signal::STOP)?;
    println!("the child holds the lock, has read both accounts, and is stopped");

    let guard = locks.lock(LOCK).ttl(TTL).wait(PATIENCE).acquire().await?;
    let token = column(guard.fencing_token())?;
    let read = database.read(token)?;
    let answer = database.write(token, &read.minus(30))?;
    println!("the parent has the lock now and takes 30: {answer}");
    guard.release().await?;

    kill_process(child.pid()?, Signal::CONT)?;
    child.tell("go on")?;
    let late = child.says("wrote")?;
    println!("the child wakes up and takes 50 of what it read: {late}");
    child.process.wait()?;

    // 100 - 30; the child's 50 were never taken, and it knows.
    let end = database.read(token)?;
    println!(
        "=> without a token: {} left, the parent's write is lost",
        end.plain
    );
    println!(
        "=> with a token: {} left, the late write was refused",
        end.fenced
    );
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Takes the lock, reads, is stopped by the parent, and writes when it is too late.
async fn sleeper(path: &Path) -> Result<(), Box<dyn Error>> {
    let database = Accounts::open(path)?;
    let locks = LockManager::connect(&examples::lock_url()?).await?;
    let guard = locks.lock(LOCK).ttl(TTL).acquire().await?;
    let token = column(guard.fencing_token())?;
    // The token is shown on the read too: from now on nobody older may write.
    let read = database.read(token)?;
    println!("read");
    // Stopped here, in the midst of work that does not look at the lock.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    println!("wrote {}", database.write(token, &read.minus(50))?);
    Ok(())
}

/// The token as SQLite stores it.
fn column(token: Option<FencingToken>) -> Result<i64, Box<dyn Error>> {
    let token = token.ok_or("this lock has no tokens")?;
    Ok(i64::try_from(token.as_u64())?)
}

/// Two accounts with the same money: one takes every write, one only those that are not late.
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
        connection.busy_timeout(PATIENCE)?;
        Ok(Self(connection))
    }

    /// Reads both, and remembers the token of who reads.
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

    /// One statement decides and writes, so that nothing comes between the two.
    fn write(&self, token: i64, new: &Balances) -> rusqlite::Result<&'static str> {
        self.0
            .execute("UPDATE plain SET balance = ?1", params![new.plain])?;
        let rows = self.0.execute(
            "UPDATE fenced SET balance = ?1, token = ?2 WHERE token <= ?2",
            params![new.fenced, token],
        )?;
        Ok(if rows == 1 { "accepted" } else { "refused" })
    }
}

struct Sleeper {
    process: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

fn start_child(path: &Path, url: &str) -> Result<Sleeper, Box<dyn Error>> {
    let mut process = Command::new(std::env::current_exe()?)
        .args(["--redis", url, "--child"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let input = process.stdin.take().ok_or("the child has no input")?;
    let output = process.stdout.take().ok_or("the child has no output")?;
    Ok(Sleeper {
        process,
        input,
        output: BufReader::new(output),
    })
}

impl Sleeper {
    fn pid(&self) -> Result<Pid, Box<dyn Error>> {
        Ok(Pid::from_raw(i32::try_from(self.process.id())?).ok_or("no such process")?)
    }

    /// Waits for a line that begins so; what stands behind it.
    fn says(&mut self, beginning: &str) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let rest = line.trim().strip_prefix(beginning);
        Ok(rest.ok_or("the child failed")?.trim().to_owned())
    }

    fn tell(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.input, "{line}")
    }
}
