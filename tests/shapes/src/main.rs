//! Functions that are written once and built twice: with `#[distributed_lock]` and without it.
//!
//! An output line shows for one shape its return value, and the order in which values were dropped.
//! `compare` requires the same lines and the same warnings from both builds. Each module has one
//! topic. Comment out a line here to find the topic that does not build.

#[macro_use]
mod support;

mod arguments;
mod attributes;
mod auto_traits;
mod bodies;
mod captures;
mod dropped;
mod entry;
mod frameworks;
mod generics;
mod in_traits;
mod made_by_macros;
mod mentioned;
mod names;
mod nested;
mod patterns;
mod receivers;
mod returns;
mod runs;
mod tables;
#[cfg(test)]
mod tested;
mod traced;
mod traits;
mod types;
mod warned;

use std::time::Duration;

use lock_core::LockManager;

fn main() {
    // A lock that is never released would block this program.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        eprintln!(
            "the program did not end within 60 s; the shape after the last reported one hangs"
        );
        std::process::exit(1);
    });
    entry::run();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("the runtime starts");
    runtime.block_on(LockManager::in_memory().scope(async {
        arguments::run().await;
        patterns::run().await;
        captures::run().await;
        receivers::run().await;
        generics::run().await;
        returns::run().await;
        runs::run().await;
        bodies::run().await;
        made_by_macros::run().await;
        mentioned::run().await;
        names::run().await;
        traits::run().await;
        types::run().await;
        tables::run().await;
        traced::run().await;
        in_traits::run().await;
        frameworks::run().await;
        attributes::run().await;
        auto_traits::run().await;
        dropped::run().await;
        nested::run().await;
        warned::run().await;
    }));
}
