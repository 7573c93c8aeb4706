//! The other side of the socket is the test.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::redis::deployment::NodeAddress;
use crate::redis::node::Node;
use crate::redis::report::ConnectionReport;
use crate::telemetry::ConnectionKind;
use lock_protocol::resp::OPERATOR_REPLY;

mod pushes;
mod stress;

const PATIENCE: Duration = Duration::from_secs(60);

fn link() -> Arc<Link> {
    let node = Arc::new(Node::new(NodeAddress::Unix("/socket".into())));
    let report = ConnectionReport {
        reporter: Arc::default(),
        server: Arc::clone(&node.server),
        kind: ConnectionKind::Command,
    };
    Arc::new(Link::new(node, report, PATIENCE))
}

fn connected() -> (Arc<Transport>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let transport = Transport::start(Stream::Unix(ours), link());
    (Arc::new(transport), theirs)
}

fn expected(replies: usize) -> Expected {
    Expected {
        replies,
        largest: OPERATOR_REPLY,
    }
}

/// Sends a text as it is, and waits for `count` replies.
async fn call(transport: &Transport, text: &str, count: usize) -> io::Result<String> {
    let write = |out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
    let replies = transport.call(write, expected(count)).await?;
    Ok(String::from_utf8(replies).unwrap())
}

/// Starts a call, and waits until its command has arrived.
async fn start(
    transport: &Arc<Transport>,
    server: &mut UnixStream,
    text: &'static str,
) -> tokio::task::JoinHandle<io::Result<String>> {
    let transport = Arc::clone(transport);
    let calling = tokio::spawn(async move { call(&transport, text, 1).await });
    expect(server, text).await;
    calling
}

async fn expect(server: &mut UnixStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

async fn reply(server: &mut UnixStream, text: &str) {
    server.write_all(text.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn each_caller_gets_its_own_replies() {
    let (transport, mut server) = connected();
    let first = start(&transport, &mut server, "a").await;
    let second = start(&transport, &mut server, "b").await;
    // A reply may arrive in pieces, and several may arrive at once.
    for piece in ["$1\r", "\n", "x\r\n:7\r"] {
        reply(&mut server, piece).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(first.await.unwrap().unwrap(), "$1\r\nx\r\n");
    reply(&mut server, "\n").await;
    assert_eq!(second.await.unwrap().unwrap(), ":7\r\n");
}

#[tokio::test]
async fn call_with_several_commands_gets_as_many_replies() {
    let (transport, mut server) = connected();
    let calling = call(&transport, "abc", 3);
    let serving = async {
        expect(&mut server, "abc").await;
        reply(&mut server, ":1\r\n:2\r\n").await;
        tokio::task::yield_now().await;
        reply(&mut server, "*1\r\n:3\r\n").await;
    };
    let (replies, ()) = tokio::join!(calling, serving);
    assert_eq!(replies.unwrap(), ":1\r\n:2\r\n*1\r\n:3\r\n");
}

#[tokio::test]
async fn burst_of_callers_is_served_in_order() {
    const CALLERS: usize = 200;
    let (transport, mut server) = connected();
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let transport = Arc::clone(&transport);
            tokio::spawn(async move { call(&transport, &format!("{number:03}"), 1).await })
        })
        .collect();
    let all = |text: &dyn Fn(usize) -> String| (0..CALLERS).map(text).collect::<Vec<_>>().concat();
    expect(&mut server, &all(&|number| format!("{number:03}"))).await;
    reply(&mut server, &all(&|number| format!(":{number}\r\n"))).await;
    for (number, caller) in callers.into_iter().enumerate() {
        assert_eq!(caller.await.unwrap().unwrap(), format!(":{number}\r\n"));
    }
    let state = transport.shared.state.lock();
    assert_eq!(state.free.len(), state.slots.len(), "all slots are free");
    assert!(state.awaited.is_empty() && state.out.is_empty());
}

#[tokio::test]
async fn reply_to_a_dropped_call_goes_to_no_other_caller() {
    let (transport, mut server) = connected();
    let dropped = start(&transport, &mut server, "a").await;
    let second = start(&transport, &mut server, "b").await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    reply(&mut server, ":1\r\n:2\r\n").await;
    assert_eq!(second.await.unwrap().unwrap(), ":2\r\n");
    assert_eq!(transport.shared.state.lock().free.len(), 2);
    // A call that is dropped before its first poll sends nothing.
    drop(transport.call(|out: &mut Vec<u8>| out.push(b'x'), expected(1)));
    let third = start(&transport, &mut server, "c").await;
    reply(&mut server, ":3\r\n").await;
    assert_eq!(third.await.unwrap().unwrap(), ":3\r\n");
}

#[tokio::test]
async fn command_that_exceeds_the_buffer_of_the_socket_is_sent_whole() {
    let (transport, mut server) = connected();
    let long = "x".repeat(2_000_000);
    let calling = async {
        let both = [call(&transport, &long, 1), call(&transport, "end", 1)];
        let [first, second] = both;
        tokio::join!(first, second)
    };
    let serving = async {
        let mut bytes = vec![0; long.len() + 3];
        server.read_exact(&mut bytes).await.unwrap();
        assert!(bytes.ends_with(b"xend"));
        reply(&mut server, &format!("${}\r\n{long}\r\n:2\r\n", long.len())).await;
    };
    let ((first, second), ()) = tokio::join!(calling, serving);
    assert_eq!(first.unwrap().len(), long.len() + 12);
    assert_eq!(second.unwrap(), ":2\r\n");
}

#[tokio::test]
async fn broken_connection_fails_all_calls() {
    let (transport, mut server) = connected();
    let waiting = start(&transport, &mut server, "a").await;
    drop(server);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let error = call(&transport, "b", 1).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn unexpected_bytes_break_the_connection_and_pushes_do_not() {
    for (bytes, is_fine) in [
        (">2\r\n+a\r\n+b\r\n:1\r\n", true),
        (":1\r\n:2\r\n", false),
        ("HTTP/1.1 400 Bad Request\r\n", false),
    ] {
        let (transport, mut server) = connected();
        let waiting = start(&transport, &mut server, "a").await;
        reply(&mut server, bytes).await;
        let first = waiting.await.unwrap();
        assert_eq!(first.is_ok(), bytes.contains(":1\r\n"), "{bytes:?}");
        let next = tokio::spawn(async move { call(&transport, "b", 1).await });
        let _may_be_closed = server.write_all(b":2\r\n").await;
        match next.await.unwrap() {
            Ok(text) => assert!(is_fine && text == ":2\r\n", "{bytes:?}"),
            Err(error) => {
                assert!(!is_fine, "{bytes:?}");
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
            }
        }
    }
}

#[tokio::test]
async fn connection_that_failed_is_closed_while_its_handles_live() {
    let (transport, mut server) = connected();
    reply(&mut server, ":1\r\n").await;
    let mut rest = Vec::new();
    let closed = server.read_to_end(&mut rest);
    let closed = tokio::time::timeout(Duration::from_secs(5), closed).await;
    closed.expect("the server sees the end").unwrap();
    assert!(call(&transport, "a", 1).await.is_err());
}

#[tokio::test]
async fn call_without_commands_returns_at_once() {
    let (transport, mut server) = connected();
    assert_eq!(call(&transport, "", 0).await.unwrap(), "");
    let next = start(&transport, &mut server, "a").await;
    reply(&mut server, ":1\r\n").await;
    assert_eq!(next.await.unwrap().unwrap(), ":1\r\n");
}

#[tokio::test]
async fn commands_of_dropped_calls_are_sent_before_the_connection_ends() {
    let (transport, mut server) = connected();
    let mut cx = Context::from_waker(Waker::noop());
    for text in ["a", "b", "c"] {
        let write = |out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
        let mut calling = transport.call(write, expected(1));
        assert!(Pin::new(&mut calling).poll(&mut cx).is_pending());
    }
    drop(transport);
    let mut sent = String::new();
    server.read_to_string(&mut sent).await.unwrap();
    assert_eq!(sent, "abc");
}

#[tokio::test]
async fn dropping_the_transport_closes_the_socket() {
    let (transport, mut server) = connected();
    tokio::task::yield_now().await;
    drop(transport);
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

#[test]
fn end_of_the_runtime_fails_later_calls() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let first = runtime();
    let (transport, _server) = first.block_on(async { connected() });
    drop(first);
    let error = runtime().block_on(call(&transport, "a", 1)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
}

/// An endless reply must not fill the memory, however slowly it arrives.
#[tokio::test]
async fn reply_beyond_its_limit_ends_the_connection() {
    let limited = |largest| Expected {
        replies: 1,
        largest,
    };
    for (bytes, limit) in [
        ("$101\r\n", 100),
        ("*50\r\n", 100),
        ("+xxxxxxxxxxxxxxxxxxxx", 10),
    ] {
        let (transport, mut server) = connected();
        let write = |out: &mut Vec<u8>| out.push(b'a');
        let calling = transport.call(write, limited(limit));
        let serving = async {
            expect(&mut server, "a").await;
            reply(&mut server, bytes).await;
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).await
        };
        let (called, _closed) = tokio::join!(calling, serving);
        let error = called.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        assert!(error.to_string().contains("more than"), "{error}");
    }
}

/// Whatever the server still sends there is left unread, because it may never stop.
#[tokio::test]
async fn given_up_connection_ends_with_its_last_waiting_caller() {
    let (transport, mut server) = connected();
    let dropped = start(&transport, &mut server, "a").await;
    let waiting = start(&transport, &mut server, "b").await;
    transport.give_up();
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    reply(&mut server, ":1\r\n:2\r\n").await;
    assert_eq!(waiting.await.unwrap().unwrap(), ":2\r\n");
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(5), server.read_to_end(&mut rest));
    closed.await.expect("the connection ends").unwrap();

    let (transport, mut server) = connected();
    let dropped = start(&transport, &mut server, "a").await;
    transport.give_up();
    dropped.abort();
    let closed = tokio::time::timeout(Duration::from_secs(5), server.read_to_end(&mut rest));
    closed.await.expect("nobody waits").unwrap();
    assert!(call(&transport, "b", 1).await.is_err());
}

/// A reply shows that the server is alive, as long as there are commands for which it has none.
#[tokio::test]
async fn link_hears_the_replies_to_earlier_commands() {
    let (transport, mut server) = connected();
    let first = start(&transport, &mut server, "a").await;
    let second = start(&transport, &mut server, "b").await;
    reply(&mut server, ":1\r\n").await;
    assert_eq!(first.await.unwrap().unwrap(), ":1\r\n");
    assert!(!transport.shared.link.stays_silent(PATIENCE).1);
    reply(&mut server, ":2\r\n").await;
    assert_eq!(second.await.unwrap().unwrap(), ":2\r\n");
}

/// A server that only pushes may have ceased to reply.
#[tokio::test]
async fn link_does_not_hear_pushes() {
    let (transport, mut server) = connected();
    let first = start(&transport, &mut server, "a").await;
    for _ in 0..100 {
        reply(&mut server, ">1\r\n+x\r\n").await;
        tokio::task::yield_now().await;
    }
    let (_, has_ended) = transport.shared.link.stays_silent(PATIENCE);
    assert!(has_ended);
    drop(first);
}
