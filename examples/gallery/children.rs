//! Child processes that hold locks, so that an act can kill and pause them.
//!
//! Each child runs this program with other arguments.

use std::io::Read;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use lock_core::{FencingToken, LockManager};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::sleep;

use crate::by_hand;
use crate::stage::{self, BoxError, Server};

/// The ttl of the children's locks, where a short one is needed.
pub const TTL: Duration = Duration::from_secs(2);

/// The time between the read and the write of a writer. It is shorter than the ttl.
const COMPUTING: Duration = Duration::from_millis(1500);

/// The number of writes in the section of a writer.
pub const WRITES: usize = 3;

/// The task of a child.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Locks with SETNX, and works forever.
    Setnx,
    /// Locks with a ttl of ten minutes, and works forever.
    TenMinutes,
    /// Locks with this library, and works forever.
    Library,
    /// Locks with SET NX PX, reads, computes and writes.
    WriterByHand,
    /// Locks with this library, reads, computes and writes.
    WriterWithToken,
}

impl Role {
    const ALL: [Self; 5] = [
        Self::Setnx,
        Self::TenMinutes,
        Self::Library,
        Self::WriterByHand,
        Self::WriterWithToken,
    ];

    fn name(self) -> String {
        format!("{self:?}")
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let named = Self::ALL.into_iter().find(|role| role.name() == name);
        named.ok_or(())
    }
}

/// Returns the role of this process if it is a child.
pub fn role() -> Result<Option<Role>, BoxError> {
    Ok(examples::option("--child")?)
}

/// Runs the role until the parent kills this process or ends.
pub async fn run(role: Role) -> Result<(), BoxError> {
    // The parent never writes, so the input ends only when the parent ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let url = examples::lock_url()?;
    let key: String = examples::option("--key")?.ok_or("`--key` is missing")?;
    act(role, &url, &key).await
}

async fn act(role: Role, url: &str, key: &str) -> Result<(), BoxError> {
    let mut redis = stage::connect(url).await?;
    let ten_minutes = Duration::from_secs(600);
    match role {
        Role::Setnx => {
            by_hand::setnx(&mut redis, key).await?;
            hold().await;
        }
        Role::TenMinutes => {
            by_hand::set_nx_px(&mut redis, key, "child", ten_minutes).await?;
            hold().await;
        }
        Role::Library => {
            let locks = LockManager::connect(url).await?;
            let _guard = locks.lock(key).ttl(TTL).acquire().await?;
            hold().await;
        }
        Role::WriterByHand => {
            by_hand::set_nx_px(&mut redis, key, "child", TTL).await?;
            write(None).await;
            by_hand::delete_if_mine(&mut redis, key, "child").await?;
        }
        Role::WriterWithToken => {
            let locks = LockManager::connect(url).await?;
            let guard = locks.lock(key).ttl(TTL).acquire().await?;
            write(guard.fencing_token()).await;
            // The error is expected: the lock was lost.
            let _ = guard.release().await;
        }
    }
    Ok(())
}

async fn hold() {
    println!("held");
    std::future::pending::<()>().await;
}

/// Prints reads and writes. The parent has the resource, and accepts or rejects each of these lines.
async fn write(token: Option<FencingToken>) {
    let token = token.map(|token| token.to_string()).unwrap_or_default();
    println!("read {token}");
    // The parent stops the process here. A check of the lock would not help: the process can also be
    // stopped between the check and the write.
    sleep(COMPUTING).await;
    for _ in 0..WRITES {
        println!("write {token}");
    }
    println!("done");
}

/// A running child. It is killed on drop.
pub struct ChildProcess {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    pub fn start(role: Role, server: &Server, key: &str) -> Result<Self, BoxError> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--child", &role.name()])
            .args(["--redis", &server.url(), "--key", key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("the child has no output")?;
        let lines = BufReader::new(output).lines();
        Ok(Self { process, lines })
    }

    /// Waits for the next line, and returns its first word and its token, if it has one.
    pub async fn read(&mut self) -> Result<(String, Option<FencingToken>), BoxError> {
        let line = self.lines.next_line().await?.ok_or("a child failed")?;
        let (word, token) = line.split_once(' ').unwrap_or((&line, ""));
        let token = (!token.is_empty()).then(|| token.parse()).transpose()?;
        Ok((word.to_owned(), token))
    }

    /// Kills the process, and returns when it has ended.
    pub async fn kill(mut self) -> std::io::Result<()> {
        self.process.kill().await
    }

    pub fn pause(&self, server: &Server) -> Result<(), BoxError> {
        server.resume_at_end(self.id()?)?;
        self.send(Signal::STOP)
    }

    pub fn resume(&self) -> Result<(), BoxError> {
        self.send(Signal::CONT)
    }

    fn id(&self) -> Result<u32, BoxError> {
        Ok(self.process.id().ok_or("the child has ended")?)
    }

    fn send(&self, signal: Signal) -> Result<(), BoxError> {
        let id = Pid::from_raw(i32::try_from(self.id()?)?).ok_or("no such process")?;
        Ok(kill_process(id, signal)?)
    }
}
