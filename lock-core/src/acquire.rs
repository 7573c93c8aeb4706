//! Getting a lock: ask, wait to be told, look by oneself, and take back what was not to be.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Asked, Attempt, Ending, Renewal, Renewed, Seen};
use crate::clock::{Clock, Moment};
use crate::error::{BackendErrorKind, Holder, LockError};
use crate::foreign;
use crate::guard::LockGuard;
use crate::hold::Hold;
use crate::inbox::{Grant, Signal, Slot};
use crate::key::LockKey;
use crate::lease::{Lease, Terms};
use crate::nesting;
use crate::options::Renew;
use crate::retry::{Backoff, Jitter};
use crate::shared::Core;
use crate::token::FencingToken;
use crate::wait::{Ahead, Looks, NO_EXPIRY_GRACE};
use tracing::{debug, warn};

/// How much longer than its wait a waiter may stay to hear that it left the queue. When that
/// is not enough the keeper goes on.
const LEAVE: Duration = Duration::from_millis(150);

/// An attempt that is taken back when it is dropped, at whatever await.
struct Armed {
    core: Arc<Core>,
    attempt: Attempt,
    slot: Option<Arc<Slot>>,
}

impl Armed {
    fn new(core: Arc<Core>, attempt: Attempt) -> Self {
        // Registered before anything is sent: a push may be faster than the reply.
        let slot = if attempt.waits_until.is_some() {
            Some(core.inbox.register_waiter(attempt.nonce))
        } else {
            core.inbox.register(attempt.nonce);
            None
        };
        Self {
            core,
            attempt,
            slot,
        }
    }

    fn ending(&self) -> Ending {
        Ending {
            key: self.attempt.key.clone(),
            nonce: self.attempt.nonce,
            ttl: self.attempt.terms.ttl,
            entries: self.attempt.entries().to_vec(),
            origin: self.attempt.origin,
            unsettled_until_ms: self.attempt.unsettled_until_ms(),
            keep_until: None,
        }
    }

    async fn ask(&mut self, limit: Duration) -> Result<Asked, LockError> {
        let core = Arc::clone(&self.core);
        core.backend.acquire(&mut self.attempt, limit).await
    }

    fn into_guard(mut self, token: Option<FencingToken>, lease: Lease) -> LockGuard {
        let mut ending = self.ending();
        // The guard's own release needs no order: the acquire was answered.
        ending.origin = None;
        self.attempt.taken_over();
        let hold = Hold::new(
            self.attempt.key.clone(),
            self.attempt.nonce,
            token,
            self.core.clock(),
            lease,
            Arc::clone(&self.core.counters),
        );
        debug!(key = %hold.key, token = token.map(tracing::field::display), "lock acquired");
        LockGuard::new(Arc::clone(&self.core), Arc::new(hold), ending)
    }

    fn lease(&self, sent: Moment, remaining: Duration) -> Lease {
        let terms = self.attempt.terms;
        if self.lives_with_its_guard() {
            Lease::endless(terms, self.core.clock().now())
        } else {
            Lease::confirmed(terms, sent, remaining)
        }
    }

    fn lives_with_its_guard(&self) -> bool {
        self.core.backend.keeps_leases() && self.attempt.terms.renew != Renew::Never
    }

    /// Goes on under a new nonce. What the old one may still have is taken back.
    fn rename(&mut self) {
        let renamed = Self::new(Arc::clone(&self.core), self.attempt.renamed());
        *self = renamed;
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if self.attempt.is_taken_over() {
            return;
        }
        if self.attempt.is_open() {
            self.core.abandon(self.ending());
        } else {
            self.core.inbox.remove(self.attempt.nonce);
        }
    }
}

fn check(core: &Arc<Core>, key: &LockKey) -> Result<(), LockError> {
    core.check_process()?;
    if nesting::is_inside(core.domain(), key.as_str()) {
        return Err(LockError::WouldDeadlock);
    }
    Ok(())
}

/// Asks once, without standing in the queue.
///
/// # Cancel safety
/// Dropped at any await, whatever was granted is taken back.
pub(crate) async fn try_once(
    core: &Arc<Core>,
    key: LockKey,
    terms: Terms,
) -> Result<LockGuard, LockError> {
    check(core, &key)?;
    let label = Arc::clone(&core.settings.label);
    let mut armed = Armed::new(Arc::clone(core), Attempt::new(key, terms, label, None));
    let mut no_expiry = NoExpiry::default();
    let mut limit = core.settings.command_timeout;
    let until = core.clock().now().plus(limit);
    let mut asked_again = false;
    loop {
        let asked = match armed.ask(limit).await {
            // The server may have closed a connection that nobody used, and the first command
            // finds it out. To ask again under the same nonce is to ask once.
            Err(error) if error.is_unreachable() && !asked_again => {
                asked_again = true;
                limit = until.since(core.clock().now());
                continue;
            }
            asked => asked?,
        };
        match asked {
            Asked::Held {
                token,
                sent,
                remaining,
            } => {
                let lease = armed.lease(sent, remaining);
                return usable(armed.into_guard(token, lease));
            }
            Asked::Queued { ahead, holder, .. } | Asked::Busy { ahead, holder } => {
                let Some(again) = no_expiry.check(ahead, core.clock().now()) else {
                    return Err(LockError::Contended {
                        key: armed.attempt.key.text(),
                        holder: core.holder(holder, None),
                    });
                };
                if again.is_zero() {
                    return Err(without_expiry(&armed.attempt.key, holder));
                }
                tokio::time::sleep(again).await;
            }
        }
    }
}

/// A reply that came after the lease it tells of is no lock.
fn usable(guard: LockGuard) -> Result<LockGuard, LockError> {
    if guard.is_lost() {
        drop(guard);
        return Err(LockError::backend(
            BackendErrorKind::TimedOut,
            "the server's answer came after the lease that it granted",
        ));
    }
    Ok(guard)
}

/// Waits for the lock for at most `wait`.
///
/// # Cancel safety
/// Dropped at any await, the place in the queue is given up, and a lock that was granted
/// meanwhile goes to the next.
pub(crate) async fn wait_for(
    core: &Arc<Core>,
    key: LockKey,
    terms: Terms,
    wait: Duration,
) -> Result<LockGuard, LockError> {
    check(core, &key)?;
    let started = core.clock().now();
    let deadline = started.plus(wait);
    let label = Arc::clone(&core.settings.label);
    let attempt = Attempt::new(key, terms, label, Some(deadline));
    let mut waiting = Waiting {
        armed: Armed::new(Arc::clone(core), attempt),
        started,
        deadline,
        looks: Looks::new(started, core.settings.retry_interval, Jitter::from_os()),
        backoff: Backoff::new(Jitter::from_os()),
        seen: None,
        trouble: None,
        no_expiry: NoExpiry::default(),
    };
    loop {
        if let Some(guard) = waiting.look().await? {
            return Ok(guard.into_guard(waiting.armed));
        }
        match waiting.be_told().await {
            Told::Granted(got) => return Ok(got.into_guard(waiting.armed)),
            Told::Look => {}
            Told::TimeIsUp => return Err(waiting.leave().await),
        }
    }
}

struct Waiting {
    armed: Armed,
    started: Moment,
    deadline: Moment,
    looks: Looks,
    backoff: Backoff,
    /// The holder at the last look, and how many were before us, where there is a queue.
    seen: Option<(Option<Seen>, Option<u64>)>,
    /// Why the last look got no answer.
    trouble: Option<LockError>,
    no_expiry: NoExpiry,
}

/// The lock, not yet in its guard.
struct Got {
    token: Option<FencingToken>,
    lease: Lease,
}

impl Got {
    fn into_guard(self, armed: Armed) -> LockGuard {
        armed.into_guard(self.token, self.lease)
    }
}

enum Told {
    Granted(Got),
    Look,
    TimeIsUp,
}

impl Waiting {
    fn clock(&self) -> Clock {
        self.armed.core.clock()
    }

    /// The longest that one command may take now.
    fn limit(&self) -> Duration {
        let left = self.deadline.since(self.clock().now());
        self.armed.core.settings.command_timeout.min(left)
    }

    /// Asks the server.
    async fn look(&mut self) -> Result<Option<Got>, LockError> {
        let limit = self.limit();
        if limit.is_zero() {
            return Ok(None);
        }
        let asked = self.armed.ask(limit).await;
        let now = self.clock().now();
        match asked {
            Ok(Asked::Held {
                token,
                sent,
                remaining,
            }) => return Ok(self.confirmed(token, sent, remaining)),
            Ok(Asked::Queued {
                rank,
                ahead,
                holder,
                poll,
            }) => self.answered(now, Some(rank), ahead, holder, poll)?,
            Ok(Asked::Busy { ahead, holder }) => self.answered(now, None, ahead, holder, None)?,
            Err(error) if error.is_worth_a_retry() => {
                debug!(key = %self.armed.attempt.key, %error, "waiting: no answer, asked again");
                if let Some(got) = self.ask_by_renewal(&error).await {
                    return Ok(Some(got));
                }
                self.note_trouble(error, limit);
                let pause = self.backoff.pause();
                self.looks.at_once(self.clock().now().plus(pause));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// A look that the end of the wait cut short blames nobody, where an earlier one knew more:
    /// who holds the lock, or what ails the server.
    fn note_trouble(&mut self, error: LockError, limit: Duration) {
        let was_cut_short = limit < self.armed.core.settings.command_timeout;
        let knows_more = self.seen.is_some() || self.trouble.is_some();
        if !(error.is_timed_out() && was_cut_short && knows_more) {
            self.trouble = Some(error);
        }
    }

    fn answered(
        &mut self,
        now: Moment,
        rank: Option<u64>,
        ahead: Ahead,
        holder: Option<Seen>,
        poll: Option<Duration>,
    ) -> Result<(), LockError> {
        self.trouble = None;
        self.backoff.reset();
        if self.no_expiry.check(ahead, now) == Some(Duration::ZERO) {
            return Err(without_expiry(&self.armed.attempt.key, holder));
        }
        self.looks.seen(now, rank.unwrap_or(0), ahead, poll);
        self.seen = Some((holder, rank));
        Ok(())
    }

    /// A server without memory refuses to be asked, but renews: it tells whether the lock was
    /// handed to us while nothing could be pushed.
    async fn ask_by_renewal(&mut self, error: &LockError) -> Option<Got> {
        let LockError::Backend(error) = error else {
            return None;
        };
        if error.kind() != BackendErrorKind::OutOfMemory || self.armed.attempt.entry().is_none() {
            return None;
        }
        let answer = self.renew().await?;
        self.renewed(&answer)
    }

    async fn renew(&self) -> Option<Renewed> {
        let attempt = &self.armed.attempt;
        let renewal = [Renewal {
            key: attempt.key.clone(),
            nonce: attempt.nonce,
            ttl: attempt.terms.ttl.as_duration(),
            terms: attempt.terms,
        }];
        let answers = self.armed.core.backend.renew(&renewal, self.limit()).await;
        answers.into_iter().next()
    }

    fn renewed(&mut self, answer: &Renewed) -> Option<Got> {
        match *answer {
            Renewed::Held {
                token,
                sent,
                remaining,
            } => self.confirmed(token, sent, remaining),
            Renewed::NotOurs | Renewed::Failed(_) => None,
        }
    }

    /// A lock by a reply. One that came too late is let go.
    fn confirmed(
        &mut self,
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    ) -> Option<Got> {
        let lease = self.armed.lease(sent, remaining);
        self.if_valid(token, lease)
    }

    fn if_valid(&mut self, token: Option<FencingToken>, lease: Lease) -> Option<Got> {
        if lease.is_valid(self.clock().now()) {
            return Some(Got { token, lease });
        }
        debug!(key = %self.armed.attempt.key, "a grant came too late and is let go");
        self.armed.rename();
        self.looks.at_once(self.clock().now());
        None
    }

    /// Sleeps until there is the lock, something to look at, or no more time.
    async fn be_told(&mut self) -> Told {
        loop {
            let Some(slot) = self.armed.slot.clone() else {
                return Told::Look;
            };
            let clock = self.clock();
            let look_at = self.looks.next().min(self.deadline);
            let pause = look_at.since(clock.now());
            let signal = tokio::time::timeout(pause, slot.next()).await;
            match signal {
                Ok(Signal::Grant(grant)) => {
                    return match self.accept(grant).await {
                        Some(got) => Told::Granted(got),
                        None => Told::Look,
                    };
                }
                Ok(Signal::Head { holder_ends }) => self.looks.is_head(holder_ends),
                Ok(Signal::Look) => return Told::Look,
                Err(_elapsed) => {}
            }
            let now = clock.now();
            if now >= self.deadline {
                return Told::TimeIsUp;
            }
            if now >= self.looks.next() {
                return Told::Look;
            }
        }
    }

    /// A lock by a push. Where it cannot be said for how long, a renewal tells; one that is
    /// over is let go.
    async fn accept(&mut self, grant: Grant) -> Option<Got> {
        if self.armed.lives_with_its_guard() {
            let lease = Lease::endless(self.armed.attempt.terms, grant.received);
            return self.if_valid(Some(grant.token), lease);
        }
        let now = self.clock().now();
        match grant.until {
            Some(until) if until.since(now) >= grant.lease / 2 => {
                let terms = self.armed.attempt.terms;
                let lease = Lease::handed_over(terms, grant.received, grant.lease, until);
                Some(Got {
                    token: Some(grant.token),
                    lease,
                })
            }
            _ => self.confirm().await,
        }
    }

    /// A renewal tells whether it is ours. Where that has no answer, asking again will tell.
    async fn confirm(&mut self) -> Option<Got> {
        let answer = self.renew().await;
        let refused = matches!(answer, Some(Renewed::NotOurs));
        let confirmed = answer.and_then(|answer| self.renewed(&answer));
        if refused {
            self.armed.rename();
        }
        if confirmed.is_none() {
            self.looks.at_once(self.clock().now());
        }
        confirmed
    }

    /// The wait is over. A lock that is granted at this very moment goes to the next.
    async fn leave(mut self) -> LockError {
        if self.armed.attempt.is_open() {
            let ending = self.armed.ending();
            match self.armed.core.backend.release(&ending, LEAVE).await {
                Ok(released) => self.armed.attempt.taken_back(released.server_ms),
                Err(error) => {
                    debug!(key = %ending.key, %error, "the keeper will leave the queue");
                }
            }
        }
        if let Some(trouble) = self.trouble.take() {
            return trouble;
        }
        let core = &self.armed.core;
        let (seen, rank) = self.seen.take().unwrap_or((None, None));
        let holder = core.holder(seen, rank);
        if holder.as_ref().is_some_and(Holder::is_this_process) {
            warn!(key = %self.armed.attempt.key, "gave up waiting for a lock that this process holds");
        }
        LockError::Timeout {
            key: self.armed.attempt.key.text(),
            waited: core.clock().now().since(self.started),
            holder,
        }
    }
}

/// Tells a lock that is about to get its expiry from a key that is no lock.
#[derive(Debug, Default)]
struct NoExpiry {
    since: Option<Moment>,
}

impl NoExpiry {
    /// `None` where the key has an expiry; else how much longer it may be without one.
    fn check(&mut self, ahead: Ahead, now: Moment) -> Option<Duration> {
        if ahead != Ahead::NoExpiry {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        Some(NO_EXPIRY_GRACE.saturating_sub(now.since(since)))
    }
}

fn without_expiry(key: &LockKey, holder: Option<Seen>) -> LockError {
    let value = holder.map_or_else(|| "".into(), |seen| seen.label);
    foreign::no_expiry(key, &value)
}
