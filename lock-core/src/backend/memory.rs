//! The embedded backend: one process, no server.
//!
//! A thin shell around the lock table. There is no keeper: hand-over happens in the releasing
//! call, expiry is computed from the caller's tokio clock, and a lock that is to be renewed
//! lives as long as its guard. With a thread in between, tests on paused time would see their
//! timeouts fire before their grants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Asked, Attempt, Backend, Boxed, Ending, Released, Renewal, Renewed, Seen};
use crate::clock::{Clock, Moment};
use crate::error::LockError;
use crate::foreign;
use crate::inbox::{Grant, Inbox, Signal, locked};
use crate::lease::Terms;
use crate::options::Renew;
use crate::table::{self, Answer, Context, HolderSeen, Table};
use crate::wait::Ahead;
use crate::wire::{Mode, OwnerValue, Push};

/// The lease of a lock that lives as long as its guard.
const ENDLESS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Nothing is published in this backend; entries need a channel all the same.
const CHANNEL: &str = "memory";

/// Locks in this process.
pub(crate) struct Memory {
    state: Mutex<State>,
    inbox: Arc<Inbox>,
    grace: Duration,
}

#[derive(Default)]
struct State {
    tables: HashMap<Arc<str>, Table>,
    /// One counter for all locks, so that a lock at rest takes no memory.
    last_token: u64,
}

impl Memory {
    pub(crate) fn new(inbox: Arc<Inbox>, grace: Duration) -> Self {
        Self {
            state: Mutex::default(),
            inbox,
            grace,
        }
    }

    /// Runs one command on the table of a lock, and tells those who are pushed to.
    fn command<T>(
        &self,
        key: &Arc<str>,
        now: Moment,
        run: impl FnOnce(&mut Table, &Context<'_>, u64) -> (T, Vec<Push>),
    ) -> T {
        let at = Context {
            now_us: micros(now),
            heard: &|_| true,
        };
        let (answer, pushes) = {
            let mut state = locked(&self.state);
            let floor_us = state.last_token.max(at.now_us) + 1;
            let table = state.tables.entry(Arc::clone(key)).or_default();
            let (answer, pushes) = run(table, &at, floor_us);
            let counted = table.counter.take().map_or(0, |counter| counter.it);
            if table.is_empty() {
                state.tables.remove(key);
            }
            state.last_token = state.last_token.max(counted);
            (answer, pushes)
        };
        for push in pushes {
            self.deliver(&push, now);
        }
        answer
    }

    fn deliver(&self, push: &Push, now: Moment) {
        let signal = match *push {
            Push::Grant {
                token, lease_ms, ..
            } => {
                let lease = Duration::from_millis(lease_ms);
                Signal::Grant(Grant {
                    token,
                    received: now,
                    lease,
                    until: Some(crate::lease::deadline(now, lease)),
                })
            }
            Push::Head { holder_ms, .. } => Signal::Head {
                holder_ends: now.plus(Duration::from_millis(holder_ms)),
            },
        };
        self.inbox.tell(push.nonce(), signal);
    }

    fn ask(&self, attempt: &mut Attempt) -> Result<Asked, LockError> {
        let now = Clock::Tokio.now();
        let lease = lease_of(attempt.terms);
        attempt.stand(Mode::Subscribed, CHANNEL, lease, now, micros(now) / 1000);
        let sending = attempt.sending(0, u64::MAX);
        let key = attempt.key.text();
        let answer = self.command(&key, now, |table, at, floor_us| {
            let ask = table::Acquire {
                nonce: attempt.nonce,
                ttl_ms: crate::ttl::whole_millis(lease),
                floor_us,
                not_after_ms: u64::MAX,
                label: &attempt.label,
                entry: attempt.entry(),
                earlier: attempt.earlier(),
            };
            table.acquire(&ask, at)
        });
        attempt.answered(&sending);
        Ok(match answer {
            Answer::Held {
                token,
                remaining_ms,
            } => Asked::Held {
                token: Some(token),
                sent: now,
                remaining: Duration::from_millis(remaining_ms),
            },
            Answer::Queued { rank, holder } => Asked::Queued {
                rank,
                ahead: ahead(&holder, now),
                holder: seen(&holder),
                poll: None,
            },
            Answer::Busy { holder } => {
                attempt.out();
                Asked::Busy {
                    ahead: ahead(&holder, now),
                    holder: seen(&holder),
                }
            }
            // Other types and late copies need a server and a network.
            Answer::Foreign { found } => {
                attempt.out();
                return Err(foreign::of_type(&attempt.key, &found));
            }
            Answer::Late => Asked::Busy {
                ahead: Ahead::Native { ends: now },
                holder: None,
            },
        })
    }

    fn take_back(&self, ending: &Ending) -> Released {
        let now = Clock::Tokio.now();
        let grace_ms = crate::ttl::whole_millis(self.grace);
        let verdict = self.command(&ending.key.text(), now, |table, at, floor_us| {
            let call = table::Release {
                nonce: ending.nonce,
                floor_us,
                grace_ms,
                keep_ms: ending.keep_ms(now),
                entries: &ending.entries,
            };
            table.release(&call, at)
        });
        Released {
            was_ours: verdict != table::Released::NotOurs,
            server_ms: micros(now) / 1000,
        }
    }

    fn extend(&self, renewal: &Renewal) -> Renewed {
        let now = Clock::Tokio.now();
        let lease = lease_of(renewal.terms);
        let ttl_ms = crate::ttl::whole_millis(lease);
        let answer = self.command(&renewal.key.text(), now, |table, at, _| {
            (
                table.renew(renewal.nonce, ttl_ms, at.now_us / 1000),
                Vec::new(),
            )
        });
        match answer {
            table::Renewed::Held { token, .. } => Renewed::Held {
                token: Some(token),
                sent: now,
                remaining: lease,
            },
            table::Renewed::NotOurs => Renewed::NotOurs,
        }
    }
}

impl Backend for Memory {
    fn clock(&self) -> Clock {
        Clock::Tokio
    }

    fn acquire<'a>(
        &'a self,
        attempt: &'a mut Attempt,
        _limit: Duration,
    ) -> Boxed<'a, Result<Asked, LockError>> {
        Box::pin(async move { self.ask(attempt) })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal], _limit: Duration) -> Boxed<'a, Vec<Renewed>> {
        Box::pin(async move {
            renewals
                .iter()
                .map(|renewal| self.extend(renewal))
                .collect()
        })
    }

    fn release<'a>(
        &'a self,
        ending: &'a Ending,
        _limit: Duration,
    ) -> Boxed<'a, Result<Released, LockError>> {
        Box::pin(async move { Ok(self.take_back(ending)) })
    }

    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn keeps_leases(&self) -> bool {
        true
    }
}

fn lease_of(terms: Terms) -> Duration {
    match terms.renew {
        Renew::Never => terms.ttl.as_duration(),
        Renew::Auto | Renew::Every(_) => terms.max_hold.unwrap_or(ENDLESS),
    }
}

fn micros(now: Moment) -> u64 {
    now.as_nanos() / 1000
}

fn ahead(holder: &HolderSeen, now: Moment) -> Ahead {
    let left = Duration::from_millis(holder.remaining_ms.unwrap_or(0));
    let ends = now.plus(left);
    if holder.value.is_empty() {
        Ahead::Foreign { ends }
    } else {
        Ahead::Native { ends }
    }
}

fn seen(holder: &HolderSeen) -> Option<Seen> {
    let value = OwnerValue::parse(&holder.value)?;
    let remaining = holder.remaining_ms.map(Duration::from_millis);
    Some(Seen {
        nonce: Some(value.nonce),
        label: value.label.into(),
        // A lease that lives as long as its guard has no remaining time to speak of.
        remaining: remaining.filter(|left| *left < ENDLESS / 2),
    })
}
