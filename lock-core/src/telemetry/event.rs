//! The events.

use std::time::Duration;

use super::labels::{
    AcquireEnd, CertificateOwner, CleanupEnd, CleanupOperation, ConnectionKind, HoldEnd,
    LockCommand, LockId, NotificationKind, NotificationUse, PanicSource, ServerAddress,
};
use crate::error::LockError;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::loss::LossReason;

/// An event of a manager. [`guide::telemetry`](crate::guide::telemetry) says which events become tracing
/// events and metrics.
///
/// Later versions add variants and fields. So match with `..` and a last arm `_`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LockEvent<'a> {
    /// A caller found the lock busy, and waits.
    #[non_exhaustive]
    Queued {
        /// The lock.
        lock: LockId<'a>,
        /// How many waiters are ahead. `None` in a dialect without a queue.
        position: Option<u64>,
    },
    /// A caller waits for a permit out of one number, and the holders have permits out of another number.
    /// They take turns with the caller, which is safe, and slow. Comes once for each acquire.
    #[non_exhaustive]
    KindMismatch {
        /// The lock.
        lock: LockId<'a>,
        /// The number of permits that the caller gave.
        permits: u32,
        /// The number of permits that the holders gave.
        held_permits: u32,
        /// The same key had such an event less than a minute ago. It is counted, and not logged.
        is_repeated: bool,
    },
    /// A caller got the lock.
    #[non_exhaustive]
    Granted {
        /// The lock.
        lock: LockId<'a>,
        /// The time from the call to the lock.
        waited: Duration,
        /// The position of the first reply that said that the lock is busy.
        position: Option<u64>,
        /// The fencing token, in dialects that have one.
        token: Option<FencingToken>,
    },
    /// An acquire ended without the lock.
    #[non_exhaustive]
    NotAcquired {
        /// The lock.
        lock: LockId<'a>,
        /// How it ended. Never [`AcquireEnd::Acquired`].
        outcome: AcquireEnd,
        /// The time from the call to its end.
        waited: Duration,
        /// The position of the first reply that said that the lock is busy.
        position: Option<u64>,
        /// The error that the caller gets. `None` when the caller dropped the future.
        error: Option<&'a LockError>,
    },
    /// An annotated function with `on_contended = skip` did not run its body.
    #[non_exhaustive]
    BodySkipped {
        /// The lock.
        lock: LockId<'a>,
        /// Whether the work is done for the period of [`once_per`](crate::LockRequest::once_per). Otherwise another
        /// holder has the lock.
        is_done: bool,
    },
    /// A waiter gave up on a lock that a guard of the same manager holds. This is ordinary when two tasks
    /// of a process need one resource. When it comes at each call, a task may hold the guard and wait for
    /// the same lock.
    #[non_exhaustive]
    HeldByThisProcess {
        /// The lock.
        lock: LockId<'a>,
    },
    /// The holding of a lock ended. Each [`Granted`](Self::Granted) has exactly one such event, unless the
    /// guard is leaked.
    #[non_exhaustive]
    HoldEnded {
        /// The lock.
        lock: LockId<'a>,
        /// How it ended.
        outcome: HoldEnd,
        /// The time from the grant to the end.
        held_for: Duration,
        /// How often the lease was renewed.
        renewals: u64,
        /// The fencing token, in dialects that have one.
        token: Option<FencingToken>,
    },
    /// The work under a lock with [`once_per`](crate::LockRequest::once_per) has succeeded, and the server keeps the
    /// name taken for the rest of the period.
    #[non_exhaustive]
    Completed {
        /// The lock.
        lock: LockId<'a>,
        /// The period, which began with the grant.
        period: Duration,
    },
    /// A held lock was lost.
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: LockId<'a>,
        /// Why.
        reason: &'a LossReason,
        /// The time from the grant to the loss.
        held_for: Duration,
        /// The fencing token, in dialects that have one.
        token: Option<FencingToken>,
    },
    /// The release of a guard failed, or the background worker tried a release three times, or gave up.
    /// Comes at most once for a lock, and not after [`Lost`](Self::Lost).
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock.
        lock: LockId<'a>,
        /// The failure. `None` when the worker gave up for another reason.
        error: Option<&'a LockError>,
    },
    /// A body completed after its lock was lost.
    #[non_exhaustive]
    BodyOutlivedLease {
        /// The lock.
        lock: LockId<'a>,
    },
    /// A renewal succeeded in time.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        lock: LockId<'a>,
    },
    /// A renewal succeeded after more than half of the lease.
    #[non_exhaustive]
    RenewalLate {
        /// The lock.
        lock: LockId<'a>,
        /// What was left of the lease before.
        remaining: Duration,
    },
    /// A renewal got no reply, or an error. The background worker repeats it until the lease ends. Does not
    /// come after the release has begun.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        lock: LockId<'a>,
        /// What is left of the lease.
        remaining: Duration,
        /// The failure.
        error: &'a LockError,
    },
    /// The server refused a renewal: the key is free, or has another owner.
    #[non_exhaustive]
    RenewalRefused {
        /// The lock.
        lock: LockId<'a>,
    },
    /// The background worker got a release or a cancel.
    #[non_exhaustive]
    CleanupStarted {
        /// The lock.
        lock: LockId<'a>,
        /// What it does.
        operation: CleanupOperation,
        /// Whether an acquire was sent whose reply has not come.
        is_unconfirmed: bool,
    },
    /// A release or a cancel in the background failed. The worker repeats it.
    #[non_exhaustive]
    CleanupRetried {
        /// The lock.
        lock: LockId<'a>,
        /// What it does.
        operation: CleanupOperation,
        /// How often it failed.
        tries: u32,
        /// The failure. `None` when the reply does not confirm it yet.
        error: Option<&'a LockError>,
    },
    /// A release or a cancel in the background ended.
    #[non_exhaustive]
    CleanupEnded {
        /// The lock.
        lock: LockId<'a>,
        /// What it did.
        operation: CleanupOperation,
        /// How it ended.
        outcome: CleanupEnd,
        /// How often it failed before.
        tries: u32,
    },
    /// A command to the server ended: it got its reply, or it failed.
    #[non_exhaustive]
    CommandEnded {
        /// The command.
        command: LockCommand,
        /// The server.
        server: &'a ServerAddress,
        /// The time from the call to the reply. It contains the wait for a connection.
        duration: Duration,
        /// The failure. In a pipeline, the first failure.
        error: Option<&'a LockError>,
    },
    /// A connection was made.
    #[non_exhaustive]
    Connected {
        /// The server.
        server: &'a ServerAddress,
        /// What the connection is for.
        connection: ConnectionKind,
        /// Whether it replaces a connection that broke.
        is_reconnect: bool,
    },
    /// A manager that [connects lazily](crate::LockManagerBuilder::connect_lazy) has not reached its server yet. Comes after
    /// the first attempt, and again when a later one fails for another reason.
    #[non_exhaustive]
    NotConnected {
        /// The server. The first one of the URL, if it names several.
        server: &'a ServerAddress,
        /// Why the last attempt failed.
        error: &'a LockError,
    },
    /// A connection broke.
    #[non_exhaustive]
    Disconnected {
        /// The server.
        server: &'a ServerAddress,
        /// What the connection was for.
        connection: ConnectionKind,
        /// What broke it, if it is known.
        error: Option<&'a LockError>,
    },
    /// Another server is now the primary and has the locks, because the Sentinels name it or the name in the URL has moved
    /// there.
    #[non_exhaustive]
    PrimaryChanged {
        /// The new primary.
        server: &'a ServerAddress,
        /// The configuration epoch of the Sentinels, or the highest that the manager has seen; 0 without Sentinels.
        epoch: u64,
        /// The epoch has fallen: the Sentinels have lost their state. Fencing tokens continue from the
        /// highest epoch that this manager has seen, but those of a new manager may repeat.
        is_reset: bool,
    },
    /// The server sends no notifications. Waiters poll.
    #[non_exhaustive]
    NotificationsOff {
        /// The server.
        server: &'a ServerAddress,
        /// Why.
        error: &'a str,
    },
    /// A notification arrived.
    #[non_exhaustive]
    NotificationReceived {
        /// What it says.
        kind: NotificationKind,
        /// What became of it.
        outcome: NotificationUse,
    },
    /// A client published a text on this manager's channel that is no notification.
    #[non_exhaustive]
    UnknownMessage {},
    /// The server may evict keys, and so locks, when its memory is full.
    #[non_exhaustive]
    EvictionPolicy {
        /// The server.
        server: &'a ServerAddress,
        /// Its `maxmemory-policy`.
        policy: &'a str,
    },
    /// The user of the server lacks a right that the library can do without; or a setting or an ability of the server
    /// limits what locks can do there.
    #[non_exhaustive]
    ServerRestricted {
        /// The server.
        server: &'a ServerAddress,
        /// The command that the server refuses, or the setting.
        command: &'static str,
        /// What follows from it.
        effect: &'static str,
        /// The reply of the server.
        error: &'a str,
    },
    /// A connection could not log in again: the provider of credentials failed, or the server refused
    /// them.
    #[non_exhaustive]
    LoginFailed {
        /// The failure.
        error: &'a LockError,
        /// The error of the provider.
        reason: Option<&'a str>,
    },
    /// The files of certificates have changed and can't be used yet, or the provider of certificates failed. Connections
    /// use what was read before.
    #[non_exhaustive]
    CertificatesNotRead {
        /// The failure.
        error: &'a LockError,
    },
    /// A certificate expires in less than three days (or a third of its validity, if that is shorter), or has expired.
    /// Comes once for each certificate. The client's is reported in time, even while no connection opens; a server's when
    /// a connection opens.
    #[non_exhaustive]
    CertificateExpiresSoon {
        /// Who shows it.
        owner: CertificateOwner,
        /// Where a newer one is needed: the file or other source of the client certificate, or the host of the server.
        location: &'a str,
        /// How long it is still valid. Zero if it has expired.
        remaining: Duration,
    },
    /// An environment variable begins with this library's prefix, but no setting has that name. The event precedes the
    /// manager, so it reaches `tracing` but no observer.
    #[non_exhaustive]
    UnknownVariable {
        /// Its name.
        variable: &'a str,
        /// The known variable that it probably means.
        meant: Option<&'static str>,
        /// The known variables.
        known: &'a [&'static str],
    },
    /// A client of another library left a lock without an expiry. This library gave it one.
    #[non_exhaustive]
    ExpiryRepaired {
        /// The lock.
        lock: LockId<'a>,
    },
    /// Another client changed a key during a transaction. The transaction is repeated.
    #[non_exhaustive]
    TransactionRepeated {
        /// The lock.
        lock: LockId<'a>,
    },
    /// This process released a lock by force.
    #[non_exhaustive]
    Revoked {
        /// The lock.
        lock: LockId<'a>,
        /// Who did it: the text of [`ForceRelease::by`](crate::admin::ForceRelease::by), or else the label of the manager.
        by: &'a str,
        /// The reason that the operator gave.
        reason: Option<&'a str>,
        /// `revoke`, or `now` when the request freed the key at once.
        mode: &'static str,
        /// The label of the holder.
        previous_label: Option<&'a str>,
        /// The fencing token of the holder.
        previous_token: Option<FencingToken>,
    },
    /// No call has used an override of the settings for some time. Its template may be misspelt.
    #[non_exhaustive]
    OverrideUnused {
        /// The template of the override.
        template: &'a str,
        /// The nearest template that a call has used.
        nearest: Option<&'a str>,
    },
    /// Code that the library called or ran in the background panicked, and the library caught the panic.
    /// [`PanicSource`] has the sources.
    #[non_exhaustive]
    PanicCaught {
        /// The code that panicked.
        source: PanicSource,
        /// The message of the panic.
        message: &'a str,
    },
}
