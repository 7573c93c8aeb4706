//! The embedded backend: one process, no server.
//!
//! A thin shell around the lock table. There is no keeper: hand-over happens in the releasing
//! call, expiry is computed from the caller's tokio clock, and a lock that is to be renewed
//! lives as long as its guard. With a thread in between, tests on paused time would see their
//! timeouts fire before their grants.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{Asked, Attempt, Backend, Boxed, Ending, Released, Renewal, Renewed, Seen, Stand};
use crate::clock::{Clock, Moment, ServerMs};
use crate::error::LockError;
use crate::foreign;
use crate::inbox::{Grant, Inbox, Signal};
use crate::key::LockKey;
use crate::lease::Terms;
use crate::options::Renew;
use crate::sync::Mutex;
use crate::table::{self, Answer, Context, HolderSeen, Table, Verdict};
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
    /// When those tables end that end by themselves: nobody may ever ask for them again.
    ends: BTreeSet<(ServerMs, Arc<str>)>,
    /// One counter for all locks, so that a lock at rest takes no memory.
    last_token: u64,
}

/// Tables that one command removes because their time is over: more than it makes, and few enough
/// to take no time.
const SWEPT_PER_COMMAND: usize = 16;

impl State {
    /// Runs a command on a table, and notes when the table ends now.
    fn run<T>(&mut self, key: &Arc<str>, run: impl FnOnce(&mut Table) -> T) -> T {
        let table = self.tables.entry(Arc::clone(key)).or_default();
        let before = end_of(table);
        let result = run(table);
        let after = end_of(table);
        if table.is_empty() {
            self.tables.remove(key);
        }
        if before != after {
            if let Some(end) = before {
                self.ends.remove(&(end, Arc::clone(key)));
            }
            self.ends.extend(after.map(|end| (end, Arc::clone(key))));
        }
        result
    }

    /// Removes tables that ended.
    fn sweep(&mut self, now_ms: ServerMs) {
        for _ in 0..SWEPT_PER_COMMAND {
            let Some((end, key)) = self.ends.first() else {
                break;
            };
            if now_ms <= *end {
                break;
            }
            let key = Arc::clone(key);
            self.run(&key, |table| table.expire(now_ms));
        }
        // A burst of locks leaves a table of that size otherwise.
        if self.tables.len() < self.tables.capacity() / 8 {
            let spare = self.tables.len() * 2;
            self.tables.shrink_to(spare);
        }
    }
}

/// When a table that is not empty ends by itself, if it does within anybody's lifetime: a lock that
/// lives as long as its guard is removed with it.
fn end_of(table: &Table) -> Option<ServerMs> {
    let endless = ServerMs::new(crate::ttl::whole_millis(ENDLESS / 2));
    let end = table.ends_ms().filter(|end| *end < endless)?;
    (!table.is_empty()).then_some(end)
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
            let mut state = self.state.lock();
            let floor_us = state.last_token.max(at.now_us).saturating_add(1);
            let (answer, pushes, counted) = state.run(key, |table| {
                let (answer, pushes) = run(table, &at, floor_us);
                let counted = table.counter.take().map_or(0, |counter| counter.it);
                (answer, pushes, counted)
            });
            state.last_token = state.last_token.max(counted);
            state.sweep(ServerMs::from_micros(at.now_us));
            (answer, pushes)
        };
        for push in pushes {
            self.deliver(&push, now);
        }
        answer
    }

    fn deliver(&self, push: &Push, now: Moment) {
        match *push {
            Push::Grant {
                nonce,
                token,
                lease_ms,
                ..
            } => {
                let lease = Duration::from_millis(lease_ms);
                let grant = Grant {
                    token,
                    received: now,
                    lease,
                    until: Some(crate::lease::deadline(now, lease)),
                };
                self.inbox.tell(nonce, Signal::Grant(grant));
            }
            Push::Head { to, holder_ms, .. } => {
                let holder_ends = now.plus(Duration::from_millis(holder_ms));
                self.inbox.tell_all(to, Signal::Head { holder_ends });
            }
        }
    }

    fn ask(&self, attempt: &mut Attempt) -> Result<Asked, LockError> {
        let now = Clock::Tokio.now();
        let lease = lease_of(attempt.terms);
        attempt.stand(Stand {
            mode: Mode::Subscribed,
            channel: CHANNEL,
            lease,
            now,
            server_ms: server_ms(now),
            command_timeout: Duration::ZERO,
        });
        let sending = attempt.sending(0, ServerMs::LAST);
        let key = attempt.key.text();
        let earlier = attempt.earlier();
        let ask = |table: &mut Table, at: &Context<'_>, floor_us| {
            let ask = table::Acquire {
                nonce: attempt.nonce,
                ttl_ms: crate::ttl::whole_millis(lease),
                floor_us,
                not_after_ms: ServerMs::LAST,
                label: &attempt.label,
                entry: attempt.entry(),
                lead_us: 0,
                earlier: &earlier,
            };
            table.acquire(&ask, at)
        };
        let mut answer = self.command(&key, now, ask);
        while answer == Answer::More {
            answer = self.command(&key, now, ask);
        }
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
            Answer::Late | Answer::More => Asked::Busy {
                ahead: Ahead::Native { ends: now },
                holder: None,
            },
        })
    }

    fn take_back(&self, ending: &Ending) -> Released {
        let now = Clock::Tokio.now();
        let grace_ms = crate::ttl::whole_millis(self.grace);
        let key = ending.key.text();
        let release = |table: &mut Table, at: &Context<'_>, floor_us| {
            let call = table::Release {
                nonce: ending.nonce,
                floor_us,
                grace_ms,
                keep_ms: ending.keep_ms(now),
                lead_us: 0,
                entries: &ending.entries,
            };
            table.release(&call, at)
        };
        let released = self.command(&key, now, release);
        let mut more = released.more;
        while more {
            more = self.command(&key, now, release).more;
        }
        Released {
            was_ours: released.verdict != Verdict::NotOurs,
            server_ms: server_ms(now),
            more: false,
        }
    }

    fn extend(&self, renewal: &Renewal) -> Renewed {
        let now = Clock::Tokio.now();
        let lease = lease_of(renewal.terms);
        let ttl_ms = crate::ttl::whole_millis(lease);
        let answer = self.command(&renewal.key.text(), now, |table, at, _| {
            (table.renew(renewal.nonce, ttl_ms, at.now_ms()), Vec::new())
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

    fn batches(&self, _key: &LockKey) -> bool {
        true
    }

    fn release_all<'a>(
        &'a self,
        endings: &'a [Ending],
        _limit: Duration,
    ) -> Boxed<'a, Vec<Result<Released, LockError>>> {
        let released = endings.iter().map(|ending| Ok(self.take_back(ending)));
        Box::pin(std::future::ready(released.collect()))
    }

    fn seems_down(&self) -> bool {
        false
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn connected(&self, _until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(std::future::ready(Ok(())))
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

fn server_ms(now: Moment) -> ServerMs {
    ServerMs::from_micros(micros(now))
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
        token: Some(value.token),
        label: value.label.into(),
        // A lease that lives as long as its guard has no remaining time to speak of.
        remaining: remaining.filter(|left| *left < ENDLESS / 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LockName;
    use crate::manager::LockManager;
    use crate::nonce::Nonce;
    use crate::ttl::Ttl;

    fn terms(renew: Renew) -> Terms {
        Terms {
            ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
            renew,
            max_hold: None,
            margin: Duration::ZERO,
        }
    }

    fn ending(key: &LockKey, nonce: Nonce, keep_until: Option<Moment>) -> Ending {
        Ending {
            key: key.clone(),
            nonce,
            ttl: terms(Renew::Auto).ttl,
            entries: Vec::new(),
            origin: None,
            unsettled_until_ms: None,
            keep_until,
        }
    }

    fn key(number: usize) -> LockKey {
        LockKey::new("", &LockName::from(format!("k{number}"))).unwrap()
    }

    fn take(memory: &Memory, key: &LockKey, renew: Renew) -> Nonce {
        let mut attempt = Attempt::new(key.clone(), terms(renew), "".into(), None);
        assert!(matches!(memory.ask(&mut attempt), Ok(Asked::Held { .. })));
        attempt.nonce
    }

    fn size(memory: &Memory) -> (usize, usize, usize) {
        let state = memory.state.lock();
        (
            state.tables.len(),
            state.ends.len(),
            state.tables.capacity(),
        )
    }

    /// Released under a shortest hold, or forgotten: nobody may ever ask for them again.
    #[tokio::test(start_paused = true)]
    async fn locks_that_end_by_themselves_are_removed() {
        const LOCKS: usize = 20_000;
        let memory = Memory::new(Arc::default(), Duration::ZERO);
        for number in 0..LOCKS {
            let (key, now) = (key(number), Clock::Tokio.now());
            if number % 2 == 0 {
                let nonce = take(&memory, &key, Renew::Auto);
                let keep_until = Some(now.plus(Duration::from_millis(500)));
                memory.take_back(&ending(&key, nonce, keep_until));
            } else {
                take(&memory, &key, Renew::Never);
            }
        }
        assert_eq!(size(&memory).0, LOCKS);
        tokio::time::advance(Duration::from_secs(2)).await;
        // As other locks come and go.
        for number in 0..LOCKS / 8 {
            let key = key(LOCKS + number % 3);
            let nonce = take(&memory, &key, Renew::Auto);
            memory.take_back(&ending(&key, nonce, None));
        }
        let (tables, ends, capacity) = size(&memory);
        assert_eq!((tables, ends), (0, 0));
        assert!(capacity < LOCKS / 4, "{capacity}");
    }

    #[tokio::test(start_paused = true)]
    async fn locks_that_live_with_their_guards_are_not_swept() {
        let memory = Memory::new(Arc::default(), Duration::ZERO);
        let held = take(&memory, &key(1), Renew::Auto);
        assert_eq!(size(&memory).1, 0, "it has no end");
        for _ in 0..100 {
            tokio::time::advance(Duration::from_secs(3_600)).await;
            take(&memory, &key(2), Renew::Never);
        }
        assert!(memory.take_back(&ending(&key(1), held, None)).was_ours);
    }

    /// Waiters that gave up without a word stand there until their time is over; whoever tries
    /// passes all of them in one call.
    #[tokio::test(start_paused = true)]
    async fn one_call_passes_any_number_of_dead_waiters() {
        let locks = LockManager::in_memory();
        let held = locks.lock("a").acquire().await.unwrap();
        for _ in 0..350 {
            let waiting = locks.lock("a").wait(Duration::from_secs(1)).acquire();
            let mut waiting = Box::pin(waiting);
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(Future::poll(waiting.as_mut(), cx))
            });
            assert!(polled.await.is_pending());
            std::mem::forget(waiting);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        held.release().await.unwrap();
        let got = locks.lock("a").try_acquire().await.unwrap();
        got.expect("nobody lives there").release().await.unwrap();
    }
}
