//! Lists the locks of a manager's prefix.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::admin::ListRequest;
use crate::error::LockError;
use crate::info::LockInfo;
use crate::runtime::inner::ManagerInner;
use lock_protocol::inspection::ListCursor;

/// How many locks a page has, if the request does not say it.
const DEFAULT_LIMIT: usize = 200;
/// The most locks of a page: each costs three commands.
const MAX_LIMIT: usize = 10_000;

/// A request for a list of locks, made by [`Admin::list`](crate::Admin::list). Await it to send it.
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
        let request = ListRequest {
            prefix: inner.config.prefix.to_string(),
            dialect: inner.config.dialect,
            pattern,
            limit,
            after: after.map(|cursor| cursor.0),
        };
        let timeout = inner.config.command_timeout;
        let reply = inner.backend.admin().list(&request, timeout).await?;
        let locks = reply.locks.into_iter().map(|lock| {
            let key = lock.key.in_dialect(inner.config.dialect);
            LockInfo::new(&key, lock.name, &lock.found, &|owner_id| {
                inner.is_own(owner_id)
            })
        });
        Ok(LockPage {
            locks: locks.collect(),
            next: reply.next.map(Cursor),
            scanned: reply.scanned,
        })
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
    /// [`LockStatus::Foreign`](crate::LockStatus::Foreign) and
    /// [`HolderInfo::is_foreign`](crate::HolderInfo::is_foreign).
    pub locks: Vec<LockInfo>,
    /// Where the next page begins. `None` when the list is complete. A page may have few locks, or
    /// none, before the list is complete.
    pub next: Option<Cursor>,
    /// About how many keys of the server this page looked at.
    pub scanned: u64,
}

/// Where the next page of a list begins. Made by [`LockPage::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(ListCursor);
