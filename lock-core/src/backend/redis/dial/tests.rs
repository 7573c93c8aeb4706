use std::io::Read;
use std::time::Duration;

use redis::ProtocolVersion;
use tokio::io::AsyncReadExt;

use super::super::connector::Connector;
use super::*;

/// A forked child drops its copies while the parent uses the connection.
#[tokio::test]
async fn drop_of_the_write_half_does_not_shut_the_socket_down() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut theirs = theirs.into_std().unwrap();
    let (read, write) = Stream::Unix(ours).into_split();
    drop(write);
    let error = theirs.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(read);
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}

/// A server that cannot be reached any more sends no reply, and the driver must not wait for it. The documentation of
/// the client library says that it would.
#[tokio::test]
async fn dropped_connection_of_the_library_closes_the_socket_although_a_reply_is_missing() {
    let (ours, mut server) = UnixStream::pair().unwrap();
    let login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name();
    let setup = Setup::begin(Stream::Unix(ours), &login, Connector::config()).await;
    let mut connection = setup.unwrap().spawn();
    let ping = redis::cmd("PING");
    let reply = connection.send_packed_command(&ping);
    let mut sent = [0; 14];
    tokio::select! {
        reply = reply => panic!("the server does not reply: {reply:?}"),
        read = server.read_exact(&mut sent) => assert_eq!(read.unwrap(), sent.len()),
    }
    drop(connection);
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), server.read_to_end(&mut rest));
    closed.await.expect("the socket is closed").unwrap();
    assert!(rest.is_empty());
}
