//! The values that label events, spans and metrics.

use std::fmt;
use std::sync::Arc;

use super::{KeyDisplay, OTHER};
use lock_protocol::key::LockKey;
use lock_protocol::kind::Kind;
use lock_protocol::wire::escaped;

/// The lock that an event is about.
#[derive(Clone, Copy)]
pub struct LockId<'a> {
    key: &'a LockKey,
    shown: KeyDisplay,
    kind: Kind,
    caller: Caller,
}

/// Who asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A call that wants the lock for its work, and soon.
    Call,
    /// A candidate of [`lead`](crate::LockRequest::lead), for which waiting is ordinary.
    Candidate,
}

impl<'a> LockId<'a> {
    pub(crate) fn new(key: &'a LockKey, shown: KeyDisplay) -> Self {
        Self {
            key,
            shown,
            kind: Kind::Exclusive,
            caller: Caller::Call,
        }
    }

    /// Returns the id with the caller that asks for the lock.
    pub(crate) fn of_caller(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// Returns the id with the kind of the lock.
    pub(crate) fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the template of the lock's name, such as `order:{order_id}`. Returns `_OTHER` for a name
    /// of which only the text is known.
    ///
    /// The source code bounds how many different names there are. So this is the label of metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.template().unwrap_or(OTHER)
    }

    /// Returns the key of the lock. Returns [`name`](Self::name) when the manager
    /// [redacts keys](crate::LockManagerBuilder::redact_keys).
    #[must_use]
    pub fn key(&self) -> &'a str {
        match self.shown {
            KeyDisplay::Key => self.key.as_str(),
            KeyDisplay::Template => self.key.template().unwrap_or(OTHER),
        }
    }

    /// Returns the kind of the lock: `exclusive`, `read` or `permits`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind.word()
    }

    /// Returns whether a candidate of [`lead`](crate::LockRequest::lead) asks for the lock. A candidate waits for as
    /// long as another one leads, and in steps of ten minutes, so its waits and timeouts say nothing about the lock.
    #[must_use]
    pub fn is_candidate(&self) -> bool {
        self.caller == Caller::Candidate
    }

    /// Returns the key with escaped control characters, for log lines.
    pub(crate) fn shown_key(&self) -> String {
        escaped(self.key())
    }
}

impl fmt::Debug for LockId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockId")
            .field("name", &self.name())
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

/// The address of a lock server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    host: Arc<str>,
    port: Option<u16>,
}

impl ServerAddress {
    #[cfg(feature = "redis")]
    pub(crate) fn new(host: impl Into<Arc<str>>, port: Option<u16>) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Returns the host of the URL, or the path of a Unix socket.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port. Returns `None` for a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn shared_host(&self) -> Arc<str> {
        Arc::clone(&self.host)
    }
}

/// Declares an enum of which each variant has a text.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Returns the text that spans, events and metrics show.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

labels! {
    /// How an acquire ended.
    AcquireEnd {
        /// The caller got the lock.
        Acquired = "acquired",
        /// Another holder had the lock and the call did not wait, or this task holds the lock
        /// ([`WouldDeadlock`](crate::LockError::WouldDeadlock)).
        Contended = "contended",
        /// Another holder had the lock for the whole wait.
        TimedOut = "timeout",
        /// Another holder had the lock, and too many callers waited for it.
        QueueFull = "queue_full",
        /// The work is done for the period of [`once_per`](crate::LockRequest::once_per).
        Done = "done",
        /// The caller dropped the future.
        Cancelled = "cancelled",
        /// The call failed for another reason.
        Failed = "error",
    }
}

labels! {
    /// How the holding of a lock ended.
    HoldEnd {
        /// The guard was released or dropped.
        Released = "released",
        /// The lock was lost.
        Lost = "lost",
        /// The server did not confirm the release.
        ReleaseFailed = "release_failed",
        /// The guard became a [ticket](crate::LockTicket), and whoever resumes it holds the lock from then on.
        Ticket = "ticket",
    }
}

labels! {
    /// What the background worker does for a guard or a future that was dropped.
    CleanupOperation {
        /// It releases the lock of a guard.
        Release = "release",
        /// It undoes an acquire that made no guard.
        Cancel = "cancel",
    }
}

labels! {
    /// How a release or a cancel in the background ended.
    CleanupEnd {
        /// The server confirmed it.
        Confirmed = "confirmed",
        /// The server did not reply until the lease had ended.
        Expired = "expired",
        /// The server's clock was set back, so no reply can confirm the cancel.
        ClockSetBack = "clock_set_back",
        /// The user has no right to release.
        Forbidden = "forbidden",
        /// The server refused in a way that another attempt does not change.
        Refused = "refused",
    }
}

labels! {
    /// A connection to the server.
    ConnectionKind {
        /// Of a runtime of the program: it sends acquires and releases.
        Command = "command",
        /// Of the background worker: it sends renewals and releases, and receives notifications.
        Worker = "worker",
    }
}

labels! {
    /// Who shows a certificate in a handshake of TLS.
    CertificateOwner {
        /// This manager, to servers that ask for a certificate.
        Client = "client",
        /// The server.
        Server = "server",
    }
}

labels! {
    /// A command of this library to the server.
    LockCommand {
        /// An acquire, or the poll of a waiter.
        Acquire = "acquire",
        /// Renewals, many in one pipeline.
        Renew = "renew",
        /// The release of a held lock, or many in one pipeline.
        Release = "release",
        /// The removal of what an acquire left on the server.
        Cancel = "cancel",
        /// A probe of [`LockManager::ping`](crate::LockManager).
        Ping = "ping",
        /// A read of a lock and of its queue.
        Inspect = "inspect",
    }
}

labels! {
    /// What a notification says.
    NotificationKind {
        /// The waiter has the lock.
        Grant = "grant",
        /// The waiter is the head of the queue.
        Head = "head",
        /// The lock was released, in a dialect whose messages are for all waiters.
        Released = "released",
    }
}

labels! {
    /// What became of a notification.
    NotificationUse {
        /// A waiter used it.
        Used = "used",
        /// Its waiter had ended.
        Stale = "stale",
        /// The server cannot have written it.
        Refused = "refused",
    }
}

labels! {
    /// The foreign code that panicked.
    PanicSource {
        /// The manager's observer.
        Observer = "observer",
        /// A subscriber of `tracing`.
        Subscriber = "tracing_subscriber",
        /// A recorder of `metrics`.
        Recorder = "metrics_recorder",
        /// A provider of credentials.
        Credentials = "credential_provider",
        /// A provider of certificates.
        Certificates = "certificate_provider",
        /// The function that returns the tag of a holder.
        HolderTag = "holder_tag",
        /// The function of an [address map](crate::LockManagerBuilder::address_map).
        AddressMap = "address_map",
        /// The waker of a task.
        Waker = "waker",
        /// Code on the thread of the background worker.
        Worker = "background_worker",
    }
}

impl PanicSource {
    /// Returns whether it reads events.
    pub(crate) const fn is_sink(self) -> bool {
        matches!(self, Self::Observer | Self::Subscriber | Self::Recorder)
    }
}
