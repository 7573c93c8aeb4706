//! Runs the flash sale as its users do, without a browser: `./scripts/browser` runs it with one.

mod command_line;
mod demo;
mod experiments;
mod page;
mod processes;
