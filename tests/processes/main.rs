//! Real processes: programs that use locks and are killed, frozen or disconnected, and the
//! examples.

mod crashes;
mod examples;
mod kinds;
