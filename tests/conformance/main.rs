//! What every backend has to keep, written once and run against each.
//!
//! A contract is a function of a [`Subject`]: two managers on the same locks, made by the backend
//! under test. `conformance!` runs all of them; a new backend is one more line below. When a
//! dialect does not have what a contract is about, the contract checks that
//! [`Capabilities`](lock_core::Capabilities) says so, and tests the rest.

use lock_core::{Dialect, ReleaseMethod};

use subject::Subject;

mod holding;
mod load;
mod losing;
mod subject;
mod waiting;

mod contracts {
    pub(crate) use super::holding::*;
    pub(crate) use super::load::*;
    pub(crate) use super::losing::*;
    pub(crate) use super::waiting::*;
}

/// Runs every contract against a backend, each as a test of its own:
/// `conformance!(memory, Subject::in_memory());`.
macro_rules! conformance {
    ($backend:ident, $subject:expr) => {
        conformance!(@each $backend, $subject;
            a_held_lock_is_nobody_else_s
            one_who_tries_is_told_who_holds_it
            a_released_lock_is_free
            a_dropped_guard_frees_at_once
            a_panic_in_the_body_frees_at_once
            a_dropped_body_frees_at_once
            a_release_dropped_halfway_releases_once
            shutdown_waits_for_dropped_guards
            the_result_of_the_body_is_returned_as_it_is
            a_body_that_asks_for_its_own_lock_is_told
            a_watch_works_in_other_tasks
            futures_can_be_spawned
            unusual_names_are_locks_of_their_own
            one_who_waits_gets_it
            the_wait_ends_in_time_and_names_the_holder
            those_who_wait_are_served_in_order
            one_who_tries_does_not_overtake_those_who_wait
            a_waiter_that_leaves_is_passed_over
            a_waiter_that_leaves_at_the_grant_hands_on
            a_dropped_try_leaves_nothing
            a_lease_ends
            a_lease_is_extended_by_renewing
            a_living_guard_is_kept_beyond_its_ttl
            the_loss_is_told_in_every_way
            the_body_is_dropped_when_the_lock_is_lost
            a_hold_has_its_limit
            a_lost_guard_cannot_release_the_next_holder
            tokens_grow
            a_thousand_locks_at_once
            no_update_is_lost
        );
    };
    (@each $backend:ident, $subject:expr; $($contract:ident)+) => {
        mod $backend {
            #[allow(unused_imports, reason = "the subject may be written with a path")]
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $contract() {
                    crate::contracts::$contract(&$subject.await).await;
                }
            )+

            /// The names of the contracts that ran.
            #[allow(dead_code, reason = "of interest for one backend only")]
            pub(super) const CONTRACTS: &[&str] = &[$(stringify!($contract)),+];
        }
    };
}

conformance!(memory, Subject::in_memory());
conformance!(redis, Subject::redis());
conformance!(redis_with_one_manager, Subject::redis_with_one_manager());
conformance!(setnx_expire, Subject::redis_in(Dialect::SetnxExpire));
conformance!(deadline_getset, Subject::redis_in(Dialect::DeadlineGetset));
conformance!(lua_setnx_expire, Subject::redis_in(Dialect::LuaSetnxExpire));
conformance!(set_nx_px, Subject::redis_in(SET_NX_PX));
conformance!(watch_multi, Subject::redis_in(WATCH_MULTI));

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};
const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::WatchMulti,
};

/// A dialect without a line above would keep nothing.
#[test]
fn every_dialect_is_run() {
    let run = [
        Dialect::Native,
        Dialect::SetnxExpire,
        Dialect::DeadlineGetset,
        Dialect::LuaSetnxExpire,
        SET_NX_PX,
        WATCH_MULTI,
    ];
    assert_eq!(run, Dialect::ALL);
}

/// A contract that the macro does not list would never run.
#[test]
fn every_contract_is_run() {
    let sources = [
        include_str!("holding.rs"),
        include_str!("load.rs"),
        include_str!("losing.rs"),
        include_str!("waiting.rs"),
    ];
    let mut written: Vec<_> = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("pub(crate) async fn ")?.split('(').next())
        .collect();
    let mut run = memory::CONTRACTS.to_vec();
    written.sort_unstable();
    run.sort_unstable();
    assert_eq!(written, run);
}
