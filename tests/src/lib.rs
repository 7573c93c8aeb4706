//! Helpers for tests of locks: managers, waiters, bounds on outcomes, and a trace of events.
//!
//! Helpers that need no lock are in `test_support`.

mod example;
mod managers;
mod timing;
mod trace;
mod waiters;

pub use example::example;
pub use managers::{
    SET_NX_PX, SET_NX_PX_AUTO, SET_NX_PX_CONDITIONAL, WATCH_MULTI, acquire_and_release,
    assert_nothing_left, backend_error_kind, connect, connect_to, connect_to_env,
    connect_with_timeout, fencing_token, has_owner_commands, one_attempt, section_of_a_queue,
    shut_down, supported_dialects,
};
pub use timing::{assert_held_for, in_time, lost_in_time, run_within};
pub use trace::Trace;
pub use waiters::{Waiter, granted, poll_once, start_waiter};
