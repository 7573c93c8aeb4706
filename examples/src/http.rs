//! What the web services among the examples share.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lock_core::LockError;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Serves HTTP on `--port` until the process gets a signal to stop. Then it accepts no more connections,
/// and lets the running handlers end, at most for `--drain` milliseconds (20 s).
///
/// The caller then awaits `LockManager::shutdown`.
///
/// # Errors
///
/// Returns an error if the port is taken, or if the server fails.
pub async fn serve(app: Router) -> Result<(), Box<dyn Error>> {
    let drain = crate::option("--drain")?.map_or(Duration::from_secs(20), Duration::from_millis);
    let port = crate::option("--port")?.unwrap_or(0);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // region: serve
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { _ = stopped.await });
    let mut server = pin!(server.into_future());
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        () = crate::stop_signal() => {}
    }
    // The server accepts no more connections.
    _ = stop.send(());
    // It waits for the running handlers without a limit, so the timeout sets one. The timeout begins
    // here, and not when the server starts.
    if tokio::time::timeout(drain, server).await.is_err() {
        eprintln!("some requests did not end within {drain:?}");
    }
    // endregion
    Ok(())
}

/// The reason why a request was not executed, as the status that the client gets.
///
/// The text of an error names hosts and processes. It goes to the log, and not to the client.
#[derive(Debug)]
pub struct Refusal(pub StatusCode);

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        eprintln!("{error}");
        Self(match error {
            // The same call may succeed a moment later.
            _ if error.is_contended() => StatusCode::CONFLICT,
            LockError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            _ if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            // The body stopped in the middle, or the call is wrong. The client must not repeat it blindly.
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        })
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        eprintln!("{error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}
