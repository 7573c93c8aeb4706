//! Takes a lock from its holder.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::error::AdminError;
use super::info::{LockInfo, LockStatus};
use crate::error::{Holder, InvalidSetting, LockError};
use crate::runtime::inner::ManagerInner;
use crate::telemetry::LockEvent;
use lock_protocol::acquisition::ObservedHolder;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::inspection::{KeyContent, SeenKey};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lock_state::{ForceGrant, ForceMode, ForceRequest, ForceVerdict, ForeignValues};
use lock_protocol::loss::LossReason;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::revocation::{parse_revoked, revoked_label};
use lock_protocol::wire::escaped;

/// A request to take a lock from its holder, made by
/// [`Admin::force_release`](crate::admin::Admin::force_release). Await it to send it.
#[must_use = "nothing is sent before the request is awaited"]
#[derive(Clone)]
pub struct ForceRelease {
    inner: Arc<ManagerInner>,
    name: LockName,
    mode: ForceMode,
    by: Option<String>,
    reason: Option<String>,
    token: Option<FencingToken>,
    seen: Option<SeenLock>,
    foreign: ForeignValues,
}

/// What an operator saw of a lock.
#[derive(Clone, Debug)]
struct SeenLock {
    name: LockName,
    content: SeenKey,
}

impl ForceRelease {
    pub(super) fn new(inner: Arc<ManagerInner>, name: LockName) -> Self {
        Self {
            inner,
            name,
            mode: ForceMode::Revoke,
            by: None,
            reason: None,
            token: None,
            seen: None,
            foreign: ForeignValues::Keep,
        }
    }

    /// Sets who releases the lock, in at most 40 bytes. The holder and other operators see it after a revocation.
    /// After [`free_at_once`](Self::free_at_once) only the event [`Revoked`](crate::telemetry::LockEvent::Revoked) has
    /// it. Defaults to the manager's label.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    /// Sets why the lock is released. It is seen where [`by`](Self::by) is. The whole text, `revoked by <by>:
    /// <reason>`, is cut to 96 bytes, so at least 43 of them are for the reason. Defaults to no reason.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Releases the lock only if it has this token. So the next holder keeps its lock, if the lock
    /// changed hands since the caller learned the token. Locks in [dialects](crate::dialect::Dialect) without
    /// tokens never have it: use [`expect_unchanged`](Self::expect_unchanged). Readers and holders of permits share one
    /// token, so others may hold the lock with it by now. Defaults to any token.
    pub fn expect_token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Releases the lock only if its key still holds what `seen` shows: the same acquisition of the same holder, the
    /// same revocation, or the same value of another library. Renewals do not change a lock. Readers and holders of
    /// permits are compared as a group: its members may have changed. This works in each dialect, except that
    /// [`Redisson`](crate::dialect::Dialect::Redisson) compares only the hashes that are its own locks. In
    /// [`DeadlineGetset`](crate::dialect::Dialect::DeadlineGetset) a renewal changes the value, so such a lock counts
    /// as changed.
    ///
    /// Strings are compared by their first 200 bytes, and hashes, as Redisson writes them, by a digest.
    /// Values of other types are compared by their type only.
    ///
    /// `seen` comes from [`Admin::inspect`](crate::admin::Admin::inspect) or a [`LockPage`](crate::admin::LockPage),
    /// for the same name; what was seen of another lock is refused with [`LockError::Invalid`]. To remove a hash, pass
    /// the result of [`Admin::inspect_foreign`](crate::admin::Admin::inspect_foreign). Defaults to anything.
    pub fn expect_unchanged(mut self, seen: &LockInfo) -> Self {
        self.seen = Some(SeenLock {
            name: seen.name.clone(),
            content: seen.seen.clone(),
        });
        self
    }

    /// Frees the key at once and grants the next waiter, instead of waiting for the end of the lease.
    ///
    /// The old holder keeps working until its next renewal, which is at most a third of its ttl away by default, and at
    /// most half with [`Renew::Every`](crate::Renew::Every). Until then, two holders may work at the same time. Only a
    /// resource that checks the [fencing token](FencingToken) refuses the old one. Defaults to a revocation, which
    /// keeps exclusion.
    pub fn free_at_once(mut self) -> Self {
        self.mode = ForceMode::Now;
        self
    }

    /// Also removes the value of another library. Such a value cannot be revoked, so its key is deleted at once if it
    /// still holds the same value. By default, the release fails with [`AdminError::Foreign`].
    pub fn remove_foreign(mut self) -> Self {
        self.foreign = ForeignValues::Remove;
        self
    }

    /// Checks that the server can compare what was seen.
    fn check_seen(&self) -> Result<(), LockError> {
        let invalid = |value: &str, advice: &str| {
            LockError::Invalid(InvalidSetting::Manager {
                setting: "expect_unchanged",
                value: value.into(),
                advice: advice.into(),
            })
        };
        let Some(seen) = &self.seen else {
            return Ok(());
        };
        if seen.name.as_str() != self.name.as_str() {
            // Two locks of another library may have equal values.
            let advice = "pass what was seen of the lock that is released";
            return Err(invalid(&escaped(seen.name.as_str()), advice));
        }
        if self.foreign == ForeignValues::Remove && seen.content.is_unidentified() {
            let value = "a hash that was not identified";
            return Err(invalid(
                value,
                "pass the result of `admin().inspect_foreign(..)`",
            ));
        }
        Ok(())
    }

    async fn send(self) -> Result<Revocation, AdminError> {
        let inner = &self.inner;
        self.check_seen()?;
        let key = inner.admin_key(&self.name)?;
        let by = self.by.as_deref().unwrap_or(&inner.settings.label);
        let request = ForceRequest {
            key: key.clone(),
            mode: self.mode,
            label: revoked_label(by, self.reason.as_deref()),
            token: self.token,
            seen: self.seen.as_ref().map(|seen| seen.content.clone()),
            foreign: self.foreign,
            longest: inner.revoked_lease(&key),
        };
        let limit = inner.settings.command_timeout;
        let (time, reply) = inner.store.force_release(&request, limit).await?;
        let owner_id = owner_id(&reply.content);
        let is_done = matches!(
            reply.verdict,
            ForceVerdict::Revoked { .. } | ForceVerdict::Freed(_)
        );
        if is_done {
            let reason = loss_reason(&request, &reply.verdict);
            match owner_id {
                Some(owner_id) => inner.on_force_released(owner_id, reason),
                None => inner.on_group_force_released(&key, &reason),
            }
        }
        let status = LockStatus::new(&key, &reply.content, time, &|id| inner.is_own(id));
        let revocation = revocation(&key, &reply.verdict, status)?;
        if is_done {
            self.audit(&request, &revocation);
        }
        Ok(revocation)
    }

    /// Traces what an operator did. All texts are sanitized.
    fn audit(&self, request: &ForceRequest, revocation: &Revocation) {
        let previous = revocation.previous.as_ref();
        let (by, reason) = parse_revoked(&request.label).unzip();
        let reason = reason.flatten();
        let mode = match self.mode {
            ForceMode::Revoke => "revoke",
            ForceMode::Now | ForceMode::Grant => "now",
        };
        let reporter = &self.inner.reporter;
        reporter.emit(&LockEvent::Revoked {
            lock: reporter.id(&request.key),
            by: by.as_deref().unwrap_or_default(),
            reason: reason.as_deref(),
            mode,
            previous_label: previous.map(|holder| &*holder.label),
            previous_token: previous.and_then(|holder| holder.token),
        });
    }
}

/// Returns why the holder lost its lock, where no renewal tells it.
fn loss_reason(request: &ForceRequest, verdict: &ForceVerdict) -> LossReason {
    match (verdict, parse_revoked(&request.label)) {
        (ForceVerdict::Revoked { .. }, Some((by, reason))) => LossReason::revoked(by, reason),
        (ForceVerdict::Freed(ForceGrant::Waiter), _) => LossReason::Replaced,
        _ => LossReason::Removed,
    }
}

/// Returns the owner of the key that was released.
fn owner_id(content: &KeyContent) -> Option<OwnerId> {
    let KeyContent::Text(found) = content else {
        return None;
    };
    ObservedHolder::from_value(&found.holder.value, None, None)?.owner_id
}

/// Interprets what an operator's release did to a key that had this status.
fn revocation(
    key: &LockKey,
    verdict: &ForceVerdict,
    status: LockStatus,
) -> Result<Revocation, AdminError> {
    let (free_in, is_granted) = match verdict {
        ForceVerdict::Foreign { .. } => return Err(AdminError::foreign(key, status)),
        ForceVerdict::Changed => return Err(AdminError::changed(status)),
        ForceVerdict::Endless => return Err(AdminError::NoExpiry { key: key.text() }),
        ForceVerdict::Revoked { locked_ms } => (Duration::from_millis(*locked_ms), false),
        ForceVerdict::Freed(granted) => (Duration::ZERO, *granted == ForceGrant::Waiter),
        ForceVerdict::Free => (Duration::ZERO, false),
    };
    let previous = match status {
        LockStatus::Held(holder) => Some(holder),
        _ => None,
    };
    Ok(Revocation {
        previous,
        free_in,
        is_granted,
    })
}

impl IntoFuture for ForceRelease {
    type Output = Result<Revocation, AdminError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl fmt::Debug for ForceRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForceRelease")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("by", &self.by)
            .field("reason", &self.reason)
            .field("token", &self.token)
            .field("seen", &self.seen)
            .field("foreign", &self.foreign)
            .finish_non_exhaustive()
    }
}

/// What [`Admin::force_release`](crate::admin::Admin::force_release) did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The holder that lost the lock. `None` when the lock was free, kept, done or blocked, and when the removed value wasn't
    /// a lock.
    pub previous: Option<Holder>,
    /// How long the key stays locked: the rest of the old lease. Zero when the key was freed.
    pub free_in: Duration,
    /// Whether the next waiter has the lock now.
    pub is_granted: bool,
}
