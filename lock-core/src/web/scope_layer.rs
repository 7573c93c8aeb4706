//! The manager of the requests of one app.

use std::task::{Context, Poll};

use tokio::task::futures::TaskLocalFuture;
use tower_layer::Layer;
use tower_service::Service;

use crate::manager::{LockManager, SCOPE};

/// A layer in which the attribute uses one manager, as [`LockManager::scope`] does for a future.
///
/// Use it for a `Router` of axum and for `tonic::transport::Server::layer`. So a service needs no
/// global manager, and a test can run several apps with several managers. With actix-web, call
/// [`LockManager::scope`] in `middleware::from_fn`; the guide shows it.
///
/// ```
/// use lock_core::LockManager;
/// use lock_core::web::ScopeLayer;
///
/// # fn app<L: tower_layer::Layer<()>>(layer: L) {}
/// let locks = LockManager::in_memory();
/// // axum: Router::new().route(..).layer(layer)
/// let layer = ScopeLayer::new(locks);
/// # app(layer);
/// ```
///
/// Two things run outside of the scope: a task that a handler spawns, and a response body that is
/// streamed. There, pass `manager = ..`.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing unless it is added to a service"]
pub struct ScopeLayer {
    locks: LockManager,
}

impl ScopeLayer {
    /// Makes a layer whose requests use this manager.
    pub fn new(locks: LockManager) -> Self {
        Self { locks }
    }
}

impl<S> Layer<S> for ScopeLayer {
    type Service = ScopeService<S>;

    fn layer(&self, inner: S) -> ScopeService<S> {
        ScopeService {
            inner,
            locks: self.locks.clone(),
        }
    }
}

/// The service that [`ScopeLayer`] makes.
#[derive(Clone, Debug)]
pub struct ScopeService<S> {
    inner: S,
    locks: LockManager,
}

impl<S: Service<R>, R> Service<R> for ScopeService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = TaskLocalFuture<LockManager, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The call itself may already use the manager, not only its future.
        let call = || self.inner.call(request);
        let future = SCOPE.sync_scope(self.locks.clone(), call);
        SCOPE.scope(self.locks.clone(), future)
    }
}
