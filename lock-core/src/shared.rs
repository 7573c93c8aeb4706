//! What a manager, its requests and its guards share.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Backend, Ending, Renewed};
use crate::clock::{Clock, Moment};
use crate::counts::Counters;
use crate::dialect::{Dialect, DialectFault};
use crate::error::{Holder, LockError};
use crate::hold::Hold;
use crate::inbox::Inbox;
use crate::keeper::{Job, Keeper};
use crate::options::Settings;
use crate::sync::Process;

/// Shared by all clones of a manager, and kept by each guard and waiter.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) settings: Settings,
    pub(crate) counters: Arc<Counters>,
    /// Absent where the backend keeps leases by itself.
    keeper: Option<Keeper>,
    process: Process,
}

/// The answer to a release.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) was_held: bool,
    /// What a copy that is still on its way leaves to be done.
    pub(crate) still_open: Option<Ending>,
}

impl Ended {
    /// Of a lock that was released before.
    pub(crate) fn before() -> Self {
        Self {
            was_held: true,
            still_open: None,
        }
    }
}

impl Core {
    /// For a backend that keeps leases by itself.
    pub(crate) fn without_keeper(
        backend: Arc<dyn Backend>,
        inbox: Arc<Inbox>,
        counters: Arc<Counters>,
        settings: Settings,
    ) -> Self {
        Self {
            backend,
            inbox,
            settings,
            counters,
            keeper: None,
            process: Process::current(),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_keeper(
        backend: Arc<dyn Backend>,
        inbox: Arc<Inbox>,
        counters: Arc<Counters>,
        settings: Settings,
    ) -> Result<Self, LockError> {
        let keeper = Keeper::start(
            Arc::clone(&backend),
            Arc::clone(&inbox),
            Arc::clone(&counters),
            settings.command_timeout,
        )?;
        Ok(Self {
            keeper: Some(keeper),
            ..Self::without_keeper(backend, inbox, counters, settings)
        })
    }

    pub(crate) fn clock(&self) -> Clock {
        self.backend.clock()
    }

    /// A child has neither the keeper thread nor connections of its own.
    pub(crate) fn check_process(&self) -> Result<(), LockError> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(LockError::Forked)
        }
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Where a server has to be asked, it takes a runtime to do so.
    fn check_runtime(&self) -> Result<(), LockError> {
        match &self.keeper {
            Some(_) => check_runtime(),
            None => Ok(()),
        }
    }

    /// Dialects are spoken to servers.
    pub(crate) fn check_dialect(&self, dialect: Dialect) -> Result<(), DialectFault> {
        let has_server = !self.backend.keeps_leases();
        if dialect == Dialect::Native || has_server {
            Ok(())
        } else {
            Err(DialectFault::NoServer)
        }
    }

    /// Which manager this is, for as long as it lives.
    pub(crate) fn domain(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Whether nobody but a timer of the caller would see a lease end.
    pub(crate) fn lease_ends_unseen(&self) -> bool {
        self.keeper.is_none()
    }

    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        if let Some(keeper) = &self.keeper {
            keeper.keep(hold);
        }
    }

    /// No renewal from now on, and no loss either. Not in a child: the keeper may have held the
    /// mutex of its schedule in the moment of the fork, and nobody unlocks it there.
    pub(crate) fn stop_keeping(&self, hold: &Hold) {
        hold.release();
        if let Some(keeper) = &self.keeper {
            keeper.forget(hold);
        }
    }

    pub(crate) async fn renew(&self, hold: &Arc<Hold>) -> Result<(), LockError> {
        self.check_process()?;
        self.check_runtime()?;
        if hold.is_lost() || hold.is_released() {
            return Err(LockError::Lost);
        }
        let limit = self.settings.command_timeout.min(hold.remaining());
        let renewal = [hold.renewal()];
        let answer = self.backend.renew(&renewal, limit).await.pop();
        let answer = answer.unwrap_or(Renewed::NotOurs);
        let said = hold.renewal_said(answer, self.clock().now());
        self.keep(hold);
        said
    }

    /// Releases on the caller's runtime, sent again while there is time for it. Not in a child.
    pub(crate) async fn release(
        &self,
        ending: &Ending,
        was_valid: bool,
    ) -> Result<Ended, LockError> {
        let clock = self.clock();
        let until = clock.now().plus(self.settings.command_timeout);
        let mut resent = false;
        let mut trouble = None;
        loop {
            let limit = until.since(clock.now());
            match self.backend.release(ending, limit).await {
                Ok(released) => {
                    let unsettled = ending
                        .unsettled_until_ms
                        .is_some_and(|until_ms| released.server_ms <= until_ms);
                    // Released it is all the same; the keeper sees to those who wait.
                    let open = unsettled || released.more;
                    if !open {
                        self.inbox.remove(ending.nonce);
                    }
                    return Ok(Ended {
                        // The first copy may have done it, and its answer be lost.
                        was_held: released.was_ours || (resent && was_valid),
                        still_open: open.then(|| ending.clone()),
                    });
                }
                Err(error) if error.is_worth_a_retry() && !until.since(clock.now()).is_zero() => {
                    resent = true;
                    // A copy with less than all the time, which ran out, says nothing new.
                    if !(error.is_timed_out() && trouble.is_some()) {
                        trouble = Some(error);
                    }
                    tokio::time::sleep(RESEND_PAUSE.min(until.since(clock.now()))).await;
                }
                Err(error) if error.is_timed_out() => return Err(trouble.unwrap_or(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a nonce in the background. Callable from anywhere, also while a runtime ends, but for a
    /// child: it is the parent's lock.
    pub(crate) fn abandon(&self, ending: Ending) {
        if let Some(keeper) = &self.keeper {
            let give_up_at = self.all_over_at(&ending);
            keeper.end(Job { ending, give_up_at });
        } else {
            // Without a keeper the backend is in this process, and done at the first poll.
            let mut cx = Context::from_waker(Waker::noop());
            let mut release = self.backend.release(&ending, Duration::ZERO);
            let _done = release.as_mut().poll(&mut cx);
            drop(release);
            self.inbox.remove(ending.nonce);
        }
    }

    /// When whatever was sent until now has had its effect, and that effect has ended.
    fn all_over_at(&self, ending: &Ending) -> Moment {
        let longest = self.settings.command_timeout.saturating_mul(2);
        self.clock()
            .now()
            .plus(longest)
            .plus(ending.ttl.as_duration())
    }

    /// Waits until nothing is to be released any more, at most for the shutdown timeout. How much
    /// is left.
    pub(crate) async fn drain(&self) -> usize {
        match &self.keeper {
            Some(keeper) => keeper.drain(self.settings.shutdown_timeout).await,
            None => 0,
        }
    }

    /// What an error says of the holder that was seen.
    pub(crate) fn holder(
        &self,
        seen: Option<crate::backend::Seen>,
        position: Option<u64>,
    ) -> Option<Holder> {
        seen.map(|seen| Holder {
            this_process: seen.nonce.is_some_and(|nonce| self.inbox.knows(nonce)),
            label: seen.label,
            remaining: seen.remaining,
            position: position.map(|rank| u32::try_from(rank).unwrap_or(u32::MAX)),
        })
    }
}

/// Waiting takes the timers of a tokio runtime, and asking a server its sockets.
pub(crate) fn check_runtime() -> Result<(), LockError> {
    match Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(LockError::NoRuntime),
    }
}

/// A moment for a connection to come back.
const RESEND_PAUSE: Duration = Duration::from_millis(20);
