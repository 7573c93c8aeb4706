//! A violation of a checked property, and its description.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use super::Check;
use crate::event::{Access, Nanos};
use crate::history::{HeldLock, Operation};

/// A violation of a checked property. Its `Display` names the holders and the times.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// What happened.
    pub kind: ViolationKind,
    /// The lock.
    pub key: Arc<str>,
    /// When the violation began.
    pub from: Nanos,
    /// When the violation ended.
    pub to: Nanos,
}

/// What happened, with the held locks, accesses or operations that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViolationKind {
    /// Two holders of different groups believed at the same time that the lock is valid.
    Overlap {
        /// The holder that had the lock first.
        first: HeldLock,
        /// The other holder.
        second: HeldLock,
    },
    /// Holders of permits believed at the same time that they have more permits than there are.
    ///
    /// ```
    /// use lock_core::Kind;
    /// use lock_testing::{Checker, Event, History, ViolationKind};
    ///
    /// let mut history = History::new();
    /// for (at, process) in [(100, 1), (200, 2)] {
    ///     let granted = Event::granted(at, process, 1, "mailer", Some(7), 900);
    ///     history.events.push(granted.lock_kind(Kind::Permits { of: 3, weight: 2 }));
    /// }
    /// let report = Checker::new().check(&history);
    /// let found = &report.violations()[0].kind;
    /// assert!(matches!(found, ViolationKind::TooManyPermits { permits: 4, .. }));
    /// ```
    TooManyPermits {
        /// The holders that had their permits first.
        first: Vec<HeldLock>,
        /// The holder with a permit too many.
        second: HeldLock,
        /// How many permits all of them had.
        permits: u64,
    },
    /// Two grants of different groups have the same token.
    DuplicateToken {
        /// The earlier grant.
        first: HeldLock,
        /// The later grant.
        second: HeldLock,
    },
    /// A grant has a lower token than a grant that came before its acquire.
    TokenBehindGrant {
        /// The earlier grant, with the higher token.
        earlier: HeldLock,
        /// The later grant.
        later: HeldLock,
    },
    /// A holder has a lower token than the holder before it. Its acquire began before the grant of
    /// that holder.
    TokenBehindHolder {
        /// The earlier holder, with the higher token.
        earlier: HeldLock,
        /// The later holder.
        later: HeldLock,
    },
    /// Holders received no token, although the locks have fencing tokens.
    MissingToken {
        /// The first such holder.
        held: HeldLock,
        /// How many holders of the lock received none.
        times: usize,
    },
    /// A holder received a token, although the locks have none.
    UnexpectedToken {
        /// The holder.
        held: HeldLock,
    },
    /// The resource accepted an access with a lower token than that of an earlier access.
    StaleAccess {
        /// The earlier access, with the higher token.
        earlier: Access,
        /// The access that the resource had to refuse.
        accepted: Access,
    },
    /// The resource accepted a value other than the number of accepted writes.
    LostUpdate {
        /// The write.
        access: Access,
        /// The value of the resource before the write.
        before: u64,
    },
    /// The loss was reported late, or never.
    LateLoss {
        /// The lock that was lost.
        held: HeldLock,
    },
    /// The lock was valid again after its loss was reported.
    ValidAfterLoss {
        /// The lock.
        held: HeldLock,
    },
    /// An acquire took longer than its limit.
    LongWait {
        /// The acquire.
        operation: Operation,
        /// Its limit.
        limit: Nanos,
    },
}

impl Violation {
    pub(super) fn new(kind: ViolationKind, key: &Arc<str>, from: Nanos, to: Nanos) -> Self {
        Self {
            kind,
            key: Arc::clone(key),
            from,
            to,
        }
    }

    /// Returns the check that found the violation.
    #[must_use]
    pub fn check(&self) -> Check {
        match self.kind {
            ViolationKind::Overlap { .. } | ViolationKind::TooManyPermits { .. } => {
                Check::Exclusion
            }
            ViolationKind::DuplicateToken { .. }
            | ViolationKind::TokenBehindGrant { .. }
            | ViolationKind::TokenBehindHolder { .. }
            | ViolationKind::MissingToken { .. }
            | ViolationKind::UnexpectedToken { .. } => Check::Tokens,
            ViolationKind::StaleAccess { .. } => Check::StaleAccesses,
            ViolationKind::LostUpdate { .. } => Check::LostUpdates,
            ViolationKind::LateLoss { .. } | ViolationKind::ValidAfterLoss { .. } => Check::Losses,
            ViolationKind::LongWait { .. } => Check::Waits,
        }
    }
}

fn micros(from: Nanos, to: Nanos) -> Nanos {
    to.saturating_sub(from) / 1000
}

/// An access, with its token.
struct Shown<'a>(&'a Access);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Access {
            process,
            acquisition,
            token,
            ..
        } = self.0;
        write!(f, "process {process} (acquisition {acquisition}")?;
        match token {
            Some(token) => write!(f, ", token {token})"),
            None => write!(f, ", no token)"),
        }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "lock `{}`: ", self.key)?;
        match &self.kind {
            ViolationKind::Overlap { first, second } => {
                let overlap = micros(self.from, self.to);
                write!(f, "{first} and {second} both held it for {overlap} us")
            }
            ViolationKind::TooManyPermits {
                first,
                second,
                permits,
            } => {
                let overlap = micros(self.from, self.to);
                let others = first.len();
                write!(
                    f,
                    "{second} and {others} other holders had {permits} permits for {overlap} us; the \
                     lock is of the kind {}",
                    second.lock_kind
                )
            }
            ViolationKind::DuplicateToken { first, second } => {
                write!(f, "{first} and {second} received the same token")
            }
            ViolationKind::TokenBehindGrant { earlier, later } => {
                let after = micros(earlier.granted, later.requested);
                write!(
                    f,
                    "{later} requested it {after} us after the grant to {earlier}, and received a \
                     lower token"
                )
            }
            ViolationKind::TokenBehindHolder { earlier, later } => {
                write!(f, "{later} held it after {earlier}, with a lower token")
            }
            ViolationKind::MissingToken { held, times } => write!(
                f,
                "{times} holders received no fencing token, first {held}; if the dialect has none, \
                 set `FencingTokens::Absent`"
            ),
            ViolationKind::UnexpectedToken { held } => write!(
                f,
                "{held} received a token in a dialect without fencing tokens"
            ),
            ViolationKind::StaleAccess { earlier, accepted } => write!(
                f,
                "the resource accepted {} after {}",
                Shown(accepted),
                Shown(earlier)
            ),
            ViolationKind::LostUpdate { access, before } => {
                let value = match access.kind {
                    crate::AccessKind::Write { value } => value,
                    _ => 0,
                };
                write!(
                    f,
                    "{} wrote {value} over {before}; an update was lost",
                    Shown(access)
                )
            }
            ViolationKind::LateLoss { held } => match held.lost {
                Some(lost) => {
                    let late = micros(held.valid_until.lease_end().unwrap_or(lost), lost);
                    write!(
                        f,
                        "{held} was notified of its loss {late} us after the end of its lease"
                    )
                }
                None => write!(f, "{held} was never notified of its loss"),
            },
            ViolationKind::ValidAfterLoss { held } => {
                write!(f, "{held} was notified of its loss, and held it again")
            }
            ViolationKind::LongWait { operation, limit } => write!(
                f,
                "process {} (acquisition {}) waited {} us with a limit of {} us",
                operation.process,
                operation.acquisition,
                micros(operation.from, self.to),
                limit / 1000
            ),
        }
    }
}
