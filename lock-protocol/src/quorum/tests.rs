mod acquire;
mod lease;
mod model;
mod release;
mod simulation;

use super::*;
use crate::clock::Moment;

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ttl() -> Ttl {
    Ttl::new(ms(1000)).unwrap()
}

fn token(token: u64) -> FencingToken {
    FencingToken::new(token)
}

/// A confirmation of the full ttl for a command that was sent at `sent_at`.
fn confirmed(token: u64, sent_at: u64) -> ServerLease {
    ServerLease {
        token: Some(FencingToken::new(token)),
        remaining: ms(1000),
        sent_at: at(sent_at),
        run_id: UNKNOWN_RUN_ID,
    }
}

#[test]
fn end_of_majority_is_the_latest_moment_that_enough_servers_reach() {
    let ends = [at(5), at(9), at(7), at(1)];
    assert_eq!(end_of_majority(ends.into_iter(), 3), Some(at(5)));
    assert_eq!(end_of_majority(ends.into_iter(), 5), None);
    assert_eq!([3, 4, 5].map(majority), [2, 3, 3]);
}

#[test]
fn end_of_lease_is_earlier_by_the_margins_and_never_counts_more_than_the_ttl() {
    assert_eq!(end_of_lease(ttl(), at(100), ms(1000)), at(1088));
    assert_eq!(end_of_lease(ttl(), at(100), ms(400)), at(488));
    assert_eq!(end_of_lease(ttl(), at(100), Duration::MAX), at(1088));
    assert_eq!(end_of_lease(ttl(), at(0), ms(3)), at(0));
}
