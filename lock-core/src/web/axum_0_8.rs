//! Responses of axum 0.8.

use axum_core::body::Body;
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};

use super::from_skipped::{FromSkipped, OUTCOME};
use super::problem::{self, Problem};
use crate::error::LockError;

impl IntoResponse for LockError {
    /// Makes the response of the error's [`Problem`]. The extensions of the response hold this error,
    /// for logs: clients do not see it.
    fn into_response(self) -> Response {
        Problem::from(&self).into_response()
    }
}

impl IntoResponse for Problem {
    /// Makes the response. Its extensions hold the [`LockError`] and this problem.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        let status = StatusCode::from_u16(self.status);
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static(problem::CONTENT_TYPE);
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        let extensions = response.extensions_mut();
        extensions.insert(self.error().clone());
        extensions.insert(self);
        response
    }
}

impl FromSkipped for Response {
    /// Returns 202 with an empty body and the header `lock-outcome: skipped`.
    fn skipped() -> Self {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = FromSkipped::skipped();
        let (name, value) = OUTCOME;
        let name = HeaderName::from_static(name);
        let headers = response.headers_mut();
        headers.insert(name, HeaderValue::from_static(value));
        response
    }
}

impl FromSkipped for StatusCode {
    /// Returns 202.
    fn skipped() -> Self {
        Self::ACCEPTED
    }
}
