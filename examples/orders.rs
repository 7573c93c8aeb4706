//! A web service in which each order is paid once, even if several instances get the request.
//!
//! Start two instances, each with its own port:
//!
//! ```sh
//! cargo run -p examples --example orders --features axum -- \
//!     --redis redis://127.0.0.1:6379 --port 3001
//! ```
//!
//! and send the payment of one order to both at the same time:
//!
//! ```sh
//! curl -X POST localhost:3001/orders/1/payment & curl -X POST localhost:3002/orders/1/payment
//! ```
//!
//! One replies 200, the other 409. During a payment, a DELETE of the order gets 409 with another text.
//! The bank declines a payment with `?card=declined`. `--ledger FILE` sets the shop's database, `--bank MS`
//! the response time of the bank.

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
use examples::http::to_the_end;
use lock_core::web::{Problem, ScopeLayer};
use lock_core::{LockError, LockManager, distributed_lock};

/// Pays in a task of its own, so that the payment doesn't stop halfway when the client disconnects. A task is
/// outside of the request's scope, so it takes the manager along.
async fn pay(
    State(shop): State<Arc<Shop>>,
    Path(order): Path<u32>,
    RawQuery(query): RawQuery,
) -> Result<String, Refusal> {
    let locks = LockManager::current()?;
    let declined = query.as_deref() == Some("card=declined");
    to_the_end(async move { locks.scope(pay_once(shop, order, declined)).await }).await
}

/// Waits while another request works on the order: a payment soon ends, and then the reply is
/// definite. `bind` gives the body the guard.
#[distributed_lock(name = "order:{order}", ttl = "5s", wait = "10s", bind = held)]
async fn pay_once(shop: Arc<Shop>, order: u32, declined: bool) -> Result<String, Refusal> {
    // Checked inside the lock: the next caller runs after this one.
    shop.open_order(order)?;
    shop.charge(declined).await?;
    // A database that stores the highest token of each order can refuse a paused holder that writes
    // too late.
    let token = held.fencing_token().map(|token| token.to_string());
    shop.write(order, "paid", &token.unwrap_or_default())?;
    Ok(format!("order {order}: paid\n"))
}

/// Does not wait: a client that cancels an order during its payment gets the refusal at once.
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
    // Connects here and not at the first request: a wrong URL should stop the service from
    // starting.
    let locks = LockManager::connect(&examples::lock_url()?).await?;
    // Ends after a signal, when the requests have ended or their time is over.
    examples::http::serve(app(&locks, shop), &locks).await?;
    // Last, when no request needs a lock any more. Otherwise the lock of a dropped request stays until
    // its ttl.
    locks.shutdown().await?;
    Ok(())
}

/// Builds the app. The handlers use this manager, so no manager is global.
fn app(locks: &LockManager, shop: Shop) -> Router {
    Router::new()
        .route("/orders/{order}/payment", post(pay))
        .route("/orders/{order}", axum::routing::delete(cancel))
        .with_state(Arc::new(shop))
        .layer(ScopeLayer::new(locks.clone()))
}

/// The reason why a request was not executed.
enum Refusal {
    /// The order is already paid or cancelled.
    Closed(String),
    /// The bank declines the payment.
    Declined,
    /// The lock was not acquired or was lost.
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
            Self::Closed(how) => (StatusCode::CONFLICT, how),
            Self::Declined => (StatusCode::PAYMENT_REQUIRED, "the card was declined".into()),
            // The client learns when to try again, and nothing about hosts and processes.
            Self::Lock(error) => {
                report(&error);
                let mut problem = Problem::from(&error);
                if error.is_contended() {
                    problem = problem.title("Another request works on this order");
                }
                return problem.into_response();
            }
            Self::Ledger(error) => {
                report(&error);
                (StatusCode::INTERNAL_SERVER_ERROR, "internal error".into())
            }
        };
        (status, format!("{text}\n")).into_response()
    }
}

/// Logs an error. Error texts contain hosts, processes and addresses, which a client must not see.
fn report(error: &dyn Error) {
    eprintln!("orders: {error}");
}

/// A shop whose database is a file with lines `order action token`.
struct Shop {
    ledger: PathBuf,
    bank: Duration,
}

impl Shop {
    /// Checks whether the order is still open. Another process may write right after this check, so
    /// the caller must hold the lock to rely on the result.
    fn open_order(&self, order: u32) -> Result<(), Refusal> {
        let ledger = match std::fs::read_to_string(&self.ledger) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            ledger => ledger?,
        };
        let number = order.to_string();
        for line in ledger.lines() {
            let mut words = line.split(' ');
            if words.next() == Some(number.as_str()) {
                let what = words.next().unwrap_or_default();
                return Err(Refusal::Closed(format!("order {order}: already {what}")));
            }
        }
        Ok(())
    }

    /// Charges the card at the bank, which takes some time.
    async fn charge(&self, declined: bool) -> Result<(), Refusal> {
        tokio::time::sleep(self.bank).await;
        if declined {
            return Err(Refusal::Declined);
        }
        Ok(())
    }

    fn write(&self, order: u32, what: &str, token: &str) -> Result<(), Refusal> {
        let mut ledger = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.ledger)?;
        ledger.write_all(format!("{order} {what} {token}\n").as_bytes())?;
        Ok(())
    }
}
