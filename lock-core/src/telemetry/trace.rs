//! Events as tracing events.

use tracing::{Level, event};

use super::event::LockEvent;
use super::labels::{CleanupEnd, CleanupOperation, HoldEnd, LockId, NotificationUse};
use crate::error::LockError;

/// The target of the events of an audit.
pub(crate) const AUDIT: &str = "lock_core::audit";
/// The target of all other events.
pub(crate) const TARGET: &str = "lock_core";

/// A cleanup that failed this often is reported once as a warning.
const TRIES_TO_WARN: u32 = 3;

/// Writes an event of a lock, with its template and its key.
macro_rules! about {
    ($level:ident, $name:literal, $lock:expr, { $($fields:tt)* }, $text:literal) => {
        event!(
            name: $name,
            target: TARGET,
            Level::$level,
            "distributed_lock.name" = $lock.name(),
            key = $lock.shown_key(),
            $($fields)*
            concat!($name, ": ", $text)
        )
    };
}

/// Writes an event of a lock with its template only.
macro_rules! quiet {
    ($name:literal, $lock:expr, { $($fields:tt)* }, $text:literal) => {
        event!(
            name: $name,
            target: TARGET,
            Level::DEBUG,
            "distributed_lock.name" = $lock.name(),
            $($fields)*
            concat!($name, ": ", $text)
        )
    };
}

/// Writes an event that is about no lock.
macro_rules! server {
    ($level:ident, $name:literal, { $($fields:tt)* }, $text:literal) => {
        event!(
            name: $name,
            target: TARGET,
            Level::$level,
            $($fields)*
            concat!($name, ": ", $text)
        )
    };
}

/// Returns the text of an error that has no key in it.
fn text(error: &LockError) -> Option<String> {
    match error {
        LockError::Backend(error) => Some(error.to_string()),
        LockError::NoQuorum { .. } => Some(error.to_string()),
        _ => None,
    }
}

pub(super) fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Writes how a hold ended, unless another event says it.
fn write_end(lock: LockId<'_>, outcome: HoldEnd) {
    match outcome {
        HoldEnd::Released => {
            quiet!(
                "lock.released",
                lock,
                {},
                "the guard was released or dropped"
            );
        }
        HoldEnd::Ticket => {
            quiet!(
                "lock.ticket_made",
                lock,
                {},
                "the guard became a ticket, which another caller may resume"
            );
        }
        HoldEnd::Lost | HoldEnd::ReleaseFailed => {}
    }
}

/// Writes the event. Most events of a normal operation have the level DEBUG.
pub(crate) fn write(event: &LockEvent<'_>) {
    match *event {
        LockEvent::Queued { lock, position } => quiet!(
            "lock.queued", lock,
            { "distributed_lock.queue_position" = position, },
            "another holder has the lock"
        ),
        LockEvent::Granted { lock, position, .. } => quiet!(
            "lock.granted", lock,
            { "distributed_lock.queue_position" = position, },
            "the caller has the lock"
        ),
        LockEvent::HoldEnded { lock, outcome, .. } => write_end(lock, outcome),
        LockEvent::BodySkipped { lock, is_done } => quiet!(
            "lock.skipped", lock, { is_done, },
            "another holder has the lock, or the work is done; the body does not run"
        ),
        LockEvent::Completed { lock, period } => quiet!(
            "lock.completed", lock,
            { "distributed_lock.period_ms" = ms(period), },
            "the work succeeded, and the name stays taken for the rest of the period"
        ),
        LockEvent::Renewed { lock } => quiet!("lock.renewed", lock, {}, "the lease was renewed"),
        LockEvent::HeldByThisProcess { lock } => quiet!(
            "lock.held_by_this_process",
            lock,
            {},
            "gave up waiting for a lock that this process holds"
        ),
        LockEvent::Lost { .. }
        | LockEvent::ReleaseFailed { .. }
        | LockEvent::BodyOutlivedLease { .. }
        | LockEvent::RenewalLate { .. }
        | LockEvent::RenewalFailed { .. }
        | LockEvent::CleanupStarted { .. }
        | LockEvent::CleanupRetried { .. }
        | LockEvent::CleanupEnded { .. }
        | LockEvent::KindMismatch { .. } => write_trouble(event),
        LockEvent::Revoked { .. }
        | LockEvent::NotConnected { .. }
        | LockEvent::OverrideUnused { .. }
        | LockEvent::LoginFailed { .. }
        | LockEvent::CertificatesNotRead { .. }
        | LockEvent::CertificateExpiresSoon { .. }
        | LockEvent::UnknownVariable { .. } => write_for_operators(event),
        LockEvent::ExpiryRepaired { lock } => about!(
            WARN,
            "lock.expiry_repaired",
            lock,
            {},
            "gave an expiry to a lock without one: its holder died, or is slow"
        ),
        LockEvent::TransactionRepeated { lock } => quiet!(
            "lock.transaction_repeated",
            lock,
            {},
            "another client touched the key; the transaction is repeated"
        ),
        // Spans and metrics show them.
        LockEvent::NotAcquired { .. } | LockEvent::RenewalRefused { .. } => {}
        LockEvent::CommandEnded { .. }
        | LockEvent::Connected { .. }
        | LockEvent::Disconnected { .. }
        | LockEvent::NotificationsOff { .. }
        | LockEvent::NotificationReceived { .. }
        | LockEvent::UnknownMessage {}
        | LockEvent::EvictionPolicy { .. }
        | LockEvent::ServerRestricted { .. } => write_about_server(event),
        LockEvent::PrimaryChanged {
            server,
            epoch,
            is_reset,
        } => server!(
            WARN, "lock.primary_changed",
            { server.address = server.host(), server.port = server.port(), epoch, is_reset, },
            "another server is the primary"
        ),
        LockEvent::PanicCaught { source, message } => server!(
            ERROR, "lock.panic_caught", { source = source.as_str(), panic = message, }, "caught a panic of foreign code"
        ),
    }
}

/// Writes an event of a lock that does not go well.
fn write_trouble(event: &LockEvent<'_>) {
    match *event {
        LockEvent::Lost {
            lock,
            reason,
            held_for,
            token,
        } => about!(
            ERROR, "lock.lost", lock,
            {
                "distributed_lock.fencing_token" = token.map(tracing::field::display),
                "distributed_lock.loss_reason" = reason.as_str(),
                "distributed_lock.held_ms" = ms(held_for),
            },
            "the lock was lost while it was held"
        ),
        LockEvent::ReleaseFailed { lock, error } => about!(
            WARN, "lock.release_failed", lock,
            { error.type = error.map(LockError::code), error = error.and_then(text), },
            "the server did not confirm a release; the lease expires by itself at the latest"
        ),
        LockEvent::BodyOutlivedLease { lock } => about!(
            WARN,
            "lock.body_outlived_lease",
            lock,
            {},
            "the work ended after its lock was lost; check what it did"
        ),
        LockEvent::RenewalLate { lock, remaining } => about!(
            WARN, "lock.renewal_late", lock,
            { "distributed_lock.remaining_ms" = ms(remaining), },
            "a renewal succeeded after more than half of the lease"
        ),
        LockEvent::RenewalFailed {
            lock,
            remaining,
            error,
        } => about!(
            WARN, "lock.renewal_failed", lock,
            {
                "distributed_lock.remaining_ms" = ms(remaining),
                error.type = error.code(),
                error = text(error),
            },
            "a renewal failed; it is repeated until the lease ends"
        ),
        LockEvent::KindMismatch {
            lock,
            permits,
            held_permits,
            is_repeated: false,
        } => about!(
            WARN, "lock.kind_mismatch", lock, { permits, held_permits, },
            "callers give different numbers of permits for one name, so they wait for each other"
        ),
        LockEvent::CleanupStarted {
            lock,
            operation: CleanupOperation::Cancel,
            is_unconfirmed: true,
        } => {
            unconfirmed(lock, 0, None);
        }
        LockEvent::CleanupRetried {
            lock,
            operation: CleanupOperation::Cancel,
            tries,
            error,
        } => {
            unconfirmed(lock, tries, error);
        }
        LockEvent::CleanupEnded {
            lock,
            operation: CleanupOperation::Cancel,
            outcome,
            tries,
        } => {
            cancelled(lock, outcome, tries);
        }
        _ => {}
    }
}

fn unconfirmed(lock: LockId<'_>, tries: u32, error: Option<&LockError>) {
    if tries == TRIES_TO_WARN {
        about!(
            WARN, "lock.acquire_unconfirmed", lock,
            { tries, error.type = error.map(LockError::code), error = error.and_then(text), },
            "an acquire without a reply cannot be cancelled yet"
        );
    } else {
        about!(
            DEBUG, "lock.acquire_unconfirmed", lock,
            { tries, error.type = error.map(LockError::code), },
            "the background worker cancels an acquire without a reply"
        );
    }
}

fn cancelled(lock: LockId<'_>, outcome: CleanupEnd, tries: u32) {
    match outcome {
        CleanupEnd::Confirmed if tries < TRIES_TO_WARN => about!(
            DEBUG, "lock.acquire_cancelled", lock, { tries, },
            "the server has nothing left of an acquire that made no guard"
        ),
        CleanupEnd::Confirmed => about!(
            WARN, "lock.acquire_cancelled", lock, { tries, },
            "the server has nothing left of an acquire that made no guard"
        ),
        // A server that forbids the acquire forbids its cancel too. The caller has that error.
        CleanupEnd::Refused if tries < TRIES_TO_WARN => about!(
            DEBUG, "lock.acquire_unconfirmed", lock,
            { tries, outcome = outcome.as_str(), },
            "the server refuses the cancel of an acquire; a lease expires by itself"
        ),
        _ => about!(
            WARN, "lock.acquire_unconfirmed", lock,
            { tries, outcome = outcome.as_str(), },
            "gave up the cancel of an acquire; its lease expires by itself"
        ),
    }
}

/// Writes an event that an operator caused, or has to know.
fn write_for_operators(event: &LockEvent<'_>) {
    match *event {
        LockEvent::Revoked {
            lock,
            by,
            reason,
            mode,
            previous_label,
            previous_token,
        } => event!(
            name: "lock.revoked",
            target: AUDIT,
            Level::WARN,
            "distributed_lock.name" = lock.name(),
            key = lock.shown_key(),
            by,
            reason,
            mode,
            previous_label,
            previous_token = previous_token.map(tracing::field::display),
            "lock.revoked: a lock was released by force"
        ),
        LockEvent::LoginFailed { error, reason } => server!(
            WARN, "lock.login_failed",
            { error.type = error.code(), error = text(error), reason, },
            "a connection could not log in again; its leases go on until it breaks"
        ),
        LockEvent::CertificatesNotRead { error } => server!(
            WARN, "lock.certificates_not_read",
            { error.type = error.code(), error = text(error), },
            "new certificates can't be read or used yet; connections use what was read before"
        ),
        LockEvent::CertificateExpiresSoon {
            owner,
            location,
            remaining,
        } => server!(
            WARN, "lock.certificate_expires_soon",
            { owner = owner.as_str(), location, expires_in_s = remaining.as_secs(), },
            "a certificate for TLS expires soon; afterwards no new connection can be made with it"
        ),
        LockEvent::UnknownVariable {
            variable,
            meant: Some(meant),
            ..
        } => server!(
            WARN, "lock.unknown_variable", { variable, meant, },
            "unknown environment variable; did you mean the one in `meant`?"
        ),
        LockEvent::UnknownVariable {
            variable, known, ..
        } => server!(
            WARN, "lock.unknown_variable", { variable, known = known.join(", "), },
            "unknown environment variable; `known` lists those of this library"
        ),
        LockEvent::NotConnected { server, error } => server!(
            WARN, "lock.not_connected",
            {
                server.address = server.host(),
                server.port = server.port(),
                error.type = error.code(),
                error = text(error),
            },
            "cannot reach the lock server yet; the manager goes on trying"
        ),
        LockEvent::OverrideUnused { template, nearest } => server!(
            WARN, "lock.override_unused", { template, nearest, },
            "no call has used this override; a template is written as in the code"
        ),
        _ => {}
    }
}

/// Writes an event of the server or of a connection to it.
fn write_about_server(event: &LockEvent<'_>) {
    match *event {
        LockEvent::CommandEnded {
            command,
            server,
            error: Some(error),
            ..
        } => server!(
            DEBUG, "lock.command_failed",
            {
                server.address = server.host(),
                server.port = server.port(),
                command = command.as_str(),
                error.type = error.code(),
                error = text(error),
            },
            "a command to the lock server failed"
        ),
        LockEvent::Connected {
            server,
            connection,
            is_reconnect,
        } => server!(
            INFO, "lock.connected",
            {
                server.address = server.host(),
                server.port = server.port(),
                connection = connection.as_str(),
                is_reconnect,
            },
            "connected to the lock server"
        ),
        LockEvent::Disconnected {
            server,
            connection,
            error,
        } => server!(
            WARN, "lock.disconnected",
            {
                server.address = server.host(),
                server.port = server.port(),
                connection = connection.as_str(),
                error.type = error.map(LockError::code),
                error = error.and_then(text),
            },
            "a connection to the lock server broke"
        ),
        LockEvent::NotificationsOff { server, error } => server!(
            WARN, "lock.notifications_off",
            {
                server.address = server.host(),
                server.port = server.port(),
                connection = "worker",
                error,
            },
            "cannot receive notifications; waiters poll"
        ),
        LockEvent::NotificationReceived {
            kind,
            outcome: NotificationUse::Refused,
        } => server!(
            WARN, "lock.notification_refused", { kind = kind.as_str(), },
            "the server cannot have written this notification; it is confirmed first"
        ),
        LockEvent::NotificationReceived {
            kind,
            outcome: NotificationUse::Stale,
        } => server!(
            DEBUG, "lock.notification_stale", { kind = kind.as_str(), },
            "a notification came for a waiter that has ended"
        ),
        LockEvent::UnknownMessage {} => server!(
            DEBUG,
            "lock.unknown_message",
            {},
            "a client published an unknown message on the manager's private channel"
        ),
        LockEvent::EvictionPolicy { server, policy } => server!(
            WARN, "lock.eviction_policy",
            { server.address = server.host(), server.port = server.port(), policy, },
            "the lock server may evict locks when its memory is full: set maxmemory-policy to noeviction"
        ),
        LockEvent::ServerRestricted {
            server,
            command,
            effect,
            error,
        } => server!(
            WARN, "lock.server_restricted",
            { server.address = server.host(), server.port = server.port(), command, effect, error, },
            "a right or a setting of the lock server limits what locks can do there"
        ),
        _ => {}
    }
}
