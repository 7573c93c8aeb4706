//! The children: holders that are real processes, so that they can be killed and paused.
//!
//! Each is this program again, with other arguments.

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
use crate::stage::{self, Fault, Server};

/// The ttl of the children's locks, where it is meant to be short.
pub const TTL: Duration = Duration::from_secs(1);

/// What a writer computes between what it reads and what it writes: it would be in time.
const COMPUTING: Duration = Duration::from_millis(500);

/// How many writes the section of a writer has.
pub const WRITES: usize = 3;

/// What a child does.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// SETNX, and then work for ever.
    Setnx,
    /// SET NX EX 600, "to be safe", and then work for ever.
    TenMinutes,
    /// This library's lock, and then work for ever.
    Library,
    /// SET NX PX, read, compute, write.
    WriterByHand,
    /// This library's lock, read, compute, write.
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

/// What this process is to play, if it is a child.
pub fn role() -> Result<Option<Role>, Fault> {
    Ok(examples::option("--child")?)
}

/// Plays it, until the parent kills us or is gone.
pub async fn play(role: Role) -> Result<(), Fault> {
    // The parent never writes: the input ends with it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let url = examples::lock_url()?;
    let key: String = examples::option("--key")?.ok_or("`--key` is missing")?;
    act(role, &url, &key).await
}

async fn act(role: Role, url: &str, key: &str) -> Result<(), Fault> {
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
            // What it says is known already: the lock was lost.
            let _ = guard.release().await;
        }
    }
    Ok(())
}

async fn hold() {
    println!("held");
    std::future::pending::<()>().await;
}

/// The parent has the resource: it takes or refuses what stands in these lines.
async fn write(token: Option<FencingToken>) {
    let token = token.map(|token| token.to_string()).unwrap_or_default();
    println!("read {token}");
    // Stopped here. No look at the lock would help: there is a moment between it and the write too.
    sleep(COMPUTING).await;
    for _ in 0..WRITES {
        println!("write {token}");
    }
    println!("done");
}

/// A child that plays. It is killed on drop.
pub struct Actor {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    pub fn start(role: Role, server: &Server, key: &str) -> Result<Self, Fault> {
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

    /// Waits for the next line: its first word, and the token behind it, if there is one.
    pub async fn says(&mut self) -> Result<(String, Option<FencingToken>), Fault> {
        let line = self.lines.next_line().await?.ok_or("a child failed")?;
        let (word, token) = line.split_once(' ').unwrap_or((&line, ""));
        let token = (!token.is_empty()).then(|| token.parse()).transpose()?;
        Ok((word.to_owned(), token))
    }

    /// Kills it, and returns when it is gone.
    pub async fn kill(mut self) -> std::io::Result<()> {
        self.process.kill().await
    }

    pub fn pause(&self, server: &Server) -> Result<(), Fault> {
        server.wake_at_end(self.id()?)?;
        self.send(Signal::STOP)
    }

    pub fn go_on(&self) -> Result<(), Fault> {
        self.send(Signal::CONT)
    }

    fn id(&self) -> Result<u32, Fault> {
        Ok(self.process.id().ok_or("the child has ended")?)
    }

    fn send(&self, signal: Signal) -> Result<(), Fault> {
        let id = Pid::from_raw(i32::try_from(self.id()?)?).ok_or("no such process")?;
        Ok(kill_process(id, signal)?)
    }
}
