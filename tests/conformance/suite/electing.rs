//! Elections: terms, one after the other, and what observers see of them.

use std::time::Duration;

use lock_core::observe::Observer;
use test_support::fixtures::{AT_ONCE, SOON};

use super::subject::{NAME, Subject, within};

const INTERVAL: Duration = Duration::from_millis(20);

/// Two candidates lead in turn. No two terms overlap, and the tokens grow.
pub(crate) async fn candidates_lead_one_after_the_other(s: &Subject) {
    let mut one = s.first.lock(NAME).ttl(s.ttl_to_drop()).campaign();
    let mut two = s.second.lock(NAME).ttl(s.ttl_to_drop()).campaign();
    let mut earlier = None;
    for _ in 0..3 {
        let term = within(SOON, one.next()).await.unwrap().unwrap();
        assert!(term.fencing_token() > earlier || !s.capabilities.is_fenced());
        let moment = tokio::time::timeout(INTERVAL, two.next()).await;
        assert!(moment.is_err(), "two leaders: {moment:?}");
        earlier = term.fencing_token();
        term.resign().await.unwrap();
        let term = within(SOON, two.next()).await.unwrap().unwrap();
        assert!(term.fencing_token() > earlier || !s.capabilities.is_fenced());
        earlier = term.fencing_token();
        // Resigns in the background.
        drop(term);
    }
}

/// The candidate of the shutdown gets no term any more, and its loop ends.
pub(crate) async fn shutdown_ends_a_campaign(s: &Subject) {
    let mut election = s.first.lock(NAME).ttl(s.ttl_to_drop()).campaign();
    let term = within(AT_ONCE, election.next()).await.unwrap().unwrap();
    let first = s.first.clone();
    let shutdown = tokio::spawn(async move { first.shutdown().await });
    within(AT_ONCE, term.ended()).await;
    assert!(!term.is_lost());
    term.resign().await.unwrap();
    assert!(within(AT_ONCE, election.next()).await.unwrap().is_none());
    within(SOON, shutdown).await.unwrap().unwrap();
}

/// Returns what the observer says next.
async fn next(observer: &mut Observer) -> lock_core::admin::LockInfo {
    within(SOON, observer.next()).await.unwrap()
}

/// An observer sees the present state, a holder, the next one, and the end.
pub(crate) async fn observer_sees_each_change_of_the_holder(s: &Subject) {
    let mut observer = s.second.observe(NAME).interval(INTERVAL);
    assert!(next(&mut observer).await.holder().is_none());
    let mut earlier = None;
    for manager in [&s.first, &s.second] {
        let held = manager.lock(NAME).ttl(s.ttl_to_drop()).acquire().await;
        let held = held.unwrap();
        let seen = next(&mut observer).await;
        let holder = seen.holder().expect("the lock is held");
        assert_eq!((seen.name.as_str(), &*seen.key), (NAME, held.key()));
        assert_eq!(
            holder.token,
            held.fencing_token().filter(|_| s.value_has_token)
        );
        assert!(holder.token > earlier || !s.value_has_token);
        earlier = holder.token;
        if s.capabilities.names_holder() && s.has_server() {
            assert!(holder.label.starts_with(['f', 's']), "{}", holder.label);
        }
        held.release().await.unwrap();
        assert!(next(&mut observer).await.holder().is_none());
    }
    assert!(
        s.first
            .observe(NAME)
            .current()
            .await
            .unwrap()
            .holder()
            .is_none()
    );
}
