//! Runs the flash sale as its users do, without a browser: `./scripts/browser` runs it with one.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test fail it; clippy knows only its test functions"
)]

mod command_line;
mod demo;
mod experiments;
mod page;
mod processes;
