//! Tests of several modules together.

mod guide;
#[cfg(all(feature = "axum-0-8", feature = "tonic-0-14"))]
mod problems;
#[cfg(feature = "redis")]
mod script_equivalence;
mod settings_table;
