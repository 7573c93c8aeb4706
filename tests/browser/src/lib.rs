//! A running flash sale, and a Chromium that shows it.
//!
//! `./scripts/browser` builds the flash sale and installs Chromium, its driver and PostgreSQL. Nothing
//! here is skipped when a program is missing: the test fails, and says how to install it.

pub mod demo;
mod driver;
pub mod page;
