//! A client for HTTP/1.1 over a real socket. It keeps each byte of a response.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status, such as 200.
    pub status: u16,
    /// The lines of the headers, without the status line.
    pub headers: Vec<String>,
    /// The body.
    pub body: String,
    /// Each byte that the server sent.
    pub bytes: Vec<u8>,
}

impl Reply {
    /// Returns the value of a header. The name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter_map(|line| line.split_once(": "));
        lines
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    fn parse(bytes: Vec<u8>) -> Self {
        let text = String::from_utf8(bytes.clone()).expect("the response is text");
        let (head, body) = text.split_once("\r\n\r\n").expect("the head ends");
        let mut lines = head.lines().map(ToOwned::to_owned);
        let status = lines.next().expect("there is a status line");
        let status = status.split(' ').nth(1).expect("it has a status");
        Self {
            status: status.parse().expect("the status is a number"),
            headers: lines.collect(),
            body: body.to_owned(),
            bytes,
        }
    }
}

/// Sends a request on a connection of its own and waits for the response.
pub async fn send(server: SocketAddr, method: &str, path: &str, json: &str) -> Reply {
    let mut connection = start(server, method, path, json).await;
    let mut bytes = Vec::new();
    let read = connection.read_to_end(&mut bytes).await;
    read.expect("the server closes the connection after the response");
    Reply::parse(bytes)
}

/// Sends a request and returns the connection, without reading from it.
pub async fn start(server: SocketAddr, method: &str, path: &str, json: &str) -> TcpStream {
    let mut connection = TcpStream::connect(server).await.expect("it listens");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    );
    let sent = connection.write_all(request.as_bytes()).await;
    sent.expect("the server reads");
    connection
}

/// Returns the body of a problem, as a client must see it.
pub fn problem(slug: &str, title: &str, status: u16, retry_after: Option<u64>) -> String {
    let base = "https://docs.rs/lock-core/latest/lock_core/guide/problems/index.html#";
    let retry_after = retry_after.map_or(String::new(), |s| format!(r#","retry_after":{s}"#));
    format!(r#"{{"type":"{base}{slug}","title":"{title}","status":{status}{retry_after}}}"#)
}

/// Returns the body of a request whose lock has another holder since less than a second.
pub fn contended() -> String {
    problem("contended", "The resource is in use", 409, Some(1))
}

/// As [`contended`], for a request that waited.
pub fn timeout() -> String {
    problem("timeout", "The resource was not free in time", 409, Some(1))
}

/// Returns the body of a request without a lock server.
pub fn unavailable() -> String {
    problem(
        "unavailable",
        "The lock service is not available",
        503,
        Some(2),
    )
}
