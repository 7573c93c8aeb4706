//! A client for HTTP/2 and gRPC over a real socket. It does what a test tells it, and nothing by
//! itself: no deadline of its own, and no cancel.

use std::fmt::Write;
use std::net::SocketAddr;

use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use prost::Message;
use prost::bytes::{BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A connection.
#[derive(Debug)]
pub struct H2Client {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

/// A request that was sent.
#[derive(Debug)]
pub struct H2Stream {
    stream: SendStream<Bytes>,
    response: ResponseFuture,
}

/// A response.
#[derive(Debug)]
pub struct H2Reply {
    /// The status, such as 200.
    pub status: u16,
    /// The headers at the end. For a response without a body, these are its only headers.
    pub trailers: HeaderMap,
    /// All headers as text, and the body.
    pub bytes: Vec<u8>,
}

impl H2Client {
    /// Connects, without TLS.
    pub async fn connect(server: SocketAddr) -> Self {
        let socket = TcpStream::connect(server).await.expect("it listens");
        let (requests, connection) = h2::client::handshake(socket).await.expect("it is HTTP/2");
        Self {
            requests,
            connection: tokio::spawn(connection),
        }
    }

    /// Sends a request with a body.
    pub async fn start(&mut self, path: &str, body: Bytes, headers: &[(&str, &str)]) -> H2Stream {
        let request = Request::post(format!("http://test{path}"));
        let request = headers
            .iter()
            .fold(request, |r, (name, value)| r.header(*name, *value));
        let request = request.body(()).expect("it is valid");
        let mut requests = self
            .requests
            .clone()
            .ready()
            .await
            .expect("it is connected");
        let (response, mut stream) = requests.send_request(request, false).expect("it is valid");
        stream.send_data(body, true).expect("the stream is open");
        H2Stream { stream, response }
    }

    /// Starts a call of a gRPC method.
    pub async fn start_call(
        &mut self,
        path: &str,
        message: &impl Message,
        headers: &[(&str, &str)],
    ) -> H2Stream {
        let mut all = vec![("content-type", "application/grpc"), ("te", "trailers")];
        all.extend(headers);
        self.start(path, frame(message), &all).await
    }

    /// Calls a gRPC method.
    ///
    /// # Errors
    ///
    /// Fails if there is no response.
    pub async fn call(
        &mut self,
        path: &str,
        message: &impl Message,
        headers: &[(&str, &str)],
    ) -> Result<H2Reply, h2::Error> {
        self.start_call(path, message, headers).await.reply().await
    }

    /// Cuts the connection, without a goodbye of HTTP/2.
    pub async fn cut(self) {
        self.connection.abort();
        // The socket is closed when the task is gone.
        let ended = self.connection.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()));
    }
}

impl H2Stream {
    /// Sends RST_STREAM with the reason CANCEL.
    pub fn reset(mut self) {
        self.stream.send_reset(h2::Reason::CANCEL);
    }

    /// Waits for the response.
    ///
    /// # Errors
    ///
    /// Fails if there is no response.
    pub async fn reply(self) -> Result<H2Reply, h2::Error> {
        let (head, mut body) = self.response.await?.into_parts();
        let mut bytes = text(&head.headers).into_bytes();
        while let Some(data) = next(&mut body).await? {
            bytes.extend(&data);
        }
        let trailers = body.trailers().await?;
        bytes.extend(trailers.iter().flat_map(|map| text(map).into_bytes()));
        Ok(H2Reply {
            status: head.status.as_u16(),
            trailers: trailers.unwrap_or(head.headers),
            bytes,
        })
    }
}

async fn next(body: &mut RecvStream) -> Result<Option<Bytes>, h2::Error> {
    let Some(data) = body.data().await.transpose()? else {
        return Ok(None);
    };
    body.flow_control().release_capacity(data.len())?;
    Ok(Some(data))
}

fn text(headers: &HeaderMap) -> String {
    let mut text = String::new();
    for (name, value) in headers {
        let value = value.as_bytes().escape_ascii();
        writeln!(text, "{name}: {value}").expect("a string takes all");
    }
    text
}

/// The message with its header of gRPC: not compressed, and its length.
fn frame(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("it is short"));
    frame.extend_from_slice(&message);
    frame.freeze()
}
