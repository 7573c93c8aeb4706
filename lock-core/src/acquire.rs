//! Getting a lock: ask, wait to be told, look by oneself, and take back what was not to be.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Asked, Attempt, Ending, Renewal, Renewed, Seen};
use crate::clock::{Clock, Moment};
use crate::error::{BackendErrorKind, Holder, LockError};
use crate::foreign;
use crate::guard::LockGuard;
use crate::hold::Hold;
use crate::inbox::{Grant, Place, Signal, Slot};
use crate::key::LockKey;
use crate::lease::{Lease, Terms};
use crate::nesting;
use crate::options::Renew;
use crate::retry::{Backoff, Jitter};
use crate::shared::{Core, check_runtime};
use crate::token::FencingToken;
use crate::wait::{Ahead, Looks, NO_EXPIRY_GRACE, NO_EXPIRY_POLL, Sighting, Standing};
use tracing::{debug, warn};

/// How much longer than its wait a waiter may stay to hear that it left the queue. When that
/// is not enough the keeper goes on.
const LEAVE: Duration = Duration::from_millis(150);
/// The first look may take so long, also where the wait is shorter.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// How much longer than its wait a call may take to find out that a key without expiry gets none.
const LATEST: Duration = Duration::from_millis(230);

/// An attempt that is taken back when it is dropped, at whatever await.
struct Armed {
    core: Arc<Core>,
    attempt: Attempt,
    slot: Option<Arc<Slot>>,
    /// Among the waiters of this manager, once it stands in the queue.
    place: Option<Place>,
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
            place: None,
        }
    }

    fn ending(&self) -> Ending {
        Ending {
            key: self.attempt.key.clone(),
            nonce: self.attempt.nonce,
            ttl: self.attempt.terms.ttl,
            entries: self.attempt.entries(),
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
        if self.place.is_some() {
            let at = self.core.clock().now();
            let ends = lease.deadline();
            let sighting = ends.map(|holder_ends| Sighting { at, holder_ends });
            self.leave_queue(sighting, token);
        }
        self.attempt.taken_over();
        let hold = Arc::new(Hold::new(
            self.attempt.key.clone(),
            self.attempt.nonce,
            token,
            self.core.clock(),
            lease,
            Arc::clone(&self.core.counters),
            self.core.process(),
        ));
        let guard = LockGuard::new(Arc::clone(&self.core), Arc::clone(&hold), ending);
        self.core.counters.trace(|| {
            debug!(key = %hold.key, token = token.map(tracing::field::display), "lock acquired");
        });
        guard
    }

    /// The server put it into the queue, and told who holds the lock. Says where it stands among
    /// the waiters of this manager.
    fn stands_in_queue(
        &mut self,
        sighting: Option<Sighting>,
        token: Option<FencingToken>,
    ) -> Standing {
        let Some(slot) = &self.slot else {
            return Standing::Foremost;
        };
        let key = self.attempt.key.text();
        let inbox = &self.core.inbox;
        let place = *self
            .place
            .get_or_insert_with(|| inbox.enter_queue(&key, slot));
        inbox.see(&key, place, sighting, token)
    }

    /// The next waiter of this manager is the foremost now, if this one was.
    fn leave_queue(&mut self, sighting: Option<Sighting>, token: Option<FencingToken>) {
        if let Some(place) = self.place.take() {
            let key = self.attempt.key.as_str();
            self.core.inbox.leave_queue(key, place, sighting, token);
        }
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
        // A child has a copy, and must not touch the locks of its parent.
        if self.attempt.is_taken_over() || self.core.check_process().is_err() {
            return;
        }
        self.leave_queue(None, None);
        if self.attempt.is_open() {
            self.core.abandon(self.ending());
        } else {
            self.core.inbox.remove(self.attempt.nonce);
        }
    }
}

fn check(core: &Arc<Core>, key: &LockKey) -> Result<(), LockError> {
    core.check_process()?;
    // A server's backend looks for its runtime by itself.
    if core.backend.keeps_leases() {
        check_runtime()?;
    }
    if nesting::is_inside(core.domain(), key.as_str()) {
        return Err(LockError::WouldDeadlock);
    }
    Ok(())
}

/// Asks once, without standing in the queue. `spent` is what has passed of the command timeout.
///
/// # Cancel safety
/// Dropped at any await, whatever was granted is taken back.
pub(crate) async fn try_once(
    core: &Arc<Core>,
    key: LockKey,
    terms: Terms,
    spent: Duration,
) -> Result<LockGuard, LockError> {
    check(core, &key)?;
    let clock = core.clock();
    let timeout = core.settings.command_timeout;
    let started = clock.now();
    let until = started.plus(timeout.saturating_sub(spent));
    if core.backend.seems_down() {
        core.backend.connected(until).await?;
    }
    let label = Arc::clone(&core.settings.label);
    let mut armed = Armed::new(Arc::clone(core), Attempt::new(key, terms, label, None));
    let mut no_expiry = NoExpiry::default();
    let mut asked_again = false;
    loop {
        // A key without expiry is looked at for a while, also where a command may not take long.
        let latest = no_expiry.latest(until.max(started.plus(LATEST)));
        let latest = latest.unwrap_or(until);
        let limit = timeout.min(latest.since(clock.now()));
        match armed.ask(limit).await {
            // The server may have closed a connection that nobody used, and the first command
            // finds it out. To ask again under the same nonce is to ask once.
            Err(error) if error.is_unreachable() && !asked_again && clock.now() < until => {
                asked_again = true;
            }
            Err(error) => return Err(no_expiry.instead_of(error, &armed.attempt.key)),
            Ok(Asked::Held {
                token,
                sent,
                remaining,
            }) => {
                let lease = armed.lease(sent, remaining);
                return usable(armed.into_guard(token, lease));
            }
            Ok(Asked::More) if clock.now() < until => {}
            Ok(Asked::More) => return Err(too_many_dead()),
            Ok(Asked::Queued { ahead, holder, .. } | Asked::Busy { ahead, holder }) => {
                let now = clock.now();
                if !no_expiry.see(ahead, holder.as_ref(), now) {
                    return Err(LockError::Contended {
                        key: armed.attempt.key.text(),
                        holder: core.holder(holder, None),
                    });
                }
                let left = no_expiry.left(now);
                if left.is_zero() {
                    return Err(no_expiry.error(&armed.attempt.key));
                }
                tokio::time::sleep(NO_EXPIRY_POLL.min(left)).await;
            }
        }
    }
}

/// There was no end of dead waiters. The lock is not held, and so not contended.
fn too_many_dead() -> LockError {
    LockError::backend(
        BackendErrorKind::TimedOut,
        "the queue of the lock holds very many dead waiters, which are still being removed",
    )
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

/// Waits for the lock for at most `wait`, of which `spent` has passed.
///
/// # Cancel safety
/// Dropped at any await, the place in the queue is given up, and a lock that was granted
/// meanwhile goes to the next.
pub(crate) async fn wait_for(
    core: &Arc<Core>,
    key: LockKey,
    terms: Terms,
    wait: Duration,
    spent: Duration,
) -> Result<LockGuard, LockError> {
    check(core, &key)?;
    let started = core.clock().now().minus(spent);
    let deadline = started.plus(wait);
    if core.backend.seems_down() {
        core.backend.connected(deadline).await?;
    }
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
        is_cut_off: false,
        no_expiry: NoExpiry::default(),
        has_asked: false,
        id_is_known: false,
    };
    loop {
        if let Some(guard) = waiting.look().await? {
            return Ok(guard.into_guard(waiting.armed));
        }
        match waiting.be_told().await? {
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
    /// Why the last look got no answer, and when.
    trouble: Option<(LockError, Moment)>,
    /// There is no connection to look over.
    is_cut_off: bool,
    no_expiry: NoExpiry,
    has_asked: bool,
    /// A grant may have been published that never came to a guard: whoever listened knows the owner
    /// id by now, and could write the next one.
    id_is_known: bool,
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

    /// The end of the wait, or a little more to find out whether a key gets its expiry.
    fn ends_at(&self) -> Moment {
        let latest = self.no_expiry.latest(self.deadline.plus(LATEST));
        latest.map_or(self.deadline, |latest| self.deadline.max(latest))
    }

    /// The longest that one command may take now. However short the wait is, the server is asked
    /// once.
    fn limit(&self) -> Duration {
        let mut left = self.ends_at().since(self.clock().now());
        if !self.has_asked {
            left = left.max(FIRST_LOOK);
        }
        self.armed.core.settings.command_timeout.min(left)
    }

    /// Asks the server.
    async fn look(&mut self) -> Result<Option<Got>, LockError> {
        loop {
            let limit = self.limit();
            if limit.is_zero() {
                return Ok(None);
            }
            let asked = self.armed.ask(limit).await;
            let now = self.clock().now();
            self.has_asked = true;
            self.looks.asked(now);
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
                Ok(Asked::Busy { ahead, holder }) => {
                    self.answered(now, None, ahead, holder, None)?;
                }
                // Nobody holds it, and a hundred dead are out of the way.
                Ok(Asked::More) => {
                    self.trouble = None;
                    self.seen = None;
                    continue;
                }
                Err(error) if error.is_worth_a_retry() => {
                    self.armed.core.counters.trace(|| {
                        let key = &self.armed.attempt.key;
                        debug!(%key, %error, "waiting: no answer, asked again");
                    });
                    if let Some(got) = self.ask_by_renewal(&error).await {
                        return Ok(Some(got));
                    }
                    self.is_cut_off = !self.armed.core.backend.is_connected();
                    self.note_trouble(error, limit);
                    let pause = self.backoff.pause();
                    self.looks.at_once(self.clock().now().plus(pause));
                }
                Err(error) => return Err(error),
            }
            return Ok(None);
        }
    }

    /// A look that the end of the wait cut short blames nobody, where an earlier one knew more:
    /// who holds the lock, or what ails the server. Nor does silence say more than what the server
    /// said a moment ago.
    fn note_trouble(&mut self, error: LockError, limit: Duration) {
        let (now, timeout) = (self.clock().now(), self.armed.core.settings.command_timeout);
        let knows_more = self.seen.is_some() || self.trouble.is_some();
        let known = self.trouble.as_ref();
        let knows_why = known.is_some_and(|(known, at)| {
            !known.is_timed_out() && now.since(*at) < timeout.saturating_mul(2)
        });
        let says_less = limit < timeout && knows_more || knows_why;
        if !(error.is_timed_out() && says_less) {
            self.trouble = Some((error, now));
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
        if self.no_expiry.see(ahead, holder.as_ref(), now) && self.no_expiry.left(now).is_zero() {
            return Err(self.no_expiry.error(&self.armed.attempt.key));
        }
        let standing = match rank {
            Some(_) => {
                let token = holder.as_ref().and_then(|holder| holder.token);
                let sighting = ahead.ends().map(|holder_ends| Sighting {
                    at: now,
                    holder_ends,
                });
                self.armed.stands_in_queue(sighting, token)
            }
            None => Standing::Foremost,
        };
        self.looks
            .seen(now, rank.unwrap_or(0), ahead, poll, standing);
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
        self.armed.core.counters.trace(|| {
            let key = &self.armed.attempt.key;
            debug!(%key, "a grant came too late and is let go");
        });
        self.armed.rename();
        self.looks.at_once(self.clock().now());
        None
    }

    /// Sleeps until there is the lock, something to look at, or no more time.
    async fn be_told(&mut self) -> Result<Told, LockError> {
        loop {
            let Some(slot) = self.armed.slot.clone() else {
                return Ok(Told::Look);
            };
            let clock = self.clock();
            let ends_at = self.ends_at();
            let core = Arc::clone(&self.armed.core);
            let look_at = self.looks.next().min(ends_at);
            let is_cut_off = self.is_cut_off;
            // Without a connection there is nothing to look at before it is back.
            let pause = async {
                if is_cut_off {
                    return core.backend.connected(ends_at).await;
                }
                tokio::time::sleep(look_at.since(clock.now())).await;
                Ok(())
            };
            let signal = tokio::select! {
                biased;
                signal = slot.next() => Some(signal),
                connected = pause => {
                    match connected {
                        Ok(()) => self.is_cut_off = false,
                        Err(error) if error.is_worth_a_retry() => {
                            let timeout = core.settings.command_timeout;
                            self.note_trouble(error, timeout);
                        }
                        Err(error) => return Err(error),
                    }
                    None
                }
            };
            match signal {
                Some(Signal::Grant(grant)) => {
                    return Ok(match self.accept(grant).await {
                        Some(got) => Told::Granted(got),
                        None => Told::Look,
                    });
                }
                Some(Signal::Head { holder_ends }) => self.looks.is_head(clock.now(), holder_ends),
                Some(Signal::Foremost) => {
                    let seen = core.inbox.seen(self.armed.attempt.key.as_str());
                    self.looks.is_foremost(clock.now(), seen);
                }
                Some(Signal::Look) => {
                    // A grant may have been missed, and its lease have ended.
                    self.id_is_known = true;
                    if !self.is_cut_off {
                        return Ok(Told::Look);
                    }
                }
                None => {}
            }
            let now = clock.now();
            if now >= self.ends_at() {
                return Ok(Told::TimeIsUp);
            }
            if !self.is_cut_off && now >= self.looks.next() {
                return Ok(Told::Look);
            }
        }
    }

    /// A lock by a push. Where it cannot be said for how long, or somebody else may have written
    /// it, a renewal tells; one that is over is let go.
    async fn accept(&mut self, grant: Grant) -> Option<Got> {
        if self.armed.lives_with_its_guard() {
            let lease = Lease::endless(self.armed.attempt.terms, grant.received);
            return self.if_valid(Some(grant.token), lease);
        }
        let now = self.clock().now();
        let until = grant.until.filter(|_| self.is_plausible(&grant));
        match until {
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

    /// Whether the server would have written that. Anybody who may publish on our channel, and
    /// knows the owner id, can write anything.
    fn is_plausible(&self, grant: &Grant) -> bool {
        let attempt = &self.armed.attempt;
        let longest = attempt.longest_handover();
        let known = self.armed.core.inbox.last_token(attempt.key.as_str());
        let is_plausible = grant.lease <= longest && known.is_none_or(|known| grant.token >= known);
        if self.id_is_known {
            return false;
        }
        if !is_plausible {
            let key = &attempt.key;
            self.armed.core.counters.trace(|| {
                warn!(%key, "a grant that the server would not have written is confirmed first");
            });
        }
        is_plausible
    }

    /// A renewal tells whether it is ours. Where that has no answer, asking again will tell. The
    /// place in the queue stays: there need not have been a grant at all.
    async fn confirm(&mut self) -> Option<Got> {
        let answer = self.renew().await;
        let confirmed = answer.and_then(|answer| self.renewed(&answer));
        if confirmed.is_none() {
            self.id_is_known = true;
            self.looks.at_once(self.clock().now());
        }
        confirmed
    }

    /// The wait is over. A lock that is granted at this very moment goes to the next.
    async fn leave(mut self) -> LockError {
        if let Some(error) = self.no_expiry.take_error(&self.armed.attempt.key) {
            return error;
        }
        let now = self.clock().now();
        let limit = LEAVE.min(self.deadline.plus(LATEST).since(now));
        if self.armed.attempt.is_open() && !self.is_cut_off && !limit.is_zero() {
            let ending = self.armed.ending();
            match self.armed.core.backend.release(&ending, limit).await {
                Ok(released) => self.armed.attempt.taken_back(&released),
                Err(error) => self.armed.core.counters.trace(|| {
                    debug!(key = %ending.key, %error, "the keeper will leave the queue");
                }),
            }
        }
        if let Some((trouble, _)) = self.trouble.take() {
            return trouble;
        }
        let core = &self.armed.core;
        let (seen, rank) = self.seen.take().unwrap_or((None, None));
        let holder = core.holder(seen, rank);
        if holder.as_ref().is_some_and(Holder::is_this_process) {
            let key = &self.armed.attempt.key;
            core.counters
                .trace(|| warn!(%key, "gave up waiting for a lock that this process holds"));
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
    /// Since when, and what stands there.
    since: Option<(Moment, Arc<str>)>,
}

impl NoExpiry {
    /// Whether what was seen has no expiry.
    fn see(&mut self, ahead: Ahead, holder: Option<&Seen>, now: Moment) -> bool {
        if ahead != Ahead::NoExpiry {
            self.since = None;
            return false;
        }
        let since = self.since.as_ref().map_or(now, |(since, _)| *since);
        let value = holder.map_or_else(|| "".into(), |seen| Arc::clone(&seen.label));
        self.since = Some((since, value));
        true
    }

    /// How much longer the key may be without one.
    fn left(&self, now: Moment) -> Duration {
        let since = self.since.as_ref().map_or(now, |(since, _)| *since);
        NO_EXPIRY_GRACE.saturating_sub(now.since(since))
    }

    /// Until when it is looked at, by a call that has to end by `limit`; `None` where the key has an
    /// expiry.
    fn latest(&self, limit: Moment) -> Option<Moment> {
        let (since, _) = self.since.as_ref()?;
        Some(since.plus(LATEST).min(limit))
    }

    fn error(&self, key: &LockKey) -> LockError {
        let value = self.since.as_ref().map_or("", |(_, value)| value);
        foreign::no_expiry(key, value)
    }

    /// The error, where the key had no expiry when it was seen last.
    fn take_error(&self, key: &LockKey) -> Option<LockError> {
        self.since.is_some().then(|| self.error(key))
    }

    /// A look that got no answer in the little time that was left says nothing new.
    fn instead_of(&self, error: LockError, key: &LockKey) -> LockError {
        let known = self.take_error(key).filter(|_| error.is_timed_out());
        known.unwrap_or(error)
    }
}
