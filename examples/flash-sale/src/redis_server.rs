//! The demo's own `redis-server`, on a free port.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::time::sleep;

use crate::processes::{self, Guarded};
use crate::{BoxError, PREFIX};

/// The programs that can serve; the first that is installed is started.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

const MISSING: &str = "no redis-server found; install it (apt-get install redis-server), or pass \
    --redis URL, or --in-process";

/// How long a server may take to start.
const START: Duration = Duration::from_secs(5);

/// How often a free port may be taken by another process before the server listens on it.
const ATTEMPTS: u32 = 3;

/// Starts a server under a guard, and returns its URL.
pub(crate) async fn start(directory: &Path) -> Result<(Guarded, String), BoxError> {
    let program = PROGRAMS.into_iter().find(|program| is_installed(program));
    let program = program.ok_or(MISSING)?;
    for _ in 0..ATTEMPTS {
        // The system chooses a free port, and frees it again when the listener is dropped.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = Command::new(program);
        server.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        server
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(directory);
        let mut guarded = processes::guarded(&server, Some(directory))?;
        guarded.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Guarded::start(&mut guarded)?;
        let url = format!("redis://127.0.0.1:{port}");
        if answers(&url, &mut server).await? {
            return Ok((server, url));
        }
    }
    Err(format!("{program} ended at its start").into())
}

/// Waits until the server answers. Returns `false` when it has ended.
async fn answers(url: &str, server: &mut Guarded) -> Result<bool, BoxError> {
    let started = Instant::now();
    loop {
        let connected = LockManager::builder().prefix(PREFIX).connect(url).await;
        let Err(error) = connected else {
            return Ok(true);
        };
        if server.has_ended()? {
            return Ok(false);
        }
        if started.elapsed() > START {
            return Err(error.into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn is_installed(program: &str) -> bool {
    let mut version = Command::new(program);
    let version = version.arg("--version").stdout(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
