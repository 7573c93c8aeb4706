//! Responses of actix-web 4.

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, Responder, ResponseError};

use super::from_skipped::{FromSkipped, OUTCOME};
use super::mapping::ProblemKind;
use super::problem::{self, Problem};
use crate::error::LockError;

impl ResponseError for LockError {
    /// Returns the status of the error's [`Problem`].
    fn status_code(&self) -> StatusCode {
        status(ProblemKind::of(self).status())
    }

    /// Makes the response of the error's [`Problem`]. For a handler's error, `HttpResponse::error`
    /// returns the error itself, for logs: clients do not see it.
    fn error_response(&self) -> HttpResponse {
        Problem::from(self).into()
    }
}

impl From<Problem> for HttpResponse {
    /// Makes the response, for the `error_response` of your own error type. Its extensions hold the
    /// [`LockError`].
    fn from(problem: Problem) -> Self {
        let mut response = Self::build(status(problem.status));
        response.insert_header((CONTENT_TYPE, problem::CONTENT_TYPE));
        response.insert_header((CACHE_CONTROL, "no-store"));
        if let Some(seconds) = problem.retry_after_seconds() {
            response.insert_header((RETRY_AFTER, seconds));
        }
        let mut response = response.body(problem.to_json());
        response.extensions_mut().insert(problem.error().clone());
        response
    }
}

impl Responder for Problem {
    type Body = BoxBody;

    /// Makes the response. Its extensions hold the [`LockError`].
    fn respond_to(self, _: &HttpRequest) -> HttpResponse {
        self.into()
    }
}

impl FromSkipped for HttpResponse {
    /// Returns 202 with an empty body and the header `lock-outcome: skipped`.
    fn skipped() -> Self {
        Self::Accepted().insert_header(OUTCOME).finish()
    }
}

fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
