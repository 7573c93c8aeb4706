//! Tickets, which hand a held lock to another task or process. Dialects of other libraries and quorums have none.

use std::time::Duration;

use lock_core::error::{InvalidSetting, InvalidTicketReason};
use lock_core::{LockError, LockTicket, LossReason};
use test_support::fixtures::AT_ONCE;
use tokio::task::JoinSet;

use super::subject::{
    NAME, Subject, WAIT, free_at_once, free_within, granted_at_once, granted_within, within,
};

/// Longer than any contract takes.
const LONG: Duration = Duration::from_secs(60);

/// Returns whether the store has tickets. A store without them refuses to make one, and releases the lock.
async fn has_tickets(s: &Subject) -> bool {
    let held = free_at_once(&s.first).await;
    let refused = held.into_ticket(LONG).await;
    let ticket = match refused {
        Ok(ticket) => ticket,
        Err(LockError::Invalid(InvalidSetting::Ticket { reason, .. })) => {
            let reasons = [InvalidTicketReason::Dialect, InvalidTicketReason::Quorum];
            assert!(reasons.contains(&reason), "{reason}");
            drop(free_within(s.patience(), &s.second).await);
            return false;
        }
        Err(error) => panic!("{error}"),
    };
    let resumed = within(AT_ONCE, s.second.resume(ticket)).await.unwrap();
    resumed.release().await.unwrap();
    true
}

fn is_ended(error: &LockError, expected: &LossReason) -> bool {
    matches!(error, LockError::TicketEnded { reason, .. } if reason == expected)
}

/// The lock goes through a ticket to another manager, and its token grows with each step.
pub(crate) async fn ticket_hands_the_lock_over(s: &Subject) {
    if !has_tickets(s).await {
        return;
    }
    let first = free_at_once(&s.first).await;
    let (watch, held) = (first.watch(), first.fencing_token().unwrap());
    let text = first.into_ticket(LONG).await.unwrap().to_string();
    assert!(!watch.is_held() && !watch.is_lost());
    let ticket: LockTicket = text.parse().unwrap();
    assert_eq!((ticket.name(), ticket.key()), (NAME, &*s.key(NAME)));
    assert!(ticket.fencing_token() > held);
    let busy = s.second.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "the ticket holds the lock");
    let second = within(AT_ONCE, s.second.resume(ticket.clone()))
        .await
        .unwrap();
    assert!(second.fencing_token().unwrap() > ticket.fencing_token());
    second.renew().await.unwrap();
    let error = within(AT_ONCE, s.first.resume(ticket.clone()))
        .await
        .unwrap_err();
    assert!(is_ended(&error, &LossReason::Replaced), "{error}");
    assert!(!second.is_lost());
    second.release().await.unwrap();
    let error = s.first.resume(ticket).await.unwrap_err();
    assert!(is_ended(&error, &LossReason::Removed), "{error}");
    free_at_once(&s.first).await.release().await.unwrap();
}

/// Of many callers that resume one ticket at the same time, one gets the lock.
pub(crate) async fn ticket_has_one_winner(s: &Subject) {
    if !has_tickets(s).await {
        return;
    }
    for _ in 0..5 {
        let held = free_at_once(&s.first).await;
        let ticket = held.into_ticket(LONG).await.unwrap();
        let mut callers = JoinSet::new();
        for turn in 0..8 {
            let (locks, ticket) = (s.manager(turn).clone(), ticket.clone());
            callers.spawn(async move { locks.resume(ticket).await });
        }
        let results = within(WAIT, callers.join_all()).await;
        let (won, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), refused.len()), (1, 7));
        for error in refused.into_iter().filter_map(Result::err) {
            assert!(is_ended(&error, &LossReason::Replaced), "{error}");
        }
        for guard in won.into_iter().flatten() {
            guard.release().await.unwrap();
        }
    }
}

/// A ticket that nobody resumes ends with its lease, which may be shorter or longer than the guard's, and the next waiter
/// gets the lock then.
pub(crate) async fn ticket_that_nobody_resumes_ends_with_its_lease(s: &Subject) {
    if !has_tickets(s).await {
        return;
    }
    let lease = s.ttl();
    let request = s.first.lock(NAME).ttl(LONG).wait(WAIT);
    let held = within(AT_ONCE, request.acquire()).await.unwrap();
    let waiter = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    let ticket = held.into_ticket(lease).await.unwrap();
    let next = granted_within(lease + AT_ONCE, waiter).await;
    let error = s.second.resume(ticket).await.unwrap_err();
    assert!(matches!(error, LockError::TicketEnded { .. }), "{error}");
    next.release().await.unwrap();

    let request = s.first.lock(NAME).ttl(lease).wait(WAIT);
    let held = within(AT_ONCE, request.acquire()).await.unwrap();
    let ticket = held.into_ticket(LONG).await.unwrap();
    tokio::time::sleep(lease * 2).await;
    let resumed = s.second.resume(ticket).await.unwrap();
    resumed.release().await.unwrap();
}

/// Waiters keep their places, and the guard of a ticket is renewed and released as any other.
pub(crate) async fn guard_of_a_ticket_is_renewed_and_hands_over(s: &Subject) {
    if !has_tickets(s).await {
        return;
    }
    let ttl = s.ttl();
    let held = free_at_once(&s.first).await;
    let waiter = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    let ticket = held.into_ticket(LONG).await.unwrap();
    let resumed = s.first.lock(NAME).ttl(ttl).resume(ticket).await.unwrap();
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(!resumed.is_lost(), "{:?}", resumed.loss_reason());
    assert!(!waiter.is_finished());
    resumed.release().await.unwrap();
    granted_at_once(waiter).await.release().await.unwrap();
}

/// A future that is dropped leaves the lock free, or the ticket valid.
pub(crate) async fn dropped_ticket_futures_leave_no_lock(s: &Subject) {
    if !has_tickets(s).await {
        return;
    }
    let held = free_at_once(&s.first).await;
    let mut making = Box::pin(held.into_ticket(s.ttl()));
    // In memory, the first poll returns the ticket.
    drop(tests::poll_once(&mut making).await);
    drop(making);
    let held = free_within(s.ttl() + AT_ONCE, &s.second).await;
    let ticket = held.into_ticket(s.ttl()).await.unwrap();
    let mut resuming = Box::pin(s.first.resume(ticket));
    drop(tests::poll_once(&mut resuming).await);
    drop(resuming);
    let next = free_within(s.ttl() + AT_ONCE, &s.second).await;
    next.release().await.unwrap();
}

/// What can't be handed over is refused with a reason, and released.
pub(crate) async fn invalid_tickets_are_refused(s: &Subject) {
    if !has_tickets(s).await {
        return;
    }
    let refused = |error: LockError| match error {
        LockError::Invalid(InvalidSetting::Ticket { reason, .. }) => reason,
        other => panic!("{other}"),
    };
    let lock = || s.first.lock(NAME).wait(WAIT);
    for (request, expected) in [
        (lock().read(), InvalidTicketReason::Kind),
        (lock().permits(4), InvalidTicketReason::Kind),
        (
            lock().min_hold(Duration::from_millis(1)),
            InvalidTicketReason::MinHold,
        ),
    ] {
        let held = request.acquire().await.unwrap();
        assert_eq!(refused(held.into_ticket(LONG).await.unwrap_err()), expected);
    }
    let held = lock().acquire().await.unwrap();
    let error = held
        .into_ticket(Duration::from_millis(99))
        .await
        .unwrap_err();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Ttl { .. })),
        "{error}"
    );
    let ticket = lock()
        .acquire()
        .await
        .unwrap()
        .into_ticket(LONG)
        .await
        .unwrap();
    let other = s.first.lock("other").resume(ticket.clone()).await;
    assert_eq!(refused(other.unwrap_err()), InvalidTicketReason::OtherLock);
    let shared = s.first.lock(NAME).read().resume(ticket.clone()).await;
    assert_eq!(refused(shared.unwrap_err()), InvalidTicketReason::Kind);
    s.first
        .resume(ticket)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}
