//! Writes the manual pages and the completions of `lockctl` into `target/assets`, for packages.
//!
//! ```text
//! cargo run -p lock-cli --example assets [FOLDER]
//! ```

#![allow(clippy::print_stdout, reason = "it prints where the files are")]

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os()
        .nth(1)
        .map_or_else(default, PathBuf::from);
    lock_cli::write_assets(&folder)?;
    println!("{}", folder.display());
    Ok(())
}

/// `target/assets` of the workspace, wherever the program was started.
fn default() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/assets")
}
