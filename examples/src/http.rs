//! What the web services among the examples share.

use std::error::Error;
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lock_core::{LockError, LockManager};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Serves HTTP on `--port` until the process gets a signal to stop. Then it closes the manager, accepts no more
/// connections, and lets the running handlers end, at most for `--drain` milliseconds (20 s).
///
/// The caller then awaits `LockManager::shutdown`.
///
/// # Errors
///
/// Returns an error if the port is taken, or if the server fails.
pub async fn serve(app: Router, locks: &LockManager) -> Result<(), Box<dyn Error>> {
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
    // Calls that wait for a lock end now. Those that hold one go on.
    locks.close();
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

/// Runs work in a task of its own, which runs to its end even if the client disconnects. A handler is dropped
/// then, perhaps between the bank and the row in the database.
///
/// # Cancel safety
///
/// Dropping the future doesn't stop the work.
///
/// # Panics
///
/// Panics if the work panics.
pub async fn to_the_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let task = tokio::spawn(work);
    task.await
        .unwrap_or_else(|panicked| resume_unwind(panicked.into_panic()))
}

/// The reason why a request was not executed.
#[derive(Debug)]
pub enum Refusal {
    /// The request itself, or its work, is at fault.
    Status(StatusCode),
    /// The lock was not acquired, or was lost. The client gets a status, a title and the time after which
    /// to try again. The text of the error names hosts and processes, and goes to the log only.
    Lock(LockError),
}

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        eprintln!("{error}");
        Self::Lock(error)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        eprintln!("{error}");
        Self::Status(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Status(status) => status.into_response(),
            Self::Lock(error) => error.into_response(),
        }
    }
}
