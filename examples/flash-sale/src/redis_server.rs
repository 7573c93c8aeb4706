//! The demo's own `redis-server`, on a free port.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::BoxError;
use crate::processes::{self, Guarded};

/// The programs that can serve; the first that is installed is started.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

const MISSING: &str = "no redis-server found; install it (apt-get install redis-server), or pass \
    --redis URL, or --in-process";

/// How long a server may take to start.
const START: Duration = Duration::from_secs(5);

/// What the log of a server says when it listens.
const LISTENS: &str = "Ready to accept connections";

/// How often a free port may be taken by another process before the server listens on it.
const ATTEMPTS: u32 = 3;

/// Starts a server under a guard, and returns its URL.
pub(crate) async fn start(directory: &Path) -> Result<(Guarded, String), BoxError> {
    let program = PROGRAMS.into_iter().find(|program| is_installed(program));
    let program = program.ok_or(MISSING)?;
    for _ in 0..ATTEMPTS {
        // The system chooses a free port, and frees it again when the listener is dropped.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = directory.join("redis-server.log");
        // Of an earlier attempt.
        let _ = fs::remove_file(&log);
        let mut server = Command::new(program);
        server.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        server.args(["--save", "", "--appendonly", "no"]);
        server
            .arg("--dir")
            .arg(directory)
            .arg("--logfile")
            .arg(&log);
        let mut guarded = processes::guarded(&server, Some(directory))?;
        guarded.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Guarded::start(&mut guarded)?;
        if listens(&log, &mut server).await? {
            return Ok((server, format!("redis://127.0.0.1:{port}")));
        }
    }
    Err(format!("{program} ended at its start").into())
}

/// Waits until the server listens. Returns `false` when it has ended.
///
/// Its log tells that. A connection to the port doesn't: the server that accepts it may be another one,
/// which took the port first.
async fn listens(log: &Path, server: &mut Guarded) -> Result<bool, BoxError> {
    let started = Instant::now();
    // The log doesn't exist yet when the server has only begun to start.
    while !fs::read_to_string(log).is_ok_and(|text| text.contains(LISTENS)) {
        if server.has_ended()? {
            return Ok(false);
        }
        if started.elapsed() > START {
            return Err(format!("the lock server did not listen within {START:?}").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(true)
}

fn is_installed(program: &str) -> bool {
    let mut version = Command::new(program);
    let version = version.arg("--version").stdout(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
