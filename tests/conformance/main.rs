//! The contract of every backend, written once and run against each backend.
//!
//! A contract is a function of a [`Subject`]: two managers on the same locks, made by the backend
//! under test. `conformance!` runs all contracts. A new backend is one more line below. If a
//! dialect lacks a capability, the contract checks that [`Capabilities`](lock_core::Capabilities)
//! says so, and tests the rest.

use lock_core::{Dialect, ReleaseMethod};

use subject::Subject;

mod holding;
mod load;
mod losing;
mod operating;
mod subject;
mod waiting;

mod contracts {
    pub(crate) use super::holding::*;
    pub(crate) use super::load::*;
    pub(crate) use super::losing::*;
    pub(crate) use super::operating::*;
    pub(crate) use super::waiting::*;
}

/// Runs every contract against a backend, each as a test of its own: `conformance!(memory,
/// Subject::in_memory());`.
macro_rules! conformance {
    ($backend:ident, $subject:expr) => {
        conformance!(@each $backend, $subject;
            held_lock_is_exclusive
            contended_error_names_the_holder
            released_lock_is_free_when_release_returns
            dropping_the_guard_releases_the_lock
            panic_in_the_body_releases_the_lock
            dropping_run_releases_the_lock
            dropped_release_releases_only_its_own_lock
            dropped_guards_are_released_in_the_background
            run_returns_the_result_of_the_body
            nested_acquire_returns_would_deadlock
            watch_works_in_other_tasks
            futures_can_be_spawned
            unusual_names_are_distinct_locks
            waiter_gets_the_released_lock
            wait_ends_in_time_and_names_the_holder
            waiters_get_the_lock_in_order
            try_acquire_does_not_jump_the_queue
            dropped_waiter_is_skipped
            waiter_dropped_at_its_grant_hands_over
            dropped_acquire_leaves_no_lock
            shutdown_ends_waiters
            ping_shows_that_locks_are_granted
            lease_expires_after_its_ttl
            renew_extends_the_lease
            guard_is_renewed_beyond_its_ttl
            loss_is_reported_in_every_way
            body_is_dropped_when_the_lock_is_lost
            max_hold_ends_the_lock
            lost_guard_does_not_release_the_next_holder
            fencing_tokens_grow_with_each_grant
            inspect_shows_the_holder_and_the_waiters
            list_shows_the_locks_of_a_pattern
            revoked_lock_stays_locked_until_its_lease_ends
            force_release_now_frees_the_lock
            one_manager_holds_a_thousand_locks
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
conformance!(set_nx_px_auto, Subject::redis_in(SET_NX_PX_AUTO));

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};
const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::WatchMulti,
};

const SET_NX_PX_AUTO: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Auto,
};
/// Not all servers support it. Where they do, `Auto` runs the same commands.
const SET_NX_PX_NATIVE: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Native,
};

/// A dialect without a line above would not be tested.
#[test]
fn conformance_runs_every_dialect() {
    let run = [
        Dialect::Native,
        Dialect::SetnxExpire,
        Dialect::DeadlineGetset,
        Dialect::LuaSetnxExpire,
        SET_NX_PX,
        WATCH_MULTI,
        SET_NX_PX_NATIVE,
        SET_NX_PX_AUTO,
    ];
    assert_eq!(run, Dialect::ALL);
}

/// A contract that the macro does not list would never run.
#[test]
fn conformance_runs_every_contract() {
    let sources = [
        include_str!("holding.rs"),
        include_str!("load.rs"),
        include_str!("losing.rs"),
        include_str!("operating.rs"),
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
