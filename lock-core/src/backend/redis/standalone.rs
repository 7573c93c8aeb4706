//! One primary.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError};

use super::connection::{Connection, Connector};
use super::fault::{breaks_connection, is_unknown_script, is_wrong_type, lock_error};
use super::push;
use super::reply::{self, Timed};
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use super::server::Server;
use crate::backend::{Asked, Attempt, Backend, Boxed, Ending, Released, Renewal, Renewed, Seen};
use crate::clock::{Clock, Moment};
use crate::error::{BackendErrorKind, LockError};
use crate::inbox::Inbox;
use crate::key::LockKey;
use crate::options::Settings;
use crate::table::{self, Answer, HolderSeen};
use crate::ttl::whole_millis;
use crate::wait::{self, Ahead};
use crate::wire::{Mode, NATIVE, OwnerValue, tidy_label};

/// A server whose clock jumped forward refuses a command as late; its refusal tells the time,
/// so the next one is right unless the clock jumps again.
const LATE_TRIES: usize = 3;

/// Locks on one server.
pub(crate) struct Redis(Standalone);

struct Standalone {
    server: Arc<Server>,
    grace_ms: u64,
}

/// Connects once, so that what is wrong is said now and not at the first lock.
pub(crate) async fn connect(
    url: &str,
    settings: &Settings,
    inbox: Arc<Inbox>,
) -> Result<Redis, LockError> {
    let connector = Connector::new(url, settings.command_timeout)?;
    let server = Server::new(connector, settings.command_timeout, inbox);
    server.connections.here(settings.command_timeout).await?;
    Ok(Redis(Standalone {
        server: Arc::new(server),
        grace_ms: whole_millis(settings.grace()),
    }))
}

impl Standalone {
    async fn ask(&self, attempt: &mut Attempt, limit: Duration) -> Result<Asked, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.server.connections.here(limit).await?;
        let mode = self.mode(attempt, &connection, limit).await;
        for _ in 0..LATE_TRIES {
            let left = until.since(Clock::System.now());
            if let Some(asked) = self.ask_once(attempt, &connection, mode, left).await? {
                return Ok(asked);
            }
        }
        Err(LockError::backend(
            BackendErrorKind::Other,
            "the lock server's clock runs away: it refuses each command as late",
        ))
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
        let server_ms = self.server.anchor_for(connection).server_ms_at(now);
        let not_after = server_ms.saturating_add(whole_millis(self.server.command_timeout));
        attempt.stand(
            mode,
            &self.server.pushes.channel,
            wait::claim(mode, ttl),
            now,
            server_ms,
        );
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
                    .arg(not_after)
                    .arg(&*attempt.label)
                    .arg(&entry);
                for earlier in attempt.earlier() {
                    command.arg(earlier.to_string());
                }
            };
            self.server
                .run(connection, &ACQUIRE, &keys, write_args, limit)
                .await?
        };
        attempt.answered(&copy);
        let reply = reply.map_err(|error| refused(connection, &attempt.key, error))?;
        let answer = reply::acquire(reply)?;
        self.server.told_time(connection, sent, answer.server_us);
        let poll = (mode == Mode::Polling).then(|| wait::poll_interval(ttl));
        asked(attempt, answer, sent, poll)
    }

    async fn take_back(&self, ending: &Ending, limit: Duration) -> Result<Released, LockError> {
        let until = Clock::System.now().plus(limit);
        // On the connection of the command that it takes back it cannot overtake it.
        let same = ending
            .origin
            .and_then(|origin| self.server.connections.by_origin(origin));
        let connection = match same {
            Some(connection) => connection,
            None => self.server.connections.here(limit).await?,
        };
        let keys = ending.key.all();
        let nonce = ending.nonce.to_string();
        let sent = Clock::System.now();
        let write_args = |command: &mut Cmd| {
            command
                .arg(&nonce)
                .arg(connection.floor_us())
                .arg(self.grace_ms)
                .arg(ending.keep_ms(sent));
            for entry in &ending.entries {
                command.arg(entry.to_string());
            }
        };
        let left = until.since(sent);
        let reply = self
            .server
            .run(&connection, &RELEASE, &keys, write_args, left)
            .await?;
        let reply = reply.map_err(|error| refused(&connection, &ending.key, error))?;
        let answer = reply::release(reply)?;
        self.server.told_time(&connection, sent, answer.server_us);
        Ok(Released {
            was_ours: answer.it != table::Released::NotOurs,
            server_ms: answer.server_us / 1000,
        })
    }

    async fn extend(&self, renewals: &[Renewal], limit: Duration) -> Vec<Renewed> {
        let fail = |error: &LockError| {
            renewals
                .iter()
                .map(|_| Renewed::Failed(error.clone()))
                .collect()
        };
        let until = Clock::System.now().plus(limit);
        let connection = match self.server.connections.here(limit).await {
            Ok(connection) => connection,
            Err(error) => return fail(&error),
        };
        let mut pipeline = Pipeline::with_capacity(renewals.len());
        for renewal in renewals {
            pipeline.add_command(RENEW.by_hash(&[renewal.key.as_str()], |command| {
                renewal_args(command, renewal);
            }));
        }
        pipeline.ignore_errors();
        let sent = Clock::System.now();
        let replies = match connection.call_all(&pipeline, until.since(sent)).await {
            Ok(replies) => replies,
            Err(error) => return fail(&error),
        };
        let mut answers = Vec::with_capacity(renewals.len());
        for (renewal, reply) in renewals.iter().zip(replies) {
            let (sent, reply) = match reply {
                Err(error) if is_unknown_script(&error) => {
                    let sent = Clock::System.now();
                    let command = RENEW.by_text(&[renewal.key.as_str()], |command| {
                        renewal_args(command, renewal);
                    });
                    match connection.call(&command, until.since(sent)).await {
                        Ok(reply) => (sent, reply),
                        Err(error) => {
                            answers.push(Renewed::Failed(error));
                            continue;
                        }
                    }
                }
                reply => (sent, reply),
            };
            let answer = reply
                .map_err(|error| refused(&connection, &renewal.key, error))
                .and_then(reply::renew);
            answers.push(match answer {
                Ok(Timed { it, server_us }) => {
                    self.server.told_time(&connection, sent, server_us);
                    renewed(it, sent)
                }
                Err(error) => Renewed::Failed(error),
            });
        }
        answers
    }
}

/// The server's own error: is the connection still good, is it about a key of ours?
fn refused(connection: &Connection, key: &LockKey, error: RedisError) -> LockError {
    if is_wrong_type(&error) {
        return LockError::ForeignKey {
            key: key.text(),
            found: "a companion key of another type (its queue `:q` or counter `:f`)".into(),
        };
    }
    let error = lock_error("the lock server refuses", error);
    if breaks_connection(&error) {
        connection.break_off();
    }
    error
}

fn renewal_args(command: &mut Cmd, renewal: &Renewal) {
    command
        .arg(renewal.nonce.to_string())
        .arg(whole_millis(renewal.ttl));
}

fn renewed(answer: table::Renewed, sent: Moment) -> Renewed {
    match answer {
        table::Renewed::Held { token, ttl_ms } => Renewed::Held {
            token,
            sent,
            remaining: Duration::from_millis(ttl_ms),
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
            token,
            sent,
            remaining: Duration::from_millis(remaining_ms),
        },
        Answer::Queued { rank, holder } => Asked::Queued {
            rank,
            ahead: ahead(&holder, received),
            holder: seen(&holder),
            poll,
        },
        Answer::Busy { holder } => {
            attempt.out();
            Asked::Busy {
                ahead: ahead(&holder, received),
                holder: seen(&holder),
            }
        }
        Answer::Foreign { found } => {
            return Err(LockError::ForeignKey {
                key: attempt.key.text(),
                found: format!("a {found}").into(),
            });
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
    let remaining = holder.remaining_ms.map(Duration::from_millis);
    match OwnerValue::parse(&holder.value) {
        Some(value) => Some(Seen {
            nonce: Some(value.nonce),
            label: value.label.into(),
            remaining,
        }),
        None if holder.value.is_empty() => None,
        None => Some(Seen {
            nonce: None,
            label: tidy_label(&holder.value).into(),
            remaining,
        }),
    }
}

impl Backend for Redis {
    fn clock(&self) -> Clock {
        Clock::System
    }

    fn acquire<'a>(
        &'a self,
        attempt: &'a mut Attempt,
        limit: Duration,
    ) -> Boxed<'a, Result<Asked, LockError>> {
        Box::pin(self.0.ask(attempt, limit))
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal], limit: Duration) -> Boxed<'a, Vec<Renewed>> {
        Box::pin(self.0.extend(renewals, limit))
    }

    fn release<'a>(
        &'a self,
        ending: &'a Ending,
        limit: Duration,
    ) -> Boxed<'a, Result<Released, LockError>> {
        Box::pin(self.0.take_back(ending, limit))
    }

    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(push::listen(Arc::clone(&self.0.server)))
    }

    fn keeps_leases(&self) -> bool {
        false
    }
}
