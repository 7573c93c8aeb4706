//! The spans `lock.acquire` and `lock.hold`.

use std::time::Duration;

use tracing::field::{Empty, display};
use tracing::{Span, dispatcher, info_span};

use super::event::LockEvent;
use super::labels::{AcquireEnd, HoldEnd, LockId, ServerAddress};
use super::trace;
use super::trace::{ms, write};
use crate::error::LockError;
use crate::sync::catch;
use lock_protocol::fencing_token::FencingToken;

/// Makes the span of an acquire. Returns `None` if no subscriber wants it.
pub(crate) fn acquire(lock: LockId<'_>, server: Option<&ServerAddress>) -> Option<Span> {
    let span = info_span!(
        target: trace::TARGET,
        "lock.acquire",
        otel.kind = "client",
        otel.name = format!("acquire {}", lock.name()),
        "distributed_lock.name" = lock.name(),
        "distributed_lock.outcome" = Empty,
        "distributed_lock.wait_ms" = Empty,
        "distributed_lock.queue_position" = Empty,
        "distributed_lock.holder.tag" = Empty,
        "distributed_lock.fencing_token" = Empty,
        db.system.name = server.map(|_| "redis"),
        server.address = server.map(ServerAddress::host),
        server.port = server.and_then(ServerAddress::port),
        error.type = Empty,
    );
    (!span.is_disabled()).then_some(span)
}

/// Records how an acquire ended.
pub(crate) fn end_acquire(
    span: &Span,
    outcome: AcquireEnd,
    waited: Duration,
    token: Option<FencingToken>,
    error: Option<&LockError>,
) {
    span.record("distributed_lock.outcome", outcome.as_str());
    span.record("distributed_lock.wait_ms", ms(waited));
    if let Some(token) = token {
        span.record("distributed_lock.fencing_token", display(token));
    }
    if let Some(error) = error {
        if let Some(tag) = error.holder().and_then(|holder| holder.tag.as_deref()) {
            span.record("distributed_lock.holder.tag", tag);
        }
        span.record("error.type", error.code());
    }
}

/// Records the position of the first reply.
pub(crate) fn queued(span: &Span, position: u64) {
    span.record("distributed_lock.queue_position", position);
}

/// Makes the span of a held lock. Returns `None` if no subscriber wants it.
pub(crate) fn hold(lock: LockId<'_>, token: Option<FencingToken>) -> Option<Span> {
    let span = info_span!(
        target: trace::TARGET,
        "lock.hold",
        otel.kind = "internal",
        otel.name = format!("hold {}", lock.name()),
        "distributed_lock.name" = lock.name(),
        "distributed_lock.fencing_token" = token.map(display),
        "distributed_lock.hold_ms" = Empty,
        "distributed_lock.renewals" = Empty,
        "distributed_lock.outcome" = Empty,
    );
    (!span.is_disabled()).then_some(span)
}

/// Records how the holding of a lock ended.
pub(crate) fn end_hold(span: &Span, outcome: HoldEnd, held_for: Duration, renewals: u64) {
    span.record("distributed_lock.hold_ms", ms(held_for));
    span.record("distributed_lock.renewals", renewals);
    span.record("distributed_lock.outcome", outcome.as_str());
}

/// Enters a span for one poll of a body.
pub(crate) fn enter(span: &Span) {
    span.with_subscriber(|(id, dispatch)| dispatch.enter(id));
}

/// Leaves a span after one poll of a body.
pub(crate) fn exit(span: &Span) {
    span.with_subscriber(|(id, dispatch)| dispatch.exit(id));
}

/// Writes an event into a span, with the subscriber of that span. The background worker has no subscriber
/// of its own when the program sets one for a thread only.
pub(crate) fn write_in(span: Option<&Span>, event: &LockEvent<'_>) {
    let written = span.and_then(|span| {
        span.with_subscriber(|(id, dispatch)| {
            dispatcher::with_default(dispatch, || {
                dispatch.enter(id);
                // A panic must not skip the exit, and an unwinding exit must not panic.
                let written = catch(|| write(event));
                dispatch.exit(id);
                if let Err(payload) = written {
                    std::panic::resume_unwind(payload);
                }
            });
        })
    });
    if written.is_none() {
        write(event);
    }
}
