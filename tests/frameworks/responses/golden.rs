//! Each row of the mapping, as each framework sends it.

use std::error::Error;

use actix_web::ResponseError;
use actix_web::body::to_bytes;
use axum::response::IntoResponse;
use frameworks::client::problem;
use lock_core::LockError;
use test_support::RedisServer;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::errors::{Row, every_row};

/// The response without its status line and its length, which a server adds.
fn http(row: &Row) -> String {
    let retry_after = row.retry_after;
    let body = problem(row.slug, row.title, row.status, retry_after);
    let retry_after = retry_after.map_or(String::new(), |s| format!("retry-after: {s}\n"));
    format!(
        "{}\ncontent-type: application/problem+json\ncache-control: no-store\n{retry_after}\n{body}",
        row.status
    )
}

/// The headers in the order of [`http`]. Another header is at the end.
fn lines<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let rank = |name: &str| {
        let names = ["content-type", "cache-control", "retry-after"];
        names.iter().position(|known| *known == name).unwrap_or(9)
    };
    let mut headers: Vec<_> = headers.collect();
    headers.sort_by_key(|(name, _)| rank(name));
    let line = |(name, value): (&str, &[u8])| format!("{name}: {}\n", value.escape_ascii());
    headers.into_iter().map(line).collect()
}

#[tokio::test]
async fn axum_error_bodies() {
    for row in every_row(&RedisServer::start()).await {
        let response = row.error.clone().into_response();
        let logged = response.extensions().get::<LockError>();
        let logged = logged.expect("it is there for logs").to_string();
        assert_eq!(logged, row.error.to_string());
        let status = response.status().as_u16();
        let headers = response.headers().iter();
        let headers = lines(headers.map(|(name, value)| (name.as_str(), value.as_bytes())));
        let body = axum::body::to_bytes(response.into_body(), 1_000).await;
        let body = String::from_utf8(body.expect("it is short").into()).expect("it is text");
        assert_eq!(
            format!("{status}\n{headers}\n{body}"),
            http(&row),
            "{row:?}"
        );
    }
}

#[tokio::test]
async fn actix_error_bodies() {
    for row in every_row(&RedisServer::start()).await {
        let response = actix_web::HttpResponse::from_error(row.error.clone());
        let logged = response.error().expect("it is there for logs");
        let logged: &LockError = logged.as_error().expect("it is the error itself");
        assert_eq!(logged.to_string(), row.error.to_string());
        assert_eq!(response.status(), row.error.status_code());
        let status = response.status().as_u16();
        let headers = response.headers().iter();
        let headers = lines(headers.map(|(name, value)| (name.as_str(), value.as_bytes())));
        let body = to_bytes(response.into_body())
            .await
            .expect("it is in memory");
        let body = String::from_utf8(body.into()).expect("it is text");
        assert_eq!(
            format!("{status}\n{headers}\n{body}"),
            http(&row),
            "{row:?}"
        );
    }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Aborted => "ABORTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::Internal => "INTERNAL",
        code => panic!("no row has {code:?}"),
    }
}

#[tokio::test]
async fn tonic_status_details() {
    for row in every_row(&RedisServer::start()).await {
        let status = Status::from(row.error.clone());
        let source = status.source().expect("it is there for logs");
        let source: &LockError = source.downcast_ref().expect("it is the error itself");
        assert_eq!(source.to_string(), row.error.to_string());
        // What a client reads from the headers.
        let sent = status.into_http::<()>();
        let status = Status::from_header_map(sent.headers()).expect("it has a status");
        assert_eq!(name(status.code()), row.code, "{row:?}");
        assert_eq!(status.message(), row.title.to_lowercase());
        let metadata = status.metadata().clone().into_headers();
        let names: Vec<_> = metadata.keys().map(http::HeaderName::as_str).collect();
        assert_eq!(names, ["content-type"], "{row:?}");
        let details = status.check_error_details().expect("they can be read");
        let info = details.error_info().expect("there is an ErrorInfo");
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            (row.reason, "lock-core")
        );
        assert!(info.metadata.is_empty());
        let delay = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(
            delay.map(|delay| delay.as_secs()),
            row.retry_after,
            "{row:?}"
        );
        let kinds = status
            .check_error_details_vec()
            .expect("they can be read")
            .len();
        assert_eq!(kinds, 1 + usize::from(row.retry_after.is_some()), "{row:?}");
    }
}
