//! The gallery: classic mistakes of locks that are written by hand, each made to happen on a real
//! server, and then this library in the same situation.
//!
//! `cargo run -p examples --example gallery`
//!
//! Needs the program `redis-server`, which is started on a free port and stopped at the end. Every
//! figure is measured while you watch. The locks written by hand are in `by_hand.rs`; each act is a
//! function of its own.

mod by_hand;
mod children;
mod crashes;
mod deadlines;
mod late;
mod leases;
mod polling;
mod stage;
mod wire;

use std::process::ExitCode;

use tokio::try_join;

use stage::{Fault, Server, Shown};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match children::role() {
        Ok(Some(role)) => children::play(role).await,
        Ok(None) => gallery().await,
        Err(fault) => Err(fault),
    };
    examples::end(result.map_err(|fault| fault as _))
}

async fn gallery() -> Result<(), Fault> {
    let server = &Server::start().await?;
    println!(
        "On a server of its own at {}; some seconds.\n",
        server.url()
    );

    // All of these mostly wait, and each has a key of its own.
    let (one, two, three, four, five, six, eight, nine) = try_join!(
        Box::pin(crashes::no_expire(server)),
        Box::pin(crashes::lost_expire(server)),
        Box::pin(leases::others_lock_deleted(server)),
        Box::pin(deadlines::moved(server)),
        Box::pin(deadlines::clocks_differ(server)),
        Box::pin(leases::work_too_long(server)),
        Box::pin(late::paused(server)),
        Box::pin(crashes::kept(server)),
    )?;
    let mut acts = vec![one, two, three, four, five, six];
    show(&acts, 1);
    // This one counts what a busy server lets through, so it has the server for itself.
    acts.push(polling::starves(server).await?);
    acts.extend([eight, nine]);
    show(&acts, 7);

    println!("| The mistake | Written by hand | With this library |");
    println!("|---|---|---|");
    for act in acts {
        println!("| {} | {} | {} |", act.mistake, act.by_hand, act.library);
    }
    Ok(())
}

/// Says what the acts have shown, from this number on.
fn show(acts: &[Shown], from: usize) {
    for (act, number) in acts.iter().zip(1..).skip(from - 1) {
        println!("{number}. {}", act.mistake);
        println!("   by hand:      {}", act.by_hand);
        println!("   this library: {}\n", act.library);
    }
}
