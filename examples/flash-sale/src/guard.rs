//! A guard process: it runs one command, and ends that command when the demo has ended, also when the
//! demo was killed.
//!
//! The guard leads a process group, which contains its command. It survives signals to the group.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Signal, getpgrp, getppid, kill_process_group};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, timeout};

use crate::BoxError;
use crate::options::GuardOptions;

/// How often the guard looks for its parent. The kernel gives an orphan another parent.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long the command has to end after SIGTERM, when the demo has ended.
const KILL_AFTER: Duration = Duration::from_secs(1);

/// Runs the command of the guard to its end, or to the end of the demo.
pub(crate) async fn run(options: GuardOptions) -> Result<ExitCode, BoxError> {
    // Each handler replaces the default action, which ends the process. The guard does nothing instead.
    let mut survived = Vec::new();
    for kind in [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
    ] {
        survived.push(signal(kind)?);
    }
    let (program, arguments) = options.command.split_first().ok_or("no command")?;
    let mut command = Command::new(program).args(arguments).spawn()?;
    let mut checks = interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            status = command.wait() => {
                let code = status?.code().and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
            }
            _ = checks.tick() => {}
        }
        let parent = getppid().map(|parent| parent.as_raw_pid().unsigned_abs());
        if parent != Some(options.parent) {
            break;
        }
    }
    let group = getpgrp();
    kill_process_group(group, Signal::TERM)?;
    // A stopped command receives SIGTERM only when it continues.
    kill_process_group(group, Signal::CONT)?;
    if timeout(KILL_AFTER, command.wait()).await.is_err() {
        command.kill().await?;
    }
    if let Some(directory) = &options.remove {
        // Another guard may have removed it already.
        let _ = fs::remove_dir_all(directory);
    }
    // Ends what the command has left behind in the group, and this guard.
    kill_process_group(group, Signal::KILL)?;
    Ok(ExitCode::FAILURE)
}
