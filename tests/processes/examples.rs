//! Runs every example and checks its output.

mod beside_redisson;
mod check_my_redis;
mod cluster;
mod cookbook;
mod fenced;
mod fenced_http;
mod fenced_s3;
mod gallery;
mod nightly_job;
mod orders;
mod otel;
mod quickstart;
mod rights;
mod safe_point;
mod service;
mod typed;
mod web_service;

use tests::example;
