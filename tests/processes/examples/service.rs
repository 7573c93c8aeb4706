//! Web services among the examples.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use rustix::process::{Pid, Signal, kill_process};
use test_support::fixtures::SOON;
use test_support::{Helper, Process, eventually, eventually_some};

/// An instance of a service that listens.
pub(super) struct Service {
    pub(super) process: Process,
    address: String,
}

impl Service {
    /// Starts the program, and waits until it listens.
    #[track_caller]
    pub(super) fn start(program: &Helper) -> Self {
        let process = program.spawn();
        let address = eventually_some(SOON, || {
            let lines = process.lines();
            // The log may have lines before it.
            let mut addresses = lines
                .iter()
                .filter_map(|line| line.strip_prefix("listening on http://"));
            addresses.next().map(str::to_owned)
        });
        Self { process, address }
    }

    /// Sends a GET, and returns the status and the text of the reply.
    #[track_caller]
    pub(super) fn get(&self, path: &str) -> (u16, String) {
        send(&self.address, "GET", path, &[], "")
    }

    /// Sends a POST, and returns the status and the text of the reply.
    #[track_caller]
    pub(super) fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        send(&self.address, "POST", path, headers, body)
    }

    /// Sends a POST, and disconnects when the service works on it, as a closed tab does.
    #[track_caller]
    pub(super) fn post_and_disconnect(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        works: impl FnMut() -> bool,
    ) {
        let stream = request(&self.address, "POST", path, headers, "");
        eventually(SOON, works);
        let closed = stream.shutdown(Shutdown::Both);
        closed.expect("the connection is open until then");
    }
}

/// Sends a request, and returns the connection, from which the reply can be read.
#[track_caller]
fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the instance listens");
    let timeout = stream.set_read_timeout(Some(SOON));
    timeout.expect("the timeout is not zero");
    let headers: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let headers = headers.concat();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{headers}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("the instance reads");
    stream
}

/// Sends a request, and returns the status and the text of the reply.
#[track_caller]
pub(super) fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let mut stream = request(address, method, path, headers, body);
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .expect("the instance replies in time");
    let (head, text) = reply.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status line"), text.trim().to_owned())
}

/// Requests a process to end, as a supervisor does.
#[track_caller]
pub(super) fn terminate(process: &Process) {
    let pid = i32::try_from(process.pid()).expect("process ids fit in an i32");
    let pid = Pid::from_raw(pid).expect("process ids are positive");
    kill_process(pid, Signal::TERM).expect("the process runs");
}
