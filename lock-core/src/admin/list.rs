//! Lists the locks of a manager's prefix.

use std::collections::HashSet;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use super::info::LockInfo;
use crate::error::{BackendErrorKind, LockError};
use crate::runtime::inner::ManagerInner;
use lock_protocol::inspection::{ListedLock, ScanPart, ScanPlace, ScanRequest};

/// How many locks a page has, if the request does not say it.
const DEFAULT_LIMIT: usize = 200;
/// The most locks of a page: each costs three commands.
const MAX_LIMIT: usize = 10_000;
/// The most SCANs of a page, so that a pattern which matches nothing does not hold the caller for long.
const MOST_FINDS: usize = 100;

/// A request for a list of locks, made by [`Admin::list`](crate::admin::Admin::list). Await it to send it.
#[must_use = "nothing is sent before the request is awaited"]
#[derive(Clone)]
pub struct ListLocks {
    inner: Arc<ManagerInner>,
    pattern: String,
    limit: usize,
    after: Option<Cursor>,
}

impl ListLocks {
    pub(super) fn new(inner: Arc<ManagerInner>, pattern: String) -> Self {
        Self {
            inner,
            pattern,
            limit: DEFAULT_LIMIT,
            after: None,
        }
    }

    /// Sets the most locks of the page, from 1 to 10,000. A value outside is set to the nearest one.
    /// Defaults to 200.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(1, MAX_LIMIT);
        self
    }

    /// Continues behind an earlier page of the same pattern and the same manager: see
    /// [`LockPage::next`]. Defaults to the beginning.
    pub fn after(mut self, cursor: impl Into<Option<Cursor>>) -> Self {
        self.after = cursor.into();
        self
    }

    async fn send(self) -> Result<LockPage, LockError> {
        let Self {
            inner,
            pattern,
            limit,
            after,
        } = self;
        inner.check_admin()?;
        let request = ScanRequest {
            prefix: Arc::clone(&inner.settings.prefix),
            dialect: inner.settings.dialect,
            pattern,
            limit,
            at: after.map(|cursor| cursor.0),
        };
        let (page, missing) = scan(&inner, request).await?;
        let locks = page.locks.into_iter().map(|lock| {
            let key = lock.key.in_dialect(inner.settings.dialect);
            LockInfo::new(&key, lock.name, &lock.found, &|owner_id| {
                inner.is_own(owner_id)
            })
        });
        Ok(LockPage {
            locks: locks.collect(),
            next: page.next.map(Cursor),
            scanned: page.scanned,
            missing,
        })
    }
}

/// Scans until there are as many locks as the request wants, until the end, or until the store has looked at enough keys.
/// Each part takes at most a command's timeout; at a quorum, at most one for each server that is asked. Goes on behind a
/// node of a cluster that cannot be read now.
async fn scan(
    inner: &ManagerInner,
    mut request: ScanRequest,
) -> Result<(ScanPart, Vec<MissingNode>), LockError> {
    let (limit, timeout) = (request.limit, inner.settings.command_timeout);
    let mut page = ScanPart {
        next: request.at.take(),
        ..ScanPart::default()
    };
    let mut seen = HashSet::new();
    let mut finds = 0;
    let mut missing = Vec::new();
    // Without one, an outage would look like an empty list.
    let mut is_any_read = page.next.is_some();
    loop {
        request.at = page.next.take();
        request.limit = limit - page.locks.len();
        // Before the scan: the owners may change meanwhile.
        let node = inner.store.scanned_node(request.at.as_ref());
        let part = match inner.store.scan(&request, timeout).await {
            Ok(part) => part,
            Err(error) => {
                let can_go_on = is_any_read || error.is_retryable();
                let Some(node) = node.filter(|_| can_go_on) else {
                    if page.locks.is_empty() {
                        return Err(if request.finds() {
                            needs_scan(error)
                        } else {
                            error
                        });
                    }
                    // What was found is not lost. The next page begins here, and has the error if it lasts.
                    page.next = request.at;
                    return Ok((page, missing));
                };
                let is_last = inner.store.scanned_node(Some(&node.next)).is_none();
                if is_last && !is_any_read {
                    return Err(error);
                }
                missing.push(MissingNode {
                    address: node.address,
                    reason: error.to_string(),
                });
                finds += 1;
                page.next = (!is_last).then_some(node.next);
                if is_last || finds == MOST_FINDS {
                    return Ok((page, missing));
                }
                continue;
            }
        };
        is_any_read = true;
        let is_new = |lock: &ListedLock| seen.insert(lock.name.clone());
        page.locks.extend(part.locks.into_iter().filter(is_new));
        page.scanned += part.scanned;
        page.next = part.next;
        finds += usize::from(request.finds());
        if page.next.is_none() || page.locks.len() >= limit || finds == MOST_FINDS {
            return Ok((page, missing));
        }
    }
}

/// Only lists need this right.
fn needs_scan(error: LockError) -> LockError {
    match error {
        LockError::Backend(error) if error.kind() == BackendErrorKind::Permission => {
            let advice = "listing needs `+scan`; use another user for `lockctl`";
            LockError::Backend(error.with_advice(advice))
        }
        other => other,
    }
}

impl IntoFuture for ListLocks {
    type Output = Result<LockPage, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl fmt::Debug for ListLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListLocks")
            .field("pattern", &self.pattern)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A part of a list of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockPage {
    /// The locks, in no order. They have no [`waiters`](LockInfo::waiters), but their number. A key
    /// that holds another client's string is in the list too: see
    /// [`LockStatus::Foreign`](crate::admin::LockStatus::Foreign) and
    /// [`Holder::is_foreign`](crate::Holder::is_foreign).
    pub locks: Vec<LockInfo>,
    /// Where the next page begins. `None` when the list is complete. A page may have few locks, or
    /// none, before the list is complete.
    pub next: Option<Cursor>,
    /// About how many keys of the server this page looked at.
    pub scanned: u64,
    /// The nodes of a cluster whose locks are missing from the list, wholly or in part, because they could not be read
    /// when this page came to them. No other page has them.
    pub missing: Vec<MissingNode>,
}

/// A node of a cluster that a list leaves out. See [`LockPage::missing`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingNode {
    /// Its host and port.
    pub address: String,
    /// The text of the error that it gave, or that the connection to it gave.
    pub reason: String,
}

/// Where the next page of a list begins. Made by [`LockPage::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(ScanPlace);
