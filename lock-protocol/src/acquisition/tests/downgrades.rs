//! Downgrades: the ends of the lease that the read lock continues.

use super::*;
use crate::lease::LeaseEnds;
use crate::loss::LossReason;

/// A holder, whose lease ends after the ttl, that becomes a reader. Its longest hold ends at `longest_hold`.
fn downgrading(longest_hold: Option<u64>) -> Bench {
    let mut holder = Bench::attempt();
    holder.start();
    let (lease, request) = acquired(holder.reply(held(TTL)));
    let ends = LeaseEnds {
        longest_hold: longest_hold.map(at),
        ..lease.ends()
    };
    Bench::new(|config| AcquireConfig {
        origin: AcquireOrigin::Downgrade {
            held: Box::new(request),
            ends,
        },
        ..config
    })
}

#[test]
fn read_lock_keeps_the_end_of_the_longest_hold_in_each_copy() {
    let mut bench = downgrading(Some(2_000));
    bench.start();
    bench.pass(200).fail(FailureClass::Unreachable);
    let (lease, _) = acquired(bench.pass(100).reply(held(TTL)));
    assert_eq!(lease.deadline(), Some(at(2_000)));
    assert_eq!(lease.own_end(), LossReason::MaxHold);
    let (unlimited, _) = acquired({
        let mut bench = downgrading(None);
        bench.start();
        bench.pass(100).reply(held(TTL))
    });
    assert_eq!(unlimited.deadline(), Some(at(TTL - 30 - 2)));
}

/// The holder has acted on the loss, so a later reply grants nothing.
#[test]
fn reply_after_the_end_of_the_lease_is_no_read_lock() {
    let mut bench = downgrading(Some(300));
    bench.start();
    let failure = failed(bench.pass(300).reply(held(TTL)));
    assert!(matches!(failure, AcquireFailure::LateGrant), "{failure:?}");
    let mut bench = downgrading(None);
    bench.start();
    let failure = failed(bench.pass(TTL).reply(held(TTL)));
    assert!(matches!(failure, AcquireFailure::NotOwner), "{failure:?}");
}
