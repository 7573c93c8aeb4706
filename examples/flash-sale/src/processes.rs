//! The processes that the demo starts. Each of them runs under a guard, so that a killed demo leaves
//! none behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::BoxError;
use crate::demo::Demo;
use crate::instance::{DRAIN, RELEASE};
use crate::options::{DATABASE_VARIABLE, REDIS_VARIABLE};

/// How long a process has to end after SIGTERM. Longer than an instance drains its requests and releases
/// its locks.
const END: Duration = Duration::from_secs(3);
const _: () = assert!(END.as_millis() > DRAIN.as_millis() + RELEASE.as_millis());

/// Returns the command that runs `command` under a guard, in a process group of its own. Then Ctrl-C
/// reaches the demo only, which ends the other processes in order.
pub(crate) fn guarded(
    command: &std::process::Command,
    remove: Option<&Path>,
) -> Result<Command, BoxError> {
    let mut guard = Command::new(std::env::current_exe()?);
    guard.arg("--guard").arg(std::process::id().to_string());
    if let Some(directory) = remove {
        guard.arg("--remove").arg(directory);
    }
    guard
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    guard.process_group(0);
    Ok(guard)
}

/// A command under its guard.
pub(crate) struct Guarded {
    guard: Child,
    group: Pid,
}

impl Guarded {
    pub(crate) fn start(guarded: &mut Command) -> Result<Self, BoxError> {
        let guard = guarded.spawn()?;
        let group = guard.id().and_then(to_pid).ok_or("the guard has ended")?;
        Ok(Self { guard, group })
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool, BoxError> {
        Ok(self.guard.try_wait()?.is_some())
    }

    /// Ends the command: see [`end_group`].
    pub(crate) async fn end(mut self) {
        end_group(self.group, async move {
            // Its exit code says only that it was ended.
            let _ = self.guard.wait().await;
        })
        .await;
    }
}

/// Ends a group with SIGTERM, and with SIGKILL when that takes too long.
async fn end_group(group: Pid, ended: impl Future<Output = ()>) {
    let mut ended = std::pin::pin!(ended);
    // A signal fails when the group has ended. A frozen process receives SIGTERM when it continues.
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    if timeout(END, &mut ended).await.is_err() {
        let _ = kill_process_group(group, Signal::KILL);
        ended.await;
    }
}

fn to_pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// A running shop instance.
struct Running {
    group: Pid,
    commands: ChildStdin,
    /// Ends with the process.
    reading: JoinHandle<()>,
}

/// The shop instances.
pub(crate) struct Instances {
    redis: String,
    database: String,
    directory: Option<PathBuf>,
    running: Vec<Mutex<Option<Running>>>,
}

impl Instances {
    /// `directory` is removed when the demo is killed.
    pub(crate) fn new(
        number: usize,
        redis: String,
        database: String,
        directory: Option<PathBuf>,
    ) -> Self {
        Self {
            redis,
            database,
            directory,
            running: (0..number).map(|_| Mutex::default()).collect(),
        }
    }

    /// Starts an instance, which then tells its address.
    pub(crate) async fn start(&self, demo: &Arc<Demo>, number: usize) -> Result<(), BoxError> {
        let mut slot = self.running[number - 1].lock().await;
        if let Some(earlier) = slot.take() {
            // Its end is reported before the new start. A panic was printed when it happened.
            let _ = earlier.reading.await;
        }
        let mut instance = std::process::Command::new(std::env::current_exe()?);
        instance.arg("--instance").arg(number.to_string());
        let mut guarded = guarded(&instance, self.directory.as_deref())?;
        guarded.env(REDIS_VARIABLE, &self.redis);
        guarded.env(DATABASE_VARIABLE, &self.database);
        guarded.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Guarded { mut guard, group } = Guarded::start(&mut guarded)?;
        let commands = guard.stdin.take().ok_or("the guard has no stdin")?;
        let events = guard.stdout.take().ok_or("the guard has no stdout")?;
        let demo = Arc::clone(demo);
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(events).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let now = Instant::now();
                if let Ok(event) = serde_json::from_str(&line) {
                    demo.on_event(number, event, now);
                }
            }
            // With any exit code, the instance has ended. It printed the reason.
            let _ = guard.wait().await;
            demo.on_stopped(number);
        });
        *slot = Some(Running {
            group,
            commands,
            reading,
        });
        Ok(())
    }

    /// Sends a command to the instance.
    pub(crate) async fn command(&self, number: usize, command: &str) {
        if let Some(running) = &mut *self.running[number - 1].lock().await {
            // Fails when the process has ended, which the demo learns from its stdout.
            let line = format!("{command}\n");
            let _ = running.commands.write_all(line.as_bytes()).await;
        }
    }

    /// Ends all instances at the same time.
    pub(crate) async fn end(&self) {
        let ending = self.running.iter().map(async |running| {
            if let Some(running) = running.lock().await.take() {
                end_group(running.group, async {
                    // A panic was printed when it happened.
                    let _ = running.reading.await;
                })
                .await;
            }
        });
        futures_util::future::join_all(ending).await;
    }
}

/// Sends a signal to the process of an instance alone, and not to its guard.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid) {
        // Fails when the process has ended.
        let _ = kill_process(pid, signal);
    }
}
