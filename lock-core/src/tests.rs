//! Tests that need more than one module.

mod guide;
mod lock_state;
mod model;
#[cfg(feature = "redis")]
mod script_equivalence;
