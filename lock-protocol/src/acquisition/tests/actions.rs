//! What an action has to be.

use super::*;

#[track_caller]
pub(super) fn acquire_limit(action: NextAction<FailedCommand>) -> u64 {
    match action {
        NextAction::Perform(Action::Acquire { limit }) => whole_millis(limit),
        other => panic!("no acquire: {other:?}"),
    }
}

#[track_caller]
pub(super) fn renew_limit(action: NextAction<FailedCommand>, expected: RenewReason) -> u64 {
    match action {
        NextAction::Perform(Action::Renew { limit, reason }) if reason == expected => {
            whole_millis(limit)
        }
        other => panic!("no such renewal: {other:?}"),
    }
}

#[track_caller]
pub(super) fn cancel_limit(action: NextAction<FailedCommand>) -> u64 {
    match action {
        NextAction::Perform(Action::Cancel { limit }) => whole_millis(limit),
        other => panic!("no cancel: {other:?}"),
    }
}

#[track_caller]
pub(super) fn waits_until(action: NextAction<FailedCommand>, ms: u64) {
    match action {
        NextAction::Perform(Action::Wait { until }) => assert_eq!(until, at(ms)),
        other => panic!("no wait: {other:?}"),
    }
}

#[track_caller]
pub(super) fn reconnects_until(action: NextAction<FailedCommand>, ms: u64) {
    match action {
        NextAction::Perform(Action::Reconnect { until }) => assert_eq!(until, at(ms)),
        other => panic!("no wait for a connection: {other:?}"),
    }
}

#[track_caller]
pub(super) fn starts_over(action: &NextAction<FailedCommand>) {
    assert!(
        matches!(action, NextAction::Perform(Action::StartOver)),
        "{action:?}"
    );
}

#[track_caller]
pub(super) fn acquired(action: NextAction<FailedCommand>) -> (Lease, ReleaseRequest) {
    match action {
        NextAction::Done(AcquireResult::Acquired {
            token: granted,
            lease,
            release_request,
        }) => {
            assert_eq!(granted, Some(token(6)));
            (lease, release_request)
        }
        other => panic!("not acquired: {other:?}"),
    }
}

#[track_caller]
pub(super) fn failed(action: NextAction<FailedCommand>) -> AcquireFailure<FailedCommand> {
    match action {
        NextAction::Done(AcquireResult::Failed(failure)) => failure,
        other => panic!("no failure: {other:?}"),
    }
}

#[track_caller]
pub(super) fn failed_with(action: NextAction<FailedCommand>, class: FailureClass) {
    match failed(action) {
        AcquireFailure::Backend(failure) => assert_eq!(failure, FailedCommand(class)),
        other => panic!("no failure of the backend: {other:?}"),
    }
}

/// The time that the caller waited, the label of the holder, and the rank.
#[track_caller]
pub(super) fn timed_out(action: NextAction<FailedCommand>) -> (u64, Option<String>, Option<u64>) {
    match action {
        NextAction::Done(AcquireResult::TimedOut {
            waited,
            holder,
            rank,
        }) => {
            let label = holder.map(|holder| holder.label.to_string());
            (whole_millis(waited), label, rank)
        }
        other => panic!("no end of the wait: {other:?}"),
    }
}
