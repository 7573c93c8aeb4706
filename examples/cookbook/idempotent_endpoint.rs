//! An endpoint that a client may call again with the same key, and that charges the card once.
//!
//! ```sh
//! cargo run -p examples --features axum --example idempotent_endpoint -- --port 3001
//! curl -X POST -H 'Idempotency-Key: 7f3a' localhost:3001/payments
//! ```
//!
//! For several instances: `--redis URL --receipts FOLDER`. `--bank MS` is the response time of the bank.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
    let shop = Shop {
        locks: examples::locks().await?,
        receipts: Table::open("--receipts")?,
        bank: examples::option("--bank")?.map_or(Duration::from_secs(1), Duration::from_millis),
        charges: AtomicU32::new(0),
    };
    let locks = shop.locks.clone();
    let app = Router::new()
        .route("/payments", post(payment))
        .with_state(Arc::new(shop));
    examples::http::serve(app, &locks).await?;
    locks.shutdown().await?;
    Ok(())
}

async fn payment(State(shop): State<Arc<Shop>>, headers: HeaderMap) -> Result<String, Refusal> {
    let key = headers.get("idempotency-key");
    let key = key.and_then(|key| key.to_str().ok());
    match key {
        Some(key) if (1..=64).contains(&key.len()) => {
            let key = key.to_owned();
            to_the_end(async move { shop.pay(&key).await }).await
        }
        _ => Err(Refusal::Status(StatusCode::BAD_REQUEST)),
    }
}

struct Shop {
    locks: LockManager,
    receipts: Table,
    bank: Duration,
    charges: AtomicU32,
}

impl Shop {
    // region: pay
    #[distributed_lock(name = "payment:{key}", ttl = "10s", wait = "5s", manager = self.locks)]
    async fn pay(&self, key: &str) -> Result<String, Refusal> {
        // An earlier request with this key has the result: this one gets the same.
        if let Some(receipt) = self.receipts.get(key)? {
            return Ok(receipt);
        }
        let receipt = self.charge(key).await;
        // Stored while the lock is held: the next request with this key finds it.
        self.receipts.put(key, &receipt)?;
        Ok(receipt)
    }
    // endregion

    /// Charges the card at the bank. A bank takes the key too: after a crash before the receipt is
    /// stored, only the bank knows that it charged the card.
    async fn charge(&self, key: &str) -> String {
        let number = self.charges.fetch_add(1, Ordering::Relaxed);
        println!("charging {key}");
        tokio::time::sleep(self.bank).await;
        println!("charged {key}");
        format!("receipt {}-{number}\n", std::process::id())
    }
}
