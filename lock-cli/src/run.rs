//! `lockctl run`: runs a command while a lock is held.
//!
//! There are three processes: this one holds the lock, the guard process ends the command when this one
//! is gone, and the command. The guard process leads a process group of its own, so that a signal reaches
//! the whole tree. On a terminal all three stay in the foreground group: a background process gets no
//! input.

use std::time::Duration;

use lock_core::{Holder, LockError, LockGuard, LockManager, LossReason};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::args::{GlobalArgs, OnContended, RunArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::Line;
use crate::text::{flag, human};
use crate::view;

mod child;
pub(crate) mod guard_process;
mod processes;
mod signals;

use child::{Child, Ended};
use signals::{Event, Signals};

/// The longest default of `--kill-after`.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// How long this process waits for the cancel of its queue entry after a signal. The entry of a waiter
/// that died costs the others nothing.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long this process waits for the cleanup after a loss. Most losses leave nothing on the server, and the server
/// may be what failed, so the exit does not wait for it.
const LOSS_TIMEOUT: Duration = Duration::from_millis(50);

/// How long this process looks for the state of a lock that it did not get. It makes the text more exact,
/// and a server that does not reply must not delay the exit.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(200);

/// Runs CMD while the lock is held.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: RunArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    // Before anything else, so that a signal always has a defined effect, also for process 1 of a
    // container: there the kernel drops signals without a handler.
    let mut signals =
        Signals::install().map_err(|error| Failure::internal("cannot handle signals", &error))?;
    warn(&args, output);
    let job = Job {
        global,
        kill_after: args.kill_after.unwrap_or(KILL_AFTER.min(args.ttl / 2)),
        args,
        output,
    };
    let locks = tokio::select! {
        biased;
        signal = signals.end_of_wait() => return Ok(ended_by(signal)),
        locks = connect::manager(global, job.args.label.as_deref(), output) => locks?,
    };
    let mut acquiring = std::pin::pin!(job.acquire(&locks));
    let acquired = tokio::select! {
        biased;
        signal = signals.end_of_wait() => Err(ended_by(signal)),
        acquired = &mut acquiring => Ok(acquired),
    };
    let limit = Instant::now() + CANCEL_TIMEOUT;
    // What may be left is the queue entry, or a lock that was granted meanwhile. Without an answer, both expire.
    let (exit, gave_up) = match acquired {
        Ok(Ok(guard)) => return job.work(&locks, guard, signals).await,
        Ok(Err(error)) => {
            let exit = job.not_acquired(&locks, &error, &mut signals).await;
            (exit, gave_up(&locks, limit).await)
        }
        Err(exit) => (Ok(exit), end_wait(&locks, acquiring, limit).await),
    };
    if !gave_up {
        job.warn_of_rest();
    }
    exit
}

/// Warns about flags that hide something, or that weaken the lock.
fn warn(args: &RunArgs, output: &Output) {
    if args.conflict_exit_code == 0 {
        output.note(
            "warning: with the conflict exit code 0, a caller cannot see that another holder has the \
             lock; if that is meant, use --on-contended skip",
        );
    }
    // While renewals succeed, a lease has two thirds of its ttl left.
    if let Some(kill_after) = args.kill_after
        && kill_after > args.ttl * 2 / 3
    {
        output.note(&format!(
            "warning: --kill-after {} is more than two thirds of the --ttl {}; if lockctl is killed, the \
             command may work on after the lease",
            flag(kill_after),
            flag(args.ttl),
        ));
    }
}

fn ended_by(signal: Signal) -> Exit {
    Exit::Signal(u8::try_from(signal.as_raw()).unwrap_or(0))
}

struct Job<'a> {
    global: &'a GlobalArgs,
    args: RunArgs,
    kill_after: Duration,
    output: &'a Output,
}

impl Job<'_> {
    /// Acquires the lock with its whole ttl.
    async fn acquire(&self, locks: &LockManager) -> Result<LockGuard, LockError> {
        let args = &self.args;
        let mut request = locks
            .lock(args.name.as_str())
            .ttl(args.ttl)
            .wait(args.wait.unwrap_or_default());
        if let Some(max_hold) = args.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(min_hold) = args.min_hold {
            request = request.min_hold(min_hold);
        }
        let guard = request.acquire().await?;
        // A handover gives a lease of two seconds at most. When this process is killed right after the
        // command has begun, the guard process needs `--kill-after` before the lease ends.
        guard.renew().await?;
        Ok(guard)
    }

    /// Returns the exit code of a lock that was not acquired.
    async fn not_acquired(
        &self,
        locks: &LockManager,
        error: &LockError,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        if !error.is_contended() {
            let mut failure = connect::failure(self.global, error);
            if error.is_lost() {
                // The server has granted the lock, and did not renew it.
                let name = &self.args.name;
                failure.text = Line::new(&format!(
                    "lost the lock `{name}` before the command began; nothing was run"
                ));
            }
            return Err(failure);
        }
        let skip = self.args.on_contended == OnContended::Skip;
        let exit = if skip {
            Exit::Success
        } else {
            Exit::Chosen(self.args.conflict_exit_code)
        };
        let mut failure = connect::failure(self.global, error);
        failure.exit = exit;
        // The error does not say whether the holder that it names has released the lock already.
        let inspecting = locks.inspect(self.args.name.as_str());
        let lock = tokio::select! {
            biased;
            signal = signals.end_of_wait() => return Ok(ended_by(signal)),
            lock = tokio::time::timeout(INSPECT_TIMEOUT, inspecting) => lock,
        };
        let lock = lock.ok().and_then(Result::ok);
        let without_holder = lock.as_ref().and_then(view::without_holder);
        let text = contended_text(&self.args.name, error, without_holder, exit);
        failure.text = Line::new(&text);
        if skip && !self.output.is_json() {
            self.output.note(failure.text.as_str());
            return Ok(exit);
        }
        Err(failure)
    }

    /// Runs CMD, and releases the lock.
    async fn work(
        &self,
        locks: &LockManager,
        guard: LockGuard,
        mut signals: Signals,
    ) -> Result<Exit, Failure> {
        let mut child = match Child::spawn(self, &guard) {
            Ok(child) => child,
            Err(error) => {
                self.release(locks, guard).await;
                return Err(Failure::internal("cannot start the guard process", &error));
            }
        };
        self.output.detail(&format!(
            "acquired the lock `{}` (token {})",
            self.args.name,
            guard
                .fencing_token()
                .map_or_else(|| "none".to_owned(), |token| token.to_string()),
        ));
        let mut lost = std::pin::pin!(guard.lost());
        let ended = loop {
            tokio::select! {
                biased;
                event = signals.next() => match event {
                    Event::ChildChanged => if let Some(ended) = child.reap() { break Some(ended) },
                    Event::Suspend => {
                        child.suspend();
                        // This process was stopped until here. When the lock was lost meanwhile, the
                        // command gets SIGTERM before it continues.
                        if guard.is_lost() { break None }
                        child.resume();
                    }
                    Event::Signal(signal) => child.forward(signal),
                },
                () = &mut lost => break None,
            }
        };
        let Some(ended) = ended else {
            return self.lost(locks, guard, child, signals).await;
        };
        if ended == Ended::GuardKilled {
            // The guard process was killed. Without it the command would run on without the lock.
            child.end_group(Instant::now() + self.kill_after).await;
        }
        self.release(locks, guard).await;
        Ok(ended.exit())
    }

    /// Ends CMD after the loss of the lock.
    async fn lost(
        &self,
        locks: &LockManager,
        guard: LockGuard,
        mut child: Child,
        mut signals: Signals,
    ) -> Result<Exit, Failure> {
        let reason = self.loss_reason(&guard);
        let text = format!(
            "lost the lock `{}`{reason}; ending the command",
            self.args.name
        );
        let mut failure = Failure::new(Exit::Lost, "lost", text);
        // Reported before the command ends, since that may take `--kill-after`.
        if !self.output.is_json() {
            // The command ends, whether or not the text can be written.
            let _ = self.output.failure(&failure);
            failure.is_silent = true;
        }
        child.end(self.kill_after, &mut signals).await;
        // After a `--max-hold` the server still has the lock. Without an answer, it expires.
        let is_locked = guard.loss_reason() == Some(LossReason::MaxHold);
        let timeout = if is_locked {
            CANCEL_TIMEOUT
        } else {
            LOSS_TIMEOUT
        };
        drop(guard);
        if !gave_up(locks, Instant::now() + timeout).await && is_locked {
            self.warn_of_rest();
        }
        Err(failure)
    }

    /// Says that the server may still have the lock.
    fn warn_of_rest(&self) {
        self.output.note(&format!(
            "warning: the server did not confirm that lockctl gave up the lock `{}`; if lockctl still has it, \
             it ends within {}",
            self.args.name,
            human(self.args.ttl)
        ));
    }

    fn loss_reason(&self, guard: &LockGuard) -> String {
        let reason = match (guard.loss_reason(), self.args.max_hold) {
            (Some(LossReason::MaxHold), Some(max_hold)) => {
                format!("held for the `--max-hold` of {}", human(max_hold))
            }
            (Some(reason), _) => reason.to_string(),
            (None, _) => return String::new(),
        };
        format!(" ({reason})")
    }

    /// Releases the lock. The code of CMD stays, whatever happens here.
    async fn release(&self, locks: &LockManager, guard: LockGuard) {
        let limit = Instant::now() + connect::RELEASE_TIMEOUT;
        let Err(error) = guard.release().await else {
            return;
        };
        let name = &self.args.name;
        if error.is_lost() {
            self.output.note(&format!(
                "warning: the lock `{name}` was lost before the command ended; check its work"
            ));
            return;
        }
        // The release continues in the background.
        if !gave_up(locks, limit).await {
            let left = human(self.args.ttl);
            self.output.note(&format!(
                "warning: the lock `{name}` was not released ({error}); it ends within {left}"
            ));
        }
    }
}

/// Ends the wait and the manager. Returns whether the server has confirmed, before the limit, that nothing is left.
///
/// The shutdown ends the acquire after the reply to its command. If the acquire were dropped before, the command could
/// arrive during a whole `--timeout`, and no reply to the cancel would confirm anything.
async fn end_wait<G>(
    locks: &LockManager,
    acquiring: impl Future<Output = G>,
    limit: Instant,
) -> bool {
    let ended = async { drop(acquiring.await) };
    let ended = tokio::time::timeout_at(limit, ended);
    let (gave_up, _) = tokio::join!(gave_up(locks, limit), ended);
    gave_up
}

/// Ends the manager. Returns whether the server has confirmed, before the limit, that nothing is left.
async fn gave_up(locks: &LockManager, limit: Instant) -> bool {
    let ended = tokio::time::timeout_at(limit, locks.shutdown()).await;
    matches!(ended, Ok(Ok(())))
}

/// Says that the lock is not free.
fn contended_text(
    name: &str,
    error: &LockError,
    without_holder: Option<String>,
    exit: Exit,
) -> String {
    let state = match (without_holder, error.holder()) {
        (Some(state), _) => format!("has {state}"),
        (None, Some(holder)) => format!("is held by {}", held_by(holder)),
        (None, None) => "is held by another holder".to_owned(),
    };
    let waited = match error {
        LockError::Timeout { waited, .. } => format!("waited {}; ", human(*waited)),
        _ => String::new(),
    };
    let code = exit.code();
    format!("the lock `{name}` {state}; {waited}nothing was run (exit {code})")
}

fn held_by(holder: &Holder) -> String {
    let label = holder.label();
    match holder.held_for() {
        Some(held_for) => format!("{label} for {}", human(held_for)),
        None => label.to_owned(),
    }
}

impl Ended {
    fn exit(self) -> Exit {
        match self {
            Self::Code(code) => Exit::Chosen(code),
            Self::GuardKilled => Exit::Signal(u8::try_from(Signal::KILL.as_raw()).unwrap_or(0)),
        }
    }
}
