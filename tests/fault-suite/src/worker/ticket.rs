//! Locks that go from one process to another.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockTicket};
use lock_testing::{AcquisitionRecord as Log, Call, Kind, nanos};
use test_support::Random;

use super::TTL;
use super::section::Section;
use super::task::{Task, drop_somewhere};
use crate::history::RESUMES;

/// How long a resume goes on while the server is away.
const WAIT: Duration = Duration::from_secs(1);

/// The folder of tickets that all processes share. A file stays until a task knows that its ticket has ended, so that
/// several tasks try to resume one ticket.
pub(super) struct Tickets(PathBuf);

impl Tickets {
    pub(super) fn beside(record: &Path) -> Self {
        Self(record.with_file_name("tickets"))
    }

    /// Writes a ticket. A process that is killed in the middle leaves a file that is no ticket, or none.
    fn put(&self, ticket: &LockTicket) {
        let file = self.0.join(ticket.fencing_token().to_string());
        let _killed_runner =
            fs::create_dir_all(&self.0).and_then(|()| fs::write(file, ticket.to_string()));
    }

    /// Reads one of the tickets.
    fn pick(&self, random: &mut Random) -> Option<(PathBuf, LockTicket)> {
        let mut files: Vec<_> = fs::read_dir(&self.0).ok()?.flatten().collect();
        if files.is_empty() {
            return None;
        }
        let at = random.below(files.len());
        let path = files.swap_remove(at).path();
        let ticket = fs::read_to_string(&path).ok()?.parse();
        if ticket.is_err() {
            // Its writer was killed, or is still writing.
            let _gone = fs::remove_file(&path);
        }
        Some((path, ticket.ok()?))
    }
}

impl Task {
    /// Gives the lock to whoever resumes its ticket first.
    pub(super) async fn hand_over(&mut self, log: &Log, guard: LockGuard) {
        log.step(Call::Release, Kind::Invoke);
        let making = guard.into_ticket(TTL);
        let made = if self.random.chance(20) {
            drop_somewhere(making, &mut self.random).await
        } else {
            Some(making.await)
        };
        match made {
            Some(Ok(ticket)) => {
                log.step(Call::Release, Kind::Ok);
                // Some tickets get lost.
                if self.random.chance(90) {
                    self.tickets.put(&ticket);
                }
            }
            Some(Err(error)) => log.failed(Call::Release, &error),
            None => log.step(Call::Release, Kind::Dropped),
        }
    }

    /// Resumes a ticket, if there is one. Other tasks and processes may try the same ticket.
    pub(super) async fn resume(&mut self) -> bool {
        let Some((path, ticket)) = self.tickets.pick(&mut self.random) else {
            return false;
        };
        let log = self.recorder.begin(ticket.name());
        let mut invoke = log.event(Call::Acquire, Kind::Invoke);
        invoke.limit = Some(nanos(WAIT + self.command_timeout));
        invoke.note = Some(format!("{RESUMES}{}", ticket.fencing_token()).into());
        log.write(invoke);
        self.section = Section::Update;
        let request = self.locks.lock(ticket.name()).ttl(TTL).wait(WAIT);
        let resuming = request.resume(ticket);
        let answer = {
            let open = log.pending(Call::Acquire);
            let answer = if self.random.chance(20) {
                drop_somewhere(resuming, &mut self.random).await
            } else {
                Some(resuming.await)
            };
            open.finish();
            answer
        };
        if matches!(answer, Some(Ok(_) | Err(LockError::TicketEnded { .. }))) {
            let _gone = fs::remove_file(path);
        }
        match answer {
            Some(Ok(guard)) => Box::pin(self.hold(&log, guard)).await,
            Some(Err(error)) => self.refused(&log, &error).await,
            None => log.step(Call::Acquire, Kind::Dropped),
        }
        true
    }
}
