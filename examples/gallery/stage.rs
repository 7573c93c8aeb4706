//! The server of the acts, and the measurements that they share.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockGuard, LockManager};
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::by_hand;

/// Longer than any act takes.
pub const LONG: Duration = Duration::from_secs(30);

pub type BoxError = Box<dyn Error + Send + Sync>;

/// Programs that the acts can use; the first one that is installed is started.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

const MISSING: &str = "cannot find `redis-server`, which the gallery starts; install Redis 7.0 or \
    later, or Valkey (`apt-get install redis-server`, `dnf install redis`, `apk add redis` or \
    `brew install redis`)";

/// A shell script that ends the server when this process ends, however it ends: then the input of the
/// shell is closed. It also resumes the paused children, which then notice the end themselves.
const SUPERVISOR: &str = r#"
trap '' INT TERM
"$@" >/dev/null & server=$!
while read -r pid; do paused="$paused $pid"; done
kill -9 $server
[ -z "$paused" ] || kill -CONT $paused 2>/dev/null
wait
"#;

/// A private server on a free port. It ends with this process.
pub struct Server {
    port: u16,
    supervisor: Child,
    input: Option<ChildStdin>,
}

impl Server {
    pub async fn start() -> Result<Self, BoxError> {
        let program = PROGRAMS.into_iter().find(|program| can_run(program));
        let program = program.ok_or(MISSING)?;
        // The system chooses a free port, and frees it again when the listener is dropped.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor", program])
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::piped())
            .spawn()?;
        let input = supervisor.stdin.take();
        let server = Self {
            port,
            supervisor,
            input,
        };
        let up = blocked_for(Duration::from_secs(10), async || {
            Ok(server.connect().await.is_ok())
        });
        match up.await? {
            Blocked::For(_) => Ok(server),
            Blocked::UntilTimeout(_) => Err(format!("`{program}` does not answer").into()),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Resumes the process when this one ends.
    pub fn resume_at_end(&self, pid: u32) -> std::io::Result<()> {
        // One write, so that a kill cannot leave half a number.
        let line = format!("{pid}\n");
        let input = self.input.as_ref();
        input.map_or(Ok(()), |mut input| input.write_all(line.as_bytes()))
    }

    /// Opens a connection for a client that is written by hand.
    pub async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(&self.url()).await
    }

    /// Connects a new manager, as another process does.
    pub async fn locks(&self) -> Result<LockManager, LockError> {
        LockManager::connect(&self.url()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.supervisor.wait();
    }
}

pub async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(url)?;
    client.get_multiplexed_async_connection().await
}

fn can_run(program: &str) -> bool {
    let mut version = Command::new(program);
    let version = version.arg("--version").stdout(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Formats a time for the table.
pub fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// The result of an act: a row of the table.
pub struct ActResult {
    pub mistake: &'static str,
    pub by_hand: String,
    pub library: String,
}

/// Records when clients believed that they held the lock, on one monotonic clock.
#[derive(Clone, Default)]
pub struct HolderLog(Arc<Mutex<Vec<(Instant, Instant)>>>);

/// A client believes that it holds the lock until this value is dropped.
pub struct HeldPeriod {
    since: Instant,
    log: HolderLog,
}

impl HolderLog {
    pub fn enter(&self) -> HeldPeriod {
        HeldPeriod {
            since: Instant::now(),
            log: self.clone(),
        }
    }

    /// Works under a lock that is written by hand, which cannot report its loss.
    pub async fn work(&self, time: Duration) {
        let _period = self.enter();
        sleep(time).await;
    }

    /// Works under a guard until the lock is lost.
    pub async fn work_under(&self, guard: &LockGuard, time: Duration) {
        let _period = self.enter();
        tokio::select! {
            () = guard.lost() => {}
            () = sleep(time) => {}
        }
    }

    /// Returns for how long there were two or more holders.
    pub fn two_holders(&self) -> Duration {
        let mut changes: BTreeMap<Instant, i32> = BTreeMap::new();
        for &(begin, end) in self.0.lock().unwrap().iter() {
            *changes.entry(begin).or_default() += 1;
            *changes.entry(end).or_default() -= 1;
        }
        let changes: Vec<(Instant, i32)> = changes.into_iter().collect();
        let (mut holders, mut both) = (0, Duration::ZERO);
        for pair in changes.windows(2) {
            holders += pair[0].1;
            if holders > 1 {
                both += pair[1].0 - pair[0].0;
            }
        }
        both
    }
}

impl Drop for HeldPeriod {
    fn drop(&mut self) {
        let period = (self.since, Instant::now());
        self.log.0.lock().unwrap().push(period);
    }
}

/// For how long a client that retried did not get the lock.
#[derive(Clone, Copy)]
pub enum Blocked {
    /// Then it got the lock.
    For(Duration),
    /// It did not get the lock within the timeout.
    UntilTimeout(Duration),
}

/// Retries until the attempt succeeds or `timeout` ends.
pub async fn blocked_for(
    timeout: Duration,
    mut attempt: impl AsyncFnMut() -> Result<bool, BoxError>,
) -> Result<Blocked, BoxError> {
    let begin = Instant::now();
    let mut blocked = Duration::ZERO;
    while !attempt().await? {
        blocked = begin.elapsed();
        if blocked >= timeout {
            return Ok(Blocked::UntilTimeout(blocked));
        }
        sleep(by_hand::POLL).await;
    }
    Ok(Blocked::For(blocked))
}
