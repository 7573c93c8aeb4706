use std::io::Read;

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
