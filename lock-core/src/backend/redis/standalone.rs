//! Native locks on one primary.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::connection::Connection;
use super::reply::{self, Timed};
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use super::server::{Call, LATE_TRIES, NotAfter, Server, always_late, refused};
use crate::backend::{Asked, Attempt, Ending, Released, Renewal, Renewed, Seen, Stand};
use crate::clock::{Clock, Moment, ServerMs};
use crate::error::LockError;
use crate::foreign;
use crate::options::Settings;
use crate::table::{self, Answer, HolderSeen, Verdict};
use crate::ttl::whole_millis;
use crate::wait::{self, Ahead};
use crate::wire::{Mode, NATIVE};

/// How far the seed of a counter lies ahead of the server's time: nothing, on one primary.
const LEAD: u64 = 0;
/// Of the lock: the exclusive one.
const KIND: &str = "";

/// Native locks on one server.
pub(super) struct Standalone {
    server: Arc<Server>,
    grace_ms: u64,
    label: Arc<str>,
}

impl Standalone {
    pub(super) fn new(server: Arc<Server>, settings: &Settings) -> Self {
        Self {
            server,
            grace_ms: whole_millis(settings.grace()),
            label: Arc::clone(&settings.label),
        }
    }

    pub(super) async fn ask(
        &self,
        attempt: &mut Attempt,
        limit: Duration,
    ) -> Result<Asked, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.server.connections.here(limit).await?;
        let left = until.since(Clock::System.now());
        let mode = self.mode(attempt, &connection, left).await;
        for _ in 0..LATE_TRIES {
            let left = until.since(Clock::System.now());
            if let Some(asked) = self.ask_once(attempt, &connection, mode, left).await? {
                return Ok(asked);
            }
        }
        Err(always_late())
    }

    /// How one who waits will be told.
    async fn mode(&self, attempt: &Attempt, connection: &Connection, limit: Duration) -> Mode {
        if attempt.waits_until.is_none() {
            return Mode::Polling;
        }
        let incarnation = connection.first.incarnation;
        if self.server.pushes.arrive_from(incarnation, limit / 2).await {
            Mode::Subscribed
        } else {
            Mode::Polling
        }
    }

    /// `None` when the command was late.
    async fn ask_once(
        &self,
        attempt: &mut Attempt,
        connection: &Connection,
        mode: Mode,
        limit: Duration,
    ) -> Result<Option<Asked>, LockError> {
        let ttl = attempt.terms.ttl;
        let now = Clock::System.now();
        let NotAfter {
            server_ms,
            not_after_ms: not_after,
        } = self.server.not_after(connection, now);
        attempt.stand(Stand {
            mode,
            channel: &self.server.pushes.channel,
            lease: wait::claim(mode, ttl),
            now,
            server_ms,
            command_timeout: self.server.command_timeout,
        });
        let copy = attempt.sending(connection.origin, not_after);
        let sent = Clock::System.now();
        let reply = {
            let keys = attempt.key.all();
            let entry = attempt.entry().map(ToString::to_string).unwrap_or_default();
            let nonce = attempt.nonce.to_string();
            let write_args = |command: &mut Cmd| {
                command
                    .arg(&nonce)
                    .arg(ttl.as_millis())
                    .arg(connection.floor_us())
                    .arg(not_after.as_u64())
                    .arg(&*attempt.label)
                    .arg(&entry)
                    .arg(LEAD)
                    .arg(KIND);
                for earlier in attempt.earlier() {
                    command.arg(earlier.to_string());
                }
            };
            self.server
                .run(connection, &ACQUIRE, &keys, write_args, limit)
                .await?
        };
        attempt.answered(&copy);
        let reply = reply.map_err(|error| {
            let error = refused(connection, &attempt.key, &error);
            if error.is_worth_a_retry() {
                attempt.refused(&copy);
            }
            error
        })?;
        let answer = reply::acquire(reply)?;
        self.server.told_time(connection, sent, answer.server_us);
        let poll = (mode == Mode::Polling).then(|| wait::poll_interval(ttl));
        asked(attempt, answer, sent, poll)
    }

    pub(super) async fn take_back(
        &self,
        ending: &Ending,
        limit: Duration,
    ) -> Result<Released, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.server.connection_for(ending, limit).await?;
        let sent = Clock::System.now();
        let write_args = |command: &mut Cmd| self.write_release(command, ending, &connection, sent);
        let (keys, left) = (ending.key.all(), until.since(sent));
        let reply = self
            .server
            .run(&connection, &RELEASE, &keys, write_args, left)
            .await?;
        let reply = reply.map_err(|error| refused(&connection, &ending.key, &error))?;
        let Timed { it, server_us } = released(reply)?;
        self.server.told_time(&connection, sent, server_us);
        Ok(it)
    }

    /// Many releases in one pipeline.
    pub(super) async fn take_back_all(
        &self,
        endings: &[Ending],
        limit: Duration,
    ) -> Vec<Result<Released, LockError>> {
        if endings.is_empty() {
            return Vec::new();
        }
        let until = Clock::System.now().plus(limit);
        let connection = match self.server.connections.here(limit).await {
            Ok(connection) => connection,
            Err(error) => return endings.iter().map(|_| Err(error.clone())).collect(),
        };
        let now = Clock::System.now();
        let calls: Vec<_> = endings
            .iter()
            .map(|ending| Call {
                key: &ending.key,
                keys: ending.key.all().to_vec(),
            })
            .collect();
        let write_args = |at: usize, command: &mut Cmd| {
            self.write_release(command, &endings[at], &connection, now);
        };
        let read = |_, _, reply| released(reply);
        let left = until.since(now);
        self.server
            .run_each(&connection, &RELEASE, &calls, write_args, read, left)
            .await
    }

    fn write_release(
        &self,
        command: &mut Cmd,
        ending: &Ending,
        connection: &Connection,
        now: Moment,
    ) {
        command
            .arg(ending.nonce.to_string())
            .arg(connection.floor_us())
            .arg(self.grace_ms)
            .arg(ending.keep_ms(now))
            .arg(LEAD)
            .arg(&*self.label)
            .arg(KIND);
        for entry in &ending.entries {
            command.arg(entry.to_string());
        }
    }

    pub(super) async fn extend(&self, renewals: &[Renewal], limit: Duration) -> Vec<Renewed> {
        let args = |renewal: &Renewal, _| {
            let ttl = whole_millis(renewal.ttl);
            vec![renewal.nonce.to_string(), ttl.to_string()]
        };
        let read = |_: &Renewal, _, sent, reply| {
            let Timed { it, server_us } = reply::renew(reply)?;
            let it = renewed(it, sent);
            Ok(Timed { it, server_us })
        };
        self.server
            .renew_each(&RENEW, renewals, args, read, limit)
            .await
    }
}

fn released(reply: Value) -> Result<Timed<Released>, LockError> {
    let Timed { it, server_us } = reply::release(reply)?;
    let it = Released {
        was_ours: it.verdict != Verdict::NotOurs,
        server_ms: ServerMs::from_micros(server_us),
        more: it.more,
    };
    Ok(Timed { it, server_us })
}

fn renewed(answer: table::Renewed, sent: Moment) -> Renewed {
    match answer {
        table::Renewed::Held {
            token,
            remaining_ms,
        } => Renewed::Held {
            token: Some(token),
            sent,
            remaining: Duration::from_millis(remaining_ms),
        },
        table::Renewed::NotOurs => Renewed::NotOurs,
    }
}

/// What an answer means to an attempt; `None` when the command was late.
fn asked(
    attempt: &mut Attempt,
    answer: Timed<Answer>,
    sent: Moment,
    poll: Option<Duration>,
) -> Result<Option<Asked>, LockError> {
    let received = Clock::System.now();
    Ok(Some(match answer.it {
        Answer::Late => return Ok(None),
        Answer::Held {
            token,
            remaining_ms,
        } => Asked::Held {
            token: Some(token),
            sent,
            remaining: Duration::from_millis(remaining_ms),
        },
        Answer::Queued { rank, holder } => {
            attempt.queued(ServerMs::from_micros(answer.server_us));
            Asked::Queued {
                rank,
                ahead: ahead(&holder, received),
                holder: seen(&holder),
                poll,
            }
        }
        Answer::More => Asked::More,
        Answer::Busy { holder } => {
            attempt.out();
            Asked::Busy {
                ahead: ahead(&holder, received),
                holder: seen(&holder),
            }
        }
        Answer::Foreign { found } => {
            return Err(foreign::of_type(&attempt.key, &found));
        }
    }))
}

fn ahead(holder: &HolderSeen, received: Moment) -> Ahead {
    let Some(remaining_ms) = holder.remaining_ms else {
        return Ahead::NoExpiry;
    };
    let ends = received.plus(Duration::from_millis(remaining_ms));
    if holder.value.starts_with(NATIVE) {
        Ahead::Native { ends }
    } else {
        Ahead::Foreign { ends }
    }
}

fn seen(holder: &HolderSeen) -> Option<Seen> {
    Seen::by(
        &holder.value,
        holder.remaining_ms.map(Duration::from_millis),
    )
}
