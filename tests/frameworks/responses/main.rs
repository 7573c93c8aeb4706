//! What clients get for a lock that was not acquired or was lost, in each framework.

mod errors;
mod golden;
mod replaced;
mod retry_after;
mod scope;
mod secrets;
mod skip;
