//! A web service of which one instance also sends the bills. `/leader` says which one, in every instance.
//!
//! ```sh
//! cargo run -p examples --features axum --example election -- --redis redis://127.0.0.1:6379 --port 3001
//! curl -i localhost:3001/leader
//! ```
//!
//! Start it in two terminals with different ports, and end the leader: with Ctrl-C the other one leads at once, after
//! `kill -9` within the ttl. Stop the server, and `/leader` says that the leader is unknown.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use lock_core::observe::Observer;
use lock_core::{FencingToken, LockError, LockManager};

/// A standby follows a dead leader within this time.
const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let leaders = Arc::new(locks.observe("leader:billing"));
    let app = Router::new()
        .route("/leader", get(leader))
        .with_state(leaders);
    let election = tokio::spawn(elect(locks.clone()));
    examples::http::serve(app, &locks).await?;
    // Ends the term and the loop, so that a standby follows at once.
    locks.shutdown().await?;
    election.await??;
    println!("stopped");
    Ok(())
}

// region: campaign
/// Sends bills in each term of this instance, until the manager shuts down.
async fn elect(locks: LockManager) -> Result<(), LockError> {
    let mut election = locks.lock("leader:billing").ttl(TTL).campaign();
    while let Some(term) = election.next().await? {
        let token = term.fencing_token();
        println!("leading with token {}", token.map_or(0, u64::from));
        tokio::select! {
            () = term.ended() => println!("not the leader any more"),
            // All bills are sent: another instance may lead.
            () = send_bills(token) => term.resign().await?,
        }
    }
    Ok(())
}
// endregion

// region: leader
/// Says who leads: as a readiness check, or a page for the team. Any number of requests costs one command per second.
async fn leader(State(leaders): State<Arc<Observer>>) -> (StatusCode, String) {
    match leaders.current().await {
        Ok(seen) => match seen.holder() {
            Some(leader) if leader.is_own() => (StatusCode::OK, "this instance leads".into()),
            Some(leader) => (StatusCode::OK, format!("{} leads", leader.label)),
            None => (StatusCode::OK, "no instance leads".into()),
        },
        Err(error) => {
            eprintln!("{error}");
            let text = "the leader is unknown".into();
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}
// endregion

/// Each write carries the token, so that the database can refuse the write of an earlier leader that was paused.
async fn send_bills(_token: Option<FencingToken>) {
    // There is always one more.
    std::future::pending::<()>().await;
}
