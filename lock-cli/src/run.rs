//! `lockctl run`: runs a command while a lock is held.
//!
//! There are three processes: this one holds the lock, the guard process ends the command when this one
//! is gone, and the command. The guard process leads a process group of its own, so that a signal reaches
//! the whole tree. On a terminal all three stay in the foreground group: a background process gets no
//! input.

use std::time::Duration;

use lock_core::{Holder, LockError, LockManager, LockSet, LockTicket, LossReason};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::args::{GlobalArgs, OnContended, RunArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::Line;
use crate::text::{flag, human, rfc3339};
use crate::view;

mod child;
pub(crate) mod guard_process;
mod processes;
mod signals;
mod ticket;
mod warning;

use child::{Child, Ended};
use signals::{Event, Signals};
use warning::Warnings;

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
    let mut args = args;
    let ticket = if args.resume.is_some() {
        let ticket = tokio::select! {
            biased;
            signal = signals.end_of_wait() => return Ok(ended_by(signal)),
            ticket = ticket::read() => ticket?,
        };
        args.names = vec![ticket.name().to_owned()];
        Some(ticket)
    } else {
        None
    };
    let job = Job {
        global,
        kill_after: args.kill_after.unwrap_or(KILL_AFTER.min(args.ttl / 2)),
        args,
        output,
    };
    let locks = tokio::select! {
        biased;
        signal = signals.end_of_wait() => return Ok(ended_by(signal)),
        locks = job.connect() => locks?,
    };
    let mut acquiring = std::pin::pin!(job.acquire(&locks, ticket));
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
    /// Connects, or leaves that to the acquire, which waits for the server.
    async fn connect(&self) -> Result<LockManager, Failure> {
        let (global, output) = (self.global, self.output);
        let label = self.args.label.as_deref();
        match self.args.outage_wait {
            Some(_) => connect::lazy_manager(global, label, output),
            None => connect::manager(global, label, output).await,
        }
    }

    /// Acquires the lock with its whole ttl.
    async fn acquire(
        &self,
        locks: &LockManager,
        ticket: Option<LockTicket>,
    ) -> Result<LockSet, LockError> {
        let args = &self.args;
        if let Some(ticket) = ticket {
            let mut request = locks.lock(ticket.name()).ttl(args.ttl);
            request = request.wait(args.wait.unwrap_or_default());
            if let Some(max_hold) = args.max_hold {
                request = request.max_hold(max_hold);
            }
            if let Some(min_hold) = args.min_hold {
                request = request.min_hold(min_hold);
            }
            if let Some(outage_wait) = args.outage_wait {
                request = request.outage_wait(outage_wait);
            }
            if let Some(period) = args.once_per {
                request = request.once_per(period);
            }
            return request.resume(ticket).await.map(LockSet::from);
        }
        let wait = args.wait.unwrap_or_default();
        let mut request = locks
            .lock_all(args.names.iter().map(String::as_str))
            .kind(args.kind())
            .ttl(args.ttl)
            .wait(wait);
        if let Some(outage_wait) = args.outage_wait {
            request = request.outage_wait(outage_wait);
        }
        if let Some(max_hold) = args.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(min_hold) = args.min_hold {
            request = request.min_hold(min_hold);
        }
        if let Some(max_queue) = args.max_queue {
            request = request.max_queue(max_queue);
        }
        if let Some(period) = args.once_per {
            request = request.once_per(period);
        }
        let held = request.acquire().await?;
        // A handover gives a lease of two seconds at most. When this process is killed right after the
        // command has begun, the guard process needs `--kill-after` before the lease ends.
        held.renew().await?;
        Ok(held)
    }

    /// Returns the key of a name.
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.global.prefix)
    }

    /// Names the lock or the locks: ``the lock `a` ``, ``the locks `a`, `b` ``.
    fn what(&self) -> String {
        let names: Vec<_> = self
            .args
            .names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        match names.as_slice() {
            [name] => format!("the lock {name}"),
            names => format!("the locks {}", names.join(", ")),
        }
    }

    /// Names what was lost: the lock, or one of the locks.
    fn what_is_lost(&self) -> String {
        match self.args.names.len() {
            1 => self.what(),
            _ => format!("one of {}", self.what()),
        }
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
            if let LockError::TicketEnded { reason, .. } = error {
                let code = self.args.conflict_exit_code;
                failure.exit = Exit::Chosen(code);
                failure.text = Line::new(&format!(
                    "the ticket for {} can no longer be resumed ({reason}); nothing was run (exit {code})",
                    self.what()
                ));
            }
            if error.is_lost() {
                // The server has granted the lock, and did not renew it.
                failure.text = Line::new(&format!(
                    "lost {} before the command began; nothing was run",
                    self.what_is_lost()
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
        let names = &self.args.names;
        let of_error = |name: &&String| error.key() == Some(&self.key(name));
        let name = names.iter().find(of_error).unwrap_or(&names[0]);
        let admin = locks.admin();
        let inspecting = admin.inspect(name.as_str());
        let lock = tokio::select! {
            biased;
            signal = signals.end_of_wait() => return Ok(ended_by(signal)),
            lock = tokio::time::timeout(INSPECT_TIMEOUT, inspecting) => lock,
        };
        let lock = lock.ok().and_then(Result::ok);
        let without_holder = lock.as_ref().and_then(view::without_holder);
        let text = contended_text(name, error, without_holder, exit);
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
        guard: LockSet,
        mut signals: Signals,
    ) -> Result<Exit, Failure> {
        let mut child = match Child::spawn(self, &guard) {
            Ok(child) => child,
            Err(error) => {
                self.release(locks, guard).await;
                return Err(Failure::internal("cannot start the guard process", &error));
            }
        };
        for guard in guard.guards() {
            let key = guard.key();
            let name = key.strip_prefix(&self.global.prefix).unwrap_or(key);
            let token = guard.fencing_token();
            let token = token.map_or_else(|| "none".to_owned(), |token| token.to_string());
            self.output
                .detail(&format!("acquired the lock `{name}` (token {token})"));
        }
        let mut lost = std::pin::pin!(guard.lost());
        let mut warnings = Warnings::new(&guard, self.args.warn_signal);
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
                signal = warnings.next() => {
                    child.forward(signal.as_signal());
                    self.output.note(&format!(
                        "warning: {} was not renewed in time, and is lost in {} unless that succeeds; sent {} to the command",
                        self.what_is_lost(),
                        human(guard.remaining()),
                        signal.name(),
                    ));
                }
            }
        };
        let Some(ended) = ended else {
            return self.lost(locks, guard, child, signals).await;
        };
        if ended == Ended::GuardKilled {
            // The guard process was killed. Without it the command would run on without the lock.
            child.end_group(Instant::now() + self.kill_after).await;
        }
        let exit = ended.exit();
        if self.args.once_per.is_some() && exit == Exit::Chosen(0) {
            self.complete(locks, guard).await;
        } else {
            self.release(locks, guard).await;
        }
        Ok(exit)
    }

    /// Ends CMD after the loss of the lock.
    async fn lost(
        &self,
        locks: &LockManager,
        guard: LockSet,
        mut child: Child,
        mut signals: Signals,
    ) -> Result<Exit, Failure> {
        let reason = self.loss_reason(&guard);
        let what = self.what_is_lost();
        let text = format!("lost {what}{reason}; ending the command");
        let mut failure = Failure::new(Exit::Lost, "lost", text);
        // Reported before the command ends, since that may take `--kill-after`.
        if !self.output.is_json() {
            // The command ends, whether or not the text can be written.
            let _ = self.output.failure(&failure);
            failure.is_silent = true;
        }
        child.end(self.kill_after, &mut signals).await;
        // After a `--max-hold` the server still has the lock, and when one lock of a set is lost, it has the others.
        // Without an answer, they expire.
        let is_locked =
            self.args.names.len() > 1 || guard.loss_reason() == Some(LossReason::MaxHold);
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
        let (what, ends) = (self.what(), self.ends());
        let it = if self.args.names.len() == 1 {
            "it"
        } else {
            "one of them"
        };
        self.output.note(&format!(
            "warning: the server did not confirm that lockctl gave up {what}; if lockctl still has {it}, {ends}"
        ));
    }

    /// Says when a lock ends that was not released.
    fn ends(&self) -> String {
        format!("it ends within {}", human(self.args.ttl))
    }

    fn loss_reason(&self, guard: &LockSet) -> String {
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
    async fn release(&self, locks: &LockManager, guard: LockSet) {
        let limit = Instant::now() + connect::RELEASE_TIMEOUT;
        let released = guard.release().await;
        self.end(locks, released, limit).await;
    }

    /// Releases the lock, and keeps its name taken for the rest of `--once-per`.
    async fn complete(&self, locks: &LockManager, guard: LockSet) {
        let limit = Instant::now() + connect::RELEASE_TIMEOUT;
        let completed = guard.complete().await;
        self.end(locks, completed, limit).await;
    }

    /// Warns if the release failed.
    async fn end(&self, locks: &LockManager, released: Result<(), LockError>, limit: Instant) {
        let Err(error) = released else {
            return;
        };
        let what = self.what_is_lost();
        if error.is_lost() {
            self.output.note(&format!(
                "warning: {what} was lost before the command ended; check its work"
            ));
            return;
        }
        // The release continues in the background.
        if !gave_up(locks, limit).await {
            let ends = self.ends();
            self.output.note(&format!(
                "warning: {what} was not released ({error}); {ends}"
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
        LockError::QueueFull { position, .. } => format!("callers that wait already: {position}; "),
        _ => String::new(),
    };
    let code = exit.code();
    if let LockError::Done {
        since, by, free_in, ..
    } = error
    {
        let (since, free) = (rfc3339(*since), human(*free_in));
        return format!(
            "the work of `{name}` is done: {by} began it at {since} and succeeded; the name is free in {free}; \
             nothing was run (exit {code})"
        );
    }
    format!("the lock `{name}` {state}; {waited}nothing was run (exit {code})")
}

fn held_by(holder: &Holder) -> String {
    // A lock that several hold has the label of its first holder, which may be gone.
    let by = view::holders(holder.kind, holder.count.into());
    let by = by.unwrap_or_else(|| view::label(holder));
    match holder.held_for {
        Some(held_for) => format!("{by} for {}", human(held_for)),
        None => by,
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
