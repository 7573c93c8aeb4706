//! A receiver of webhooks that processes each delivery once, although its sender repeats deliveries.
//!
//! ```sh
//! cargo run -p examples --features axum --example webhook_dedup -- --port 3001
//! curl -i -X POST -H 'Webhook-Id: evt_1' -d paid localhost:3001/webhooks
//! ```
//!
//! For several instances: `--redis URL --seen FOLDER`. `--work MS` is the time for one delivery. The body
//! `fail` fails.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use examples::Table;
use examples::http::{Refusal, to_the_end};
use lock_core::{LockManager, distributed_lock};

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let receiver = Receiver {
        locks: examples::locks().await?,
        seen: Table::open("--seen")?,
        work: examples::option("--work")?.map_or(Duration::from_secs(1), Duration::from_millis),
    };
    let locks = receiver.locks.clone();
    let app = Router::new()
        .route("/webhooks", post(webhook))
        .with_state(Arc::new(receiver));
    examples::http::serve(app, &locks).await?;
    locks.shutdown().await?;
    Ok(())
}

async fn webhook(
    State(receiver): State<Arc<Receiver>>,
    headers: HeaderMap,
    body: String,
) -> Result<(), Refusal> {
    let id = headers.get("webhook-id").and_then(|id| id.to_str().ok());
    match id {
        Some(id) if (1..=64).contains(&id.len()) => {
            let id = id.to_owned();
            to_the_end(async move { receiver.receive(&id, &body).await }).await
        }
        _ => Err(Refusal::Status(StatusCode::BAD_REQUEST)),
    }
}

struct Receiver {
    locks: LockManager,
    seen: Table,
    work: Duration,
}

impl Receiver {
    // region: receive
    // No `on_contended = skip`: it would answer 2xx, and the sender would not try again. The other
    // delivery may still fail. So this one answers 409.
    #[distributed_lock(name = "webhook:{id}", ttl = "10s", wait = "0s", manager = self.locks)]
    async fn receive(&self, id: &str, body: &str) -> Result<(), Refusal> {
        if self.seen.get(id)?.is_some() {
            return Ok(());
        }
        self.process(id, body).await?;
        self.seen.put(id, body)?;
        Ok(())
    }
    // endregion

    async fn process(&self, id: &str, body: &str) -> Result<(), Refusal> {
        println!("processing {id}");
        tokio::time::sleep(self.work).await;
        if body == "fail" {
            return Err(Refusal::Status(StatusCode::INTERNAL_SERVER_ERROR));
        }
        println!("processed {id}");
        Ok(())
    }
}
