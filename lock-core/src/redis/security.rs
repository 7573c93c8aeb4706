//! Makes the TLS client of a manager.

use std::sync::Arc;

use super::dial::SharedTls;
use super::place::{Place, TlsFiles};
use crate::config::server::Security;
#[cfg(feature = "__tls")]
use crate::error::BackendErrorKind;
use crate::error::LockError;
use crate::telemetry::Reporter;

/// Returns the TLS client if the servers of this place are reached by TLS.
#[cfg(feature = "__tls")]
pub(super) async fn client(
    place: &Place,
    security: &Security,
    reporter: &Arc<Reporter>,
) -> Result<Option<SharedTls>, LockError> {
    use super::tls::TlsClient;

    let Some(files) = place.tls.clone() else {
        return match security {
            Some(_) => Err(LockError::advised(
                BackendErrorKind::InvalidUrl,
                "`tls` sets certificates, and the address of the server is one without TLS",
                "use rediss:// instead of redis://, or `use_tls` of the endpoint",
            )),
            None => Ok(None),
        };
    };
    let tls = security.clone().unwrap_or_default();
    let reporter = Arc::clone(reporter);
    // Reading hundreds of certificates takes milliseconds.
    let made = tokio::task::spawn_blocking(move || TlsClient::new(tls, files, reporter)).await;
    let made = made.map_err(|_ended| LockError::NoRuntime)?;
    Ok(Some(Arc::new(made?)))
}

/// Returns a TLS client for each kind of access with TLS that these places have.
#[cfg(feature = "__tls")]
pub(super) async fn clients(
    places: &[Place],
    security: &Security,
    reporter: &Arc<Reporter>,
) -> Result<Vec<(TlsFiles, SharedTls)>, LockError> {
    let mut clients = Vec::new();
    for place in places {
        let Some(files) = place.tls.clone() else {
            continue;
        };
        if clients.iter().all(|(known, _)| *known != files)
            && let Some(made) = client(place, security, reporter).await?
        {
            clients.push((files, made));
        }
    }
    if let (true, Some(place)) = (clients.is_empty(), places.first()) {
        // An error, if there are settings without a use.
        let _none = client(place, security, reporter).await?;
    }
    Ok(clients)
}

/// Without the feature, a URL cannot demand TLS.
#[cfg(not(feature = "__tls"))]
#[expect(clippy::unused_async, reason = "with TLS it waits for files")]
pub(super) async fn client(
    _place: &Place,
    _security: &Security,
    _reporter: &Arc<Reporter>,
) -> Result<Option<SharedTls>, LockError> {
    Ok(None)
}

#[cfg(not(feature = "__tls"))]
#[expect(clippy::unused_async, reason = "with TLS it waits for files")]
pub(super) async fn clients(
    _places: &[Place],
    _security: &Security,
    _reporter: &Arc<Reporter>,
) -> Result<Vec<(TlsFiles, SharedTls)>, LockError> {
    Ok(Vec::new())
}
