//! Tests of the documented behaviour of this package, on a real server.

use std::io;

use test_support::fixtures::ms;
use test_support::{Connection, Proxy, Reply};

#[cfg(target_os = "linux")]
mod clock;
mod process;
mod proxy;
mod server;
mod stand_in;
mod waiting;

fn via(proxy: &Proxy) -> Connection {
    Connection::open(proxy.address(), None).unwrap()
}

/// For connections that are expected to hang, so that the test does not hang.
fn impatient(connection: Connection) -> Connection {
    connection.set_patience(ms(200)).unwrap();
    connection
}

fn timed_out(answer: io::Result<Reply>) -> bool {
    // The kind of error depends on the system.
    matches!(
        answer.unwrap_err().kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
