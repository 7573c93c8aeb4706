//! An HTTP API refuses the write of a holder that comes too late.
//!
//! `cargo run -p examples --features http --example fenced_http -- --redis redis://127.0.0.1:6379`
//!
//! The program has both sides: an API with one account, and two holders that call it.

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use lock_core::{FencingToken, Renew};
use reqwest::Client;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let caller = Caller {
        client: Client::new(),
        url: format!("http://{}/account", listener.local_addr()?),
    };
    let api = Arc::new(Api(Mutex::new((100, None))));
    let app = Router::new()
        .route("/account", get(read).put(write))
        .with_state(api);
    tokio::spawn(async { axum::serve(listener, app).await });

    // This holder reads, and is paused before it writes. `Renew::Never` stands for the pause: the lease
    // ends as it does when the process does not run.
    let lock = locks.lock("account:1").ttl(Duration::from_secs(1));
    let paused = lock.renew(Renew::Never).acquire().await?;
    let old = examples::token(&paused)?;
    let stale = caller.read(old).await?;
    paused.lost().await;
    drop(paused);

    let held = locks.lock("account:1").acquire().await?;
    let new = examples::token(&held)?;
    let cents = caller.read(new).await?;
    println!("in time: {}", caller.write(new, cents - 30).await?);
    held.release().await?;

    println!("late: {}", caller.write(old, stale - 50).await?);
    let unfenced = caller.client.put(&caller.url).body("0").send().await?;
    println!("without a token: {}", unfenced.status());
    println!("=> {} left", caller.read(new).await?);
    locks.shutdown().await?;
    Ok(())
}

/// The cents, and the highest token that the API has seen.
struct Api(Mutex<(i64, Option<FencingToken>)>);

// region: api
impl Api {
    /// Checks the token of a request and records it, for reads too. The check and the write are one
    /// step: the caller keeps the mutex.
    fn admit(&self, headers: &HeaderMap) -> Result<Admitted<'_>, StatusCode> {
        let token = headers
            .get("fencing-token")
            .and_then(|token| token.to_str().ok());
        let token: Option<FencingToken> = token.and_then(|token| token.parse().ok());
        // A request without a token could be late.
        let token = token.ok_or(StatusCode::PRECONDITION_REQUIRED)?;
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if Some(token) < account.1 {
            return Err(StatusCode::CONFLICT);
        }
        account.1 = Some(token);
        Ok(account)
    }
}

async fn write(State(api): State<Arc<Api>>, headers: HeaderMap, body: String) -> StatusCode {
    match (api.admit(&headers), body.parse()) {
        (Err(status), _) => status,
        (Ok(_), Err(_)) => StatusCode::BAD_REQUEST,
        (Ok(mut account), Ok(cents)) => {
            account.0 = cents;
            StatusCode::NO_CONTENT
        }
    }
}
// endregion

type Admitted<'a> = MutexGuard<'a, (i64, Option<FencingToken>)>;

async fn read(State(api): State<Arc<Api>>, headers: HeaderMap) -> Result<String, StatusCode> {
    Ok(api.admit(&headers)?.0.to_string())
}

/// The other side: a holder that calls the API.
struct Caller {
    client: Client,
    url: String,
}

impl Caller {
    async fn read(&self, token: FencingToken) -> Result<i64, Box<dyn Error>> {
        let request = self
            .client
            .get(&self.url)
            .header("fencing-token", token.to_string());
        let reply = request.send().await?.error_for_status()?;
        Ok(reply.text().await?.parse()?)
    }

    // region: caller
    async fn write(&self, token: FencingToken, cents: i64) -> Result<StatusCode, reqwest::Error> {
        let request = self
            .client
            .put(&self.url)
            .header("fencing-token", token.to_string());
        Ok(request.body(cents.to_string()).send().await?.status())
    }
    // endregion
}
