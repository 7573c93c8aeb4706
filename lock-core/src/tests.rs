//! Tests of several modules together.

mod guide;
mod lock_state;
mod model;
#[cfg(feature = "redis")]
mod script_equivalence;
mod settings_table;
mod simulation;
mod virtual_client;
