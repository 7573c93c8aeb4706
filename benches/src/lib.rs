//! Functions that the benches share.

pub mod allocations;
pub mod blocks;
pub mod connection;
pub mod contention;
pub mod decay;
pub mod figures;
pub mod held;
pub mod operation_cost;
pub mod pairs;
pub mod pin;
pub mod process;
pub mod raw;
pub mod raw_handover;
pub mod round_trip;
pub mod script_pair;
pub mod server_info;
pub mod server_time;

/// Returns whether the bench is to take a few seconds only, for the guard against decay: `cargo bench
/// -p benches --bench <name> -- --short`.
#[must_use]
pub fn is_short() -> bool {
    std::env::args().any(|argument| argument == "--short")
}
