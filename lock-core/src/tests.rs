//! Tests of several modules together.

mod failovers;
mod guide;
mod lock_state;
mod model;
#[cfg(all(feature = "axum-0-8", feature = "tonic-0-14"))]
mod problems;
#[cfg(feature = "redis")]
mod script_equivalence;
mod sets;
mod settings_table;
mod simulation;
mod virtual_client;
