//! Grants that the random steps do not reach.

use super::*;

use lock_protocol::wire::Mode;

/// A late copy of a poll does not name the entry before it, so an owner may have two in the queue. The second grant
/// has the shorter lease.
#[test]
fn second_grant_of_an_owner_keeps_the_longer_lease() {
    let acquire = |who, kind, lease_ms| Step::Acquire {
        who,
        ttl_ms: 30_000,
        floor_ahead_us: -1_000_000,
        not_after_ms: 60_000,
        wait: Some(Wait {
            mode: Mode::Subscribed,
            channel: 0,
            lease_ms,
            expires_in_ms: 60_000,
        }),
        lead_us: 0,
        entry_from_history: false,
        names_earlier: false,
        max_queue: None,
        kind,
        purpose: Purpose::Acquire,
    };
    for kind in [Kind::Read, Kind::Permits { of: 3, weight: 2 }] {
        let steps = [
            acquire(0, Kind::Exclusive, 2_000),
            acquire(1, kind, 2_000),
            acquire(1, kind, 100),
            Step::Release {
                who: 0,
                grace_ms: 0,
                min_hold_ms: 0,
                done_ms: 0,
                floor_ahead_us: -1_000_000,
                lead_us: 0,
                kind: Kind::Exclusive,
            },
        ];
        sequence(&mut Server::start(), &steps).unwrap();
    }
}

/// An acquire never lowers a lease, also where the number of permits of the owner differs.
#[test]
fn acquire_lowers_the_end_of_no_permit() {
    let acquire = |ttl_ms, weight| Step::Acquire {
        who: 0,
        ttl_ms,
        floor_ahead_us: -1_000_000,
        not_after_ms: 60_000,
        wait: None,
        lead_us: 0,
        entry_from_history: false,
        names_earlier: false,
        max_queue: None,
        kind: Kind::Permits { of: 3, weight },
        purpose: Purpose::Acquire,
    };
    let release = Step::Release {
        who: 0,
        grace_ms: 0,
        min_hold_ms: 0,
        done_ms: 0,
        floor_ahead_us: -1_000_000,
        lead_us: 0,
        kind: Kind::Permits { of: 3, weight: 1 },
    };
    // The second permit ends in 30 s, and the first one in 100 ms.
    let steps = [
        acquire(30_000, 2),
        release,
        acquire(100, 1),
        acquire(1_000, 2),
    ];
    sequence(&mut Server::start(), &steps).unwrap();
}
