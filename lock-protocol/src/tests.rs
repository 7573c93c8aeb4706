//! Tests of several modules together.

mod failovers;
mod lock_state;
mod model;
mod sets;
mod simulation;
mod virtual_client;
