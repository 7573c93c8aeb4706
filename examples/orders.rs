//! A web service that charges each order once, no matter how many instances get the request.
//!
//! Start two instances, each with its own port:
//!
//! ```sh
//! cargo run -p examples --example orders --features axum -- \
//!     --redis redis://127.0.0.1:6379 --port 3001
//! ```
//!
//! and pay one order at both instances at the same time:
//!
//! ```sh
//! curl -X POST localhost:3001/orders/1/payment & curl -X POST localhost:3002/orders/1/payment
//! ```
//!
//! One instance returns 200, the other 409. During a payment, a DELETE of the order returns 423. The
//! bank declines a payment with `?card=declined`. `--ledger FILE` sets the shop's database, `--bank MS`
//! the time that the bank needs.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use lock_core::{LockError, LockManager, distributed_lock};
use tokio::net::TcpListener;

/// Pays an order. Waits while another request holds the lock, because that request is soon done and its
/// result is the answer to this one. `bind` gives the body the guard.
#[distributed_lock(name = "order:{order}", ttl = "5s", wait = "10s", bind = held)]
async fn pay(
    State(shop): State<Arc<Shop>>,
    Path(order): Path<u32>,
    RawQuery(query): RawQuery,
) -> Result<String, Refusal> {
    shop.open_order(order)?;
    shop.charge(query.as_deref() == Some("card=declined"))
        .await?;
    // A database that stores the highest token of each order can reject the write of a holder that was
    // paused for too long.
    let token = held.fencing_token().map(|token| token.to_string());
    shop.write(order, "paid", &token.unwrap_or_default())?;
    Ok(format!("order {order}: paid\n"))
}

/// Cancels an order. Tries once, so that the client gets its answer at once during a payment.
#[distributed_lock(name = "order:{order}", ttl = "5s", wait = "0s", bind = held)]
async fn cancel(State(shop): State<Arc<Shop>>, Path(order): Path<u32>) -> Result<String, Refusal> {
    shop.open_order(order)?;
    let token = held.fencing_token().map(|token| token.to_string());
    shop.write(order, "cancelled", &token.unwrap_or_default())?;
    Ok(format!("order {order}: cancelled\n"))
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let shop = Shop {
        ledger: examples::option("--ledger")?
            .unwrap_or_else(|| std::env::temp_dir().join("orders.ledger")),
        bank: examples::option("--bank")?.map_or(Duration::from_secs(1), Duration::from_millis),
    };
    // A wrong URL stops the service at its start, not at the first request.
    let locks = LockManager::connect(&examples::lock_url()?).await?;
    locks.install_global()?;

    let app = Router::new()
        .route("/orders/{order}/payment", post(pay))
        .route("/orders/{order}", axum::routing::delete(cancel))
        .with_state(Arc::new(shop));
    let port = examples::option("--port")?.unwrap_or(0);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
        .await?;
    // Waits for the releases of dropped requests. Without this, their locks stay until the ttl ends.
    locks.shutdown().await?;
    Ok(())
}

/// The reason why a request failed.
enum Refusal {
    /// The order is already paid or cancelled.
    Closed(String),
    /// The bank declined the card.
    Declined,
    /// The lock was not acquired, or was lost.
    Lock(LockError),
    Ledger(std::io::Error),
}

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Ledger(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Closed(text) => (StatusCode::CONFLICT, text),
            Self::Declined => (StatusCode::PAYMENT_REQUIRED, "the card was declined".into()),
            // Another request holds the lock; the client may try again.
            Self::Lock(error) if error.is_contended() => {
                report(&error);
                let text = "another request works on this order; try again in a moment";
                (StatusCode::LOCKED, text.into())
            }
            // The server did not confirm the lock, so the order is not changed.
            Self::Lock(error) => {
                report(&error);
                let text = "orders cannot be changed at the moment; try again later";
                (StatusCode::SERVICE_UNAVAILABLE, text.into())
            }
            Self::Ledger(error) => {
                report(&error);
                (StatusCode::INTERNAL_SERVER_ERROR, "internal error".into())
            }
        };
        (status, format!("{text}\n")).into_response()
    }
}

/// Writes an error to the log of the service. Error texts contain hosts, processes and addresses, so
/// they are not sent to clients.
fn report(error: &dyn Error) {
    eprintln!("orders: {error}");
}

/// A shop. Its database is a file with lines `order state token`.
struct Shop {
    ledger: PathBuf,
    bank: Duration,
}

impl Shop {
    /// Checks that the order is open. Only a caller that holds the lock can rely on the result, because
    /// another process may write right after the check.
    fn open_order(&self, order: u32) -> Result<(), Refusal> {
        let ledger = match std::fs::read_to_string(&self.ledger) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            ledger => ledger?,
        };
        let number = order.to_string();
        for line in ledger.lines() {
            let mut words = line.split(' ');
            if words.next() == Some(number.as_str()) {
                let state = words.next().unwrap_or_default();
                return Err(Refusal::Closed(format!("order {order}: already {state}")));
            }
        }
        Ok(())
    }

    /// Charges the card.
    async fn charge(&self, declined: bool) -> Result<(), Refusal> {
        tokio::time::sleep(self.bank).await;
        if declined {
            return Err(Refusal::Declined);
        }
        Ok(())
    }

    fn write(&self, order: u32, state: &str, token: &str) -> Result<(), Refusal> {
        let mut ledger = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.ledger)?;
        ledger.write_all(format!("{order} {state} {token}\n").as_bytes())?;
        Ok(())
    }
}
