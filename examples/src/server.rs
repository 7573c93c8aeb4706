//! Redis servers that an example starts.

use std::error::Error;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

/// Programs that can be the server; the first one that is installed is started.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

const MISSING: &str = "cannot find `redis-server`, which this example starts; install Redis 7.0 or \
    later, or Valkey (`apt-get install redis-server`, `dnf install redis`, `apk add redis` or \
    `brew install redis`)";

/// Bound on the start of a server.
const START: Duration = Duration::from_secs(10);

/// Bound on a reply to a client that is written by hand. A busy machine may need more than the 500 ms that are the
/// default of the crate.
const TIMEOUT: Duration = Duration::from_secs(10);

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

/// A private server. It ends with this process, or when it is dropped: it is killed.
#[derive(Debug)]
pub struct Server {
    port: u16,
    supervisor: Child,
    input: Option<ChildStdin>,
}

impl Server {
    /// Starts a server on a free port, without persistence.
    ///
    /// # Errors
    ///
    /// Returns an error if no server is installed, or it does not reply within 10 s.
    pub async fn start() -> Result<Self, Box<dyn Error + Send + Sync>> {
        let port = free_port()?;
        Self::start_at(port, &["--save", "", "--appendonly", "no"]).await
    }

    /// Starts a server on this port, with these arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if no server is installed, or it does not reply within 10 s.
    pub async fn start_at(
        port: u16,
        arguments: &[&str],
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let program = PROGRAMS.into_iter().find(|program| can_run(program));
        let program = program.ok_or(MISSING)?;
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor", program])
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()?;
        let input = supervisor.stdin.take();
        let server = Self {
            port,
            supervisor,
            input,
        };
        let begun = Instant::now();
        while server.connect().await.is_err() {
            if begun.elapsed() > START {
                return Err(format!("`{program}` does not reply").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    /// Returns the port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Resumes the process when this one ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the supervisor of the server has ended.
    pub fn resume_at_end(&self, pid: u32) -> std::io::Result<()> {
        // One write, so that a kill cannot leave half a number.
        let line = format!("{pid}\n");
        let input = self.input.as_ref();
        input.map_or(Ok(()), |mut input| input.write_all(line.as_bytes()))
    }

    /// Opens a connection for a client that is written by hand.
    ///
    /// # Errors
    ///
    /// Returns an error if the server does not reply within 10 s.
    pub async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(&self.url()).await
    }

    /// Connects a new manager, as another process does.
    ///
    /// # Errors
    ///
    /// Returns an error if the server does not accept the manager.
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

/// Opens a connection for a client that is written by hand.
///
/// # Errors
///
/// Returns an error if the server does not reply within 10 s.
pub async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    let client = redis::Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Returns a port that no process uses.
///
/// # Errors
///
/// Returns an error if the system has none.
pub fn free_port() -> std::io::Result<u16> {
    // The system chooses a free port, and frees it again when the listener is dropped.
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn can_run(program: &str) -> bool {
    let mut version = Command::new(program);
    let version = version.arg("--version").stdout(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
