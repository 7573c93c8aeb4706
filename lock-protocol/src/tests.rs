//! Tests of several modules together.

mod failovers;
#[cfg(feature = "wire")]
mod fuzz;
mod lock_state;
mod model;
mod sets;
mod simulation;
mod virtual_client;
