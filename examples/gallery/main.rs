//! Shows classic mistakes of locks that are written by hand, on a real server, and this library in the
//! same situations.
//!
//! `cargo run -p examples --example gallery`
//!
//! Needs the program `redis-server`, starts it on a free port, and stops it at the end. Each run
//! measures all figures again. `by_hand.rs` has the locks that are written by hand. Each act is one function.

mod by_hand;
mod children;
mod crashes;
mod deadlines;
mod late;
mod leases;
mod polling;
mod stage;
mod transfers;
mod wire;
mod writers;

use std::process::ExitCode;

use tokio::try_join;

use stage::{ActResult, BoxError, Server};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match children::role() {
        Ok(Some(role)) => children::run(role).await,
        Ok(None) => gallery().await,
        Err(fault) => Err(fault),
    };
    examples::end(result.map_err(|fault| fault as _))
}

async fn gallery() -> Result<(), BoxError> {
    let server = &Server::start().await?;
    println!(
        "Running on a private server at {}. This takes some seconds.\n",
        server.url()
    );

    // These acts can run together: they mostly wait, and each uses a different key.
    let (one, two, three, four, five, six, eight, nine, eleven) = try_join!(
        Box::pin(crashes::no_expire(server)),
        Box::pin(crashes::lost_expire(server)),
        Box::pin(leases::other_lock_deleted(server)),
        Box::pin(deadlines::moved(server)),
        Box::pin(deadlines::clocks_differ(server)),
        Box::pin(leases::work_too_long(server)),
        Box::pin(late::paused(server)),
        Box::pin(crashes::kept(server)),
        Box::pin(transfers::deadlock(server)),
    )?;
    let mut acts = vec![one, two, three, four, five, six];
    show(&acts, 1);
    // These acts measure a busy server, so they run alone.
    acts.push(polling::starves(server).await?);
    acts.extend([eight, nine]);
    acts.push(writers::starves(server).await?);
    acts.push(eleven);
    show(&acts, 7);

    println!("| The mistake | Written by hand | With this library |");
    println!("|---|---|---|");
    for act in acts {
        println!("| {} | {} | {} |", act.mistake, act.by_hand, act.library);
    }
    Ok(())
}

/// Prints the results of the acts, starting with this number.
fn show(acts: &[ActResult], from: usize) {
    for (act, number) in acts.iter().zip(1..).skip(from - 1) {
        println!("{number}. {}", act.mistake);
        println!("   by hand:      {}", act.by_hand);
        println!("   this library: {}\n", act.library);
    }
}
