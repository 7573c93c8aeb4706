//! Changes the error responses of an app in one place.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum_core::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use tower_layer::Layer;
use tower_service::Service;

use super::problem::Problem;
use crate::error::LockError;

/// A layer that changes each response which carries a [`LockError`].
///
/// The function gets the error and its problem. When a handler returned a changed [`Problem`], the
/// function gets that one. The layer replaces status and body of the response. It keeps the headers,
/// except those of the problem.
///
/// ```
/// use lock_core::LockError;
/// use lock_core::web::{Problem, ProblemLayer};
///
/// // axum: Router::new().route(..).layer(layer)
/// let layer = ProblemLayer::new(|_: &LockError, problem: Problem| {
///     problem.type_base("https://api.example.com/problems/")
/// });
/// # fn app<L>(layer: L) {}
/// # app(layer);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing unless it is added to a service"]
pub struct ProblemLayer<F> {
    change: F,
}

impl<F: Fn(&LockError, Problem) -> Problem> ProblemLayer<F> {
    /// Makes a layer that calls this function for each response with a [`LockError`].
    pub fn new(change: F) -> Self {
        Self { change }
    }
}

impl<S, F: Clone> Layer<S> for ProblemLayer<F> {
    type Service = ProblemService<S, F>;

    fn layer(&self, inner: S) -> ProblemService<S, F> {
        ProblemService {
            inner,
            change: self.change.clone(),
        }
    }
}

/// The service that [`ProblemLayer`] makes.
#[derive(Clone, Debug)]
pub struct ProblemService<S, F> {
    inner: S,
    change: F,
}

impl<S, F, R> Service<R> for ProblemService<S, F>
where
    S: Service<R, Response = Response>,
    S::Future: Send + 'static,
    F: Fn(&LockError, Problem) -> Problem + Clone + Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let response = self.inner.call(request);
        let change = self.change.clone();
        Box::pin(async move {
            let mut response = response.await?;
            let extensions = response.extensions_mut();
            if let Some(error) = extensions.remove::<LockError>() {
                let problem = extensions.remove::<Problem>();
                let problem = problem.unwrap_or_else(|| Problem::from(&error));
                replace(&mut response, change(&error, problem));
            }
            Ok(response)
        })
    }
}

/// Puts the problem into a response that other layers may have changed already.
fn replace(response: &mut Response, problem: Problem) {
    let (parts, body) = problem.into_response().into_parts();
    let headers = response.headers_mut();
    headers.remove(RETRY_AFTER);
    // It is that of the replaced body.
    headers.remove(CONTENT_LENGTH);
    headers.extend(parts.headers);
    response.extensions_mut().extend(parts.extensions);
    *response.status_mut() = parts.status;
    *response.body_mut() = body;
}
