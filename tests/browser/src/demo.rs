//! The flash sale as a process of its own.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use test_support::fixtures::SOON;
use test_support::process::Process;
use test_support::{Helper, eventually_some};

/// The environment variable with the path of the program.
const PROGRAM: &str = "FLASH_SALE";

/// A running flash sale. Dropping it kills it; its guards then end its other processes.
#[derive(Debug)]
pub struct Demo {
    _process: Process,
    /// The page.
    pub url: String,
    /// The line that it printed.
    pub line: String,
}

impl Demo {
    /// Starts the flash sale on a free port.
    pub fn start(arguments: &[&str]) -> Self {
        let program = std::env::var_os(PROGRAM);
        let program = program.expect("these tests need the flash sale; run ./scripts/browser");
        let helper = Helper::new(program).arg("--port").arg("0");
        let helper = arguments
            .iter()
            .fold(helper, |helper, argument| helper.arg(*argument));
        let process = helper.spawn();
        let line = eventually_some(SOON, || {
            assert!(!process.has_ended(), "the flash sale could not start");
            process.lines().first().cloned()
        });
        let url = line.split(' ').find(|word| word.starts_with("http://"));
        let url = url.expect("the first line has the address").to_owned();
        Self {
            _process: process,
            url,
            line,
        }
    }

    /// Returns the state of the page as JSON.
    pub fn state(&self) -> Value {
        serde_json::from_str(&self.send("GET", "/state", "")).expect("the state is JSON")
    }

    /// Presses a button of the page.
    pub fn press(&self, action: &str) {
        self.send("POST", "/control", &format!("action={action}"));
    }

    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("the flash sale listens");
        stream
            .set_read_timeout(Some(SOON))
            .expect("the timeout is not zero");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             accept: application/json\r\ncontent-length: {}\r\n\
             content-type: application/x-www-form-urlencoded\r\n\r\n{body}",
            body.len()
        )
        .expect("the flash sale reads");
        let mut reply = String::new();
        stream
            .read_to_string(&mut reply)
            .expect("the flash sale replies in time");
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }
}
