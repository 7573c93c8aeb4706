//! The contracts of every store, and the macro that runs them. The tests of topologies include this
//! file too.

pub(crate) mod electing;
pub(crate) mod holding;
pub(crate) mod kinds;
pub(crate) mod load;
pub(crate) mod losing;
pub(crate) mod once_per;
pub(crate) mod operating;
pub(crate) mod sets;
pub(crate) mod subject;
pub(crate) mod tickets;
pub(crate) mod waiting;

pub(crate) mod contracts {
    pub(crate) use super::electing::*;
    pub(crate) use super::holding::*;
    pub(crate) use super::kinds::*;
    pub(crate) use super::load::*;
    pub(crate) use super::losing::*;
    pub(crate) use super::once_per::*;
    pub(crate) use super::operating::*;
    pub(crate) use super::sets::*;
    pub(crate) use super::tickets::*;
    pub(crate) use super::waiting::*;
}

/// Calls a macro with the names of all contracts, behind other arguments.
macro_rules! all_contracts {
    ($then:ident $($arguments:tt)*) => {
        $then! { $($arguments)*
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
            full_queue_refuses_a_newcomer
            dropped_waiter_is_skipped
            waiter_dropped_at_its_grant_hands_over
            dropped_acquire_leaves_no_lock
            close_ends_waiters_and_keeps_held_locks
            busy_lock_does_not_use_the_time_for_outages
            shutdown_ends_waiters
            ping_shows_that_locks_are_granted
            lease_expires_after_its_ttl
            renew_extends_the_lease
            guard_is_renewed_beyond_its_ttl
            loss_is_reported_in_every_way
            lock_without_renewal_is_lost_and_never_at_risk
            body_is_dropped_when_the_lock_is_lost
            max_hold_ends_the_lock
            lost_guard_does_not_release_the_next_holder
            fencing_tokens_grow_with_each_grant
            inspect_shows_the_holder_and_the_waiters
            list_shows_the_locks_of_a_pattern
            revoked_lock_stays_locked_until_its_lease_ends
            force_release_now_frees_the_lock
            readers_hold_together_and_a_writer_waits
            readers_and_writers_get_the_lock_in_order
            permits_limit_how_many_hold_together
            every_waiter_for_a_permit_is_served
            reader_that_stops_renewing_costs_its_own_ttl
            downgraded_writer_reads_beside_others
            downgrade_of_a_lost_lock_is_an_error
            dropped_readers_and_permits_leave_no_lock
            invalid_kinds_are_refused
            only_a_success_keeps_the_name_taken
            period_counts_from_the_start
            waiters_learn_that_the_work_is_done
            operator_sees_and_frees_what_is_done
            set_is_done_as_a_whole
            invalid_periods_are_refused
            dropped_completion_still_counts
            set_holds_all_locks_or_none
            set_that_times_out_holds_no_lock
            sets_in_opposite_orders_do_not_deadlock
            set_inside_its_own_lock_would_deadlock
            sets_of_readers_and_permits_share_their_locks
            candidates_lead_one_after_the_other
            shutdown_ends_a_campaign
            observer_sees_each_change_of_the_holder
            ticket_hands_the_lock_over
            ticket_has_one_winner
            ticket_that_nobody_resumes_ends_with_its_lease
            guard_of_a_ticket_is_renewed_and_hands_over
            dropped_ticket_futures_leave_no_lock
            invalid_tickets_are_refused
            one_manager_holds_a_thousand_locks
            no_update_is_lost
        }
    };
}
pub(crate) use all_contracts;

/// Runs every contract against a store, each as a test of its own: `conformance!(memory,
/// Subject::in_memory());`.
#[allow(unused_macros, reason = "one test program has tests of its own")]
macro_rules! conformance {
    ($store:ident, $subject:expr) => {
        $crate::suite::all_contracts!(conformance @each $store, $subject;);
    };
    (@each $store:ident, $subject:expr; $($contract:ident)+) => {
        mod $store {
            #[allow(unused_imports, reason = "the subject may be written with a path")]
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $contract() {
                    crate::suite::contracts::$contract(&$subject.await).await;
                }
            )+

            /// The names of the contracts that ran.
            #[allow(dead_code, reason = "of interest for one store only")]
            pub(super) const CONTRACTS: &[&str] = &[$(stringify!($contract)),+];
        }
    };
}
pub(crate) use conformance;
