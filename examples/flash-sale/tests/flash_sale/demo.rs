//! A running demo, and its page as JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use test_support::fixtures::SOON;
use test_support::process::Process;
use test_support::{eventually, eventually_some, helper};

/// Bound on a sale, whose buyers, instances and servers share a busy machine.
const SALE: Duration = Duration::from_secs(90);

/// A demo on a free port. Dropping it kills it; the guards then end the other processes.
pub(crate) struct Demo {
    pub(crate) process: Process,
    pub(crate) line: String,
    pub(crate) address: String,
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Demo {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let helper = helper!("flash-sale").arg("--port").arg("0");
        let helper = arguments
            .iter()
            .fold(helper, |helper, argument| helper.arg(*argument));
        let process = helper.spawn();
        let line = eventually_some(SOON, || {
            assert!(!process.has_ended(), "the demo could not start");
            process.lines().first().cloned()
        });
        let address = line.strip_prefix("flash sale: http://");
        let address = address.and_then(|text| text.split(' ').next());
        let address = address.expect("the first line has the address").to_owned();
        Self {
            process,
            line,
            address,
        }
    }

    /// Opens a connection and sends a request. The response is not yet read.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the demo listens");
        stream
            .set_read_timeout(Some(SOON))
            .expect("the timeout is not zero");
        let (address, length) = (&self.address, body.len());
        let host = if headers.to_lowercase().contains("host:") {
            String::new()
        } else {
            format!("host: {address}\r\n")
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\n{host}connection: close\r\n\
             content-type: application/x-www-form-urlencoded\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        )
        .expect("the demo reads");
        stream
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let mut reply = String::new();
        self.open(method, path, headers, body)
            .read_to_string(&mut reply)
            .expect("the demo replies in time");
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Response {
            status: status.expect("a status line"),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", "")
    }

    pub(crate) fn state(&self) -> Value {
        serde_json::from_str(&self.get("/state").body).expect("the state is JSON")
    }

    /// Returns one of the texts of the page.
    pub(crate) fn text(&self, name: &str) -> String {
        let state = self.state();
        let text = state["texts"][name].as_str();
        text.unwrap_or_else(|| panic!("no text `{name}`"))
            .to_owned()
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().expect("the text is a number")
    }

    /// Presses a button of the page.
    pub(crate) fn press(&self, action: &str) {
        let accept = "accept: application/json\r\n";
        let reply = self.send("POST", "/control", accept, &format!("action={action}"));
        assert_eq!(reply.status, 200, "{action}");
    }

    /// Starts a sale, and returns its verdict.
    pub(crate) fn sell(&self) -> String {
        self.press("start");
        self.verdict_of_the_sale()
    }

    /// Waits for the end of the sale that runs, and returns its verdict.
    pub(crate) fn verdict_of_the_sale(&self) -> String {
        eventually(SALE, || self.state()["can_start"] == true);
        self.text("verdict")
    }

    /// Waits for an instance to be in this state.
    pub(crate) fn await_instance(&self, number: usize, state: &str) {
        eventually(SOON, || {
            self.state()["instances"][number - 1]["state"] == state
        });
    }

    /// Waits for the result of an experiment.
    pub(crate) fn result(&self, experiment: usize) -> String {
        eventually_some(SOON, || {
            let state = self.state();
            let text = state["experiments"][experiment]["text"].as_str();
            text.map(ToOwned::to_owned)
        })
    }

    /// The process ids of the instances.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let state = self.state();
        let instances = state["instances"].as_array().expect("a list");
        let pids = instances
            .iter()
            .filter_map(|instance| instance["pid"].as_u64());
        pids.map(|pid| u32::try_from(pid).expect("a process id"))
            .collect()
    }

    /// Opens the stream of events.
    pub(crate) fn events(&self, headers: &str) -> Events {
        let stream = self.open("GET", "/events", headers, "");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("the timeout is not zero");
        Events(BufReader::new(stream))
    }
}

pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// Reads the next event: its kind, its id and its data. `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<(String, Option<u64>, Value)> {
        let (mut kind, mut id) = (String::new(), None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("events come in time") == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("event: ") {
                text.clone_into(&mut kind);
            } else if let Some(text) = line.strip_prefix("id: ") {
                id = text.parse().ok();
            } else if let Some(data) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(data).expect("the data is JSON");
                return Some((kind, id, data));
            }
        }
    }
}
