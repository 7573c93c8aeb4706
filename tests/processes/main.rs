//! Real processes: programs that use locks and are killed, frozen or cut off, and the examples.

mod crashes;
mod examples;
