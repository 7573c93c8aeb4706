//! The stage: a server, a book of who believed when to hold the lock, and stopwatches.

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

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(30);

pub type Fault = Box<dyn Error + Send + Sync>;

/// Either is a server for this library; the first that is there is taken.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

const MISSING: &str = "cannot find `redis-server`, and the gallery shows real locks on a real \
    server: install it (`apt-get install redis-server`, `dnf install redis`, `apk add redis`, \
    `brew install redis`; 7.0 or later, or Valkey) and run this again";

/// The shell is told by its closed input that we are gone, however we went. It ends the server, and
/// wakes those of our children that are paused, which then see for themselves that we are gone.
const KEEPER: &str = r#"
trap '' INT TERM
"$@" >/dev/null & server=$!
while read -r pid; do paused="$paused $pid"; done
kill -9 $server
[ -z "$paused" ] || kill -CONT $paused 2>/dev/null
wait
"#;

/// A server of our own on a free port. It ends with this process.
pub struct Server {
    port: u16,
    keeper: Child,
    orders: Option<ChildStdin>,
}

impl Server {
    pub async fn start() -> Result<Self, Fault> {
        let program = PROGRAMS.into_iter().find(|program| can_run(program));
        let program = program.ok_or(MISSING)?;
        // The system knows a free port; it is free again as soon as the listener is dropped.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", program])
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::piped())
            .spawn()?;
        let orders = keeper.stdin.take();
        let server = Self {
            port,
            keeper,
            orders,
        };
        let up = refused_for(Duration::from_secs(10), async || {
            Ok(server.connect().await.is_ok())
        });
        match up.await? {
            Refused::For(_) => Ok(server),
            Refused::ToTheEnd(_) => Err(format!("`{program}` does not answer").into()),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Has the process woken when this one ends.
    pub fn wake_at_end(&self, pid: u32) -> std::io::Result<()> {
        // One write, so that a kill in between cannot leave half a number.
        let order = format!("{pid}\n");
        let orders = self.orders.as_ref();
        orders.map_or(Ok(()), |mut orders| orders.write_all(order.as_bytes()))
    }

    /// A connection for a client that is written by hand.
    pub async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(&self.url()).await
    }

    /// A client of this library, as another process would be one.
    pub async fn locks(&self) -> Result<LockManager, LockError> {
        LockManager::connect(&self.url()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.keeper.wait();
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

/// A time, as the acts show it.
pub fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// What an act has shown: a row of the table.
pub struct Shown {
    pub mistake: &'static str,
    pub by_hand: String,
    pub library: String,
}

/// Who believed when to hold the lock, all by one monotonic clock.
#[derive(Clone, Default)]
pub struct Book(Arc<Mutex<Vec<(Instant, Instant)>>>);

/// Somebody believes to hold the lock, until this is dropped.
pub struct Belief {
    since: Instant,
    book: Book,
}

impl Book {
    pub fn enter(&self) -> Belief {
        Belief {
            since: Instant::now(),
            book: self.clone(),
        }
    }

    /// Works under a lock that was written by hand: nothing tells when it is lost.
    pub async fn work(&self, time: Duration) {
        let _belief = self.enter();
        sleep(time).await;
    }

    /// Works under a guard, as long as it is held.
    pub async fn work_under(&self, guard: &LockGuard, time: Duration) {
        let _belief = self.enter();
        tokio::select! {
            () = guard.lost() => {}
            () = sleep(time) => {}
        }
    }

    /// For how long there were two holders or more.
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

impl Drop for Belief {
    fn drop(&mut self) {
        let believed = (self.since, Instant::now());
        self.book.0.lock().unwrap().push(believed);
    }
}

/// For how long somebody was refused who tried again and again.
#[derive(Clone, Copy)]
pub enum Refused {
    /// Then it worked.
    For(Duration),
    /// It still did not work when patience ended.
    ToTheEnd(Duration),
}

/// Tries until it works, but not for longer than `patience`.
pub async fn refused_for(
    patience: Duration,
    mut attempt: impl AsyncFnMut() -> Result<bool, Fault>,
) -> Result<Refused, Fault> {
    let begin = Instant::now();
    let mut refused = Duration::ZERO;
    while !attempt().await? {
        refused = begin.elapsed();
        if refused >= patience {
            return Ok(Refused::ToTheEnd(refused));
        }
        sleep(by_hand::POLL).await;
    }
    Ok(Refused::For(refused))
}
