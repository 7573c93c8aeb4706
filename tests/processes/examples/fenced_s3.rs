//! The example `fenced_s3`, with an object store that has S3's rule for conditional writes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use test_support::RedisServer;
use test_support::fixtures::SOON;

use super::example;

const TOKEN: &str = "x-amz-meta-fencing-token";

/// A request, with names of headers in lower case.
#[derive(Clone, Debug, Default)]
struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

#[derive(Clone, Debug)]
struct Object {
    body: String,
    token: String,
}

impl Object {
    /// As in S3, equal bodies have equal ETags, whatever their metadata is.
    fn etag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.body.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

/// One object behind HTTP. It knows GET, PUT, `If-Match` and `If-None-Match`.
#[derive(Clone, Default)]
struct Store {
    object: Arc<Mutex<Option<Object>>>,
    requests: Arc<Mutex<Vec<(Request, u16)>>>,
}

impl Store {
    /// Serves until the test's process ends, and returns the URL.
    fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let store = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                store.answer(stream.unwrap());
            }
        });
        url
    }

    fn answer(&self, mut stream: TcpStream) {
        let Some(request) = read(&stream) else { return };
        let (status, object) = self.execute(&request);
        let (headers, body) = object.map_or_else(Default::default, |object| {
            let headers = format!("etag: {}\r\n{TOKEN}: {}\r\n", object.etag(), object.token);
            (headers, object.body)
        });
        self.requests.lock().unwrap().push((request, status));
        write!(
            stream,
            "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
    }

    /// Checks the condition and writes in one step, as S3 does.
    fn execute(&self, request: &Request) -> (u16, Option<Object>) {
        let mut object = self.object.lock().unwrap();
        if request.method == "GET" {
            return (object.as_ref().map_or(404, |_| 200), object.clone());
        }
        let etag = object.as_ref().map(Object::etag);
        if let Some(wanted) = request.headers.get("if-match") {
            match &etag {
                None => return (404, None),
                Some(etag) if etag != wanted => return (412, None),
                Some(_) => {}
            }
        }
        if request.headers.contains_key("if-none-match") && etag.is_some() {
            return (412, None);
        }
        *object = Some(Object {
            body: request.body.clone(),
            token: request.headers[TOKEN].clone(),
        });
        (200, None)
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let mut words = line.split(' ').map(str::to_owned);
    let mut request = Request {
        method: words.next()?,
        path: words.next()?,
        ..Request::default()
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        let name = name.to_ascii_lowercase();
        request.headers.insert(name, value.to_owned());
    }
    let length = request.headers.get("content-length");
    let length = length.map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).ok()?;
    Some(request)
}

#[test]
fn store_refuses_the_late_write_of_a_paused_holder() {
    let (server, store) = (RedisServer::start(), Store::default());
    let program = example("fenced_s3").arg("--redis").arg(server.url());
    let shown = program
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .arg("--endpoint")
        .arg(store.serve())
        .spawn();
    assert!(shown.wait(SOON).success(), "{:#?}", shown.lines());
    let expected = [
        "in time: accepted",
        "late: refused",
        "late read: a later holder has written",
        "=> 70 left",
    ];
    assert_eq!(shown.lines(), expected);

    let object = store.object.lock().unwrap().clone().unwrap();
    assert_eq!(object.body, format!("70 {}", object.token));
    let mut writes = store.requests.lock().unwrap().clone();
    writes.retain(|(request, _)| request.method == "PUT");
    let statuses: Vec<u16> = writes.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [200, 200, 412]);
    for (write, _) in &writes {
        // A service refuses a condition that is sent and not signed.
        let signed = write.path.split("X-Amz-SignedHeaders=").nth(1).unwrap();
        let signed = signed.split('&').next().unwrap();
        assert!(
            signed.contains("match") && signed.contains(TOKEN),
            "{signed}"
        );
    }
}
