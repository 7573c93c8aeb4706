//! Error texts for operators: what they must contain, and what they must not.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, NAME, ms, multi_thread_runtime};
use test_support::{Proxy, RedisServer};
use tests::acquire_and_release;

use super::{connect, connect_with};

fn text(error: &LockError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = write!(text, " {error} {error:?}");
        cause = error.source();
    }
    text
}

#[track_caller]
fn assert_escaped(text: &str) {
    let is_harmful =
        |letter: char| letter.is_control() || "\u{202e}\u{2028}\u{2066}".contains(letter);
    assert!(!text.contains(is_harmful), "{text:?}");
    // Debug output escapes control characters, so an escape shows that the text contained one.
    for escape in ["\\u{1b}", "\\n", "\\r", "\\u{202e}", "\\u{2028}"] {
        assert!(!text.contains(escape), "{text}");
    }
}

/// Errors and logs contain labels and values of other clients.
#[tokio::test]
async fn values_of_other_clients_are_escaped() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let evil = "web\r\n2026 ERROR fake\u{1b}[31m\u{202e}\u{2028}end";
    // What can't be read may be a secret.
    let (label, foreign) = ("2026 ERROR fake", "a client of another library");
    for (value, shown) in [
        (format!("lk1:{id} 1 2 {evil}"), label),
        (format!("lk1:{id} {evil}"), foreign),
        (format!("{id} {evil}"), label),
        (evil.to_owned(), foreign),
    ] {
        server.cli(&["SET", KEY, &value, "PX", "60000"]);
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(text(&error).contains(shown), "{error}");
        assert_escaped(&text(&error));
        let error = locks.lock(NAME).wait(ms(60)).acquire().await.unwrap_err();
        assert_escaped(&text(&error));
        server.cli(&["PERSIST", KEY]);
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert_escaped(&text(&error));
    }
}

/// A name may come from a request. In an error it stays on one line, and is fully visible.
#[tokio::test]
async fn names_in_errors_are_escaped() {
    let locks = LockManager::in_memory();
    let name = "order:7\r\n2026 ERROR fake\u{1b}[31m\u{202e}";
    let held = locks.lock(name).acquire().await.unwrap();
    for wait in [None, Some(ms(20))] {
        let request = locks.lock(name);
        let request = match wait {
            None => request,
            Some(wait) => request.wait(wait),
        };
        let error = request.acquire().await.unwrap_err().to_string();
        assert!(
            error.contains("`lock:order:7\\u{d}\\u{a}2026 ERROR fake\\u{1b}[31m\\u{202e}`"),
            "{error}"
        );
    }
    held.release().await.unwrap();
    let error = locks.lock("{\n").acquire().await.unwrap_err().to_string();
    assert!(error.contains("`{\\u{a}`"), "{error}");
}

/// Upper and lower case mean the same in a URL's scheme.
#[tokio::test]
async fn url_scheme_is_case_insensitive() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "REDIS://");
    let locks = LockManager::connect(&url).await.unwrap();
    acquire_and_release(&locks).await;
    LockManager::connect("Memory://").await.unwrap();
}

/// The error names the address and the reason in one line.
#[tokio::test]
async fn broken_connection_is_reported_with_address_and_reason() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    let error = held.renew().await.unwrap_err().to_string();
    let begin = format!("cannot reach the lock server at {} (", proxy.address());
    assert!(error.starts_with(&begin), "{error}");
    assert!(!error.contains("os error"), "{error}");
    proxy.forward();
    held.release().await.unwrap();
}

/// Replies to each command of a connection: to the handshake as a server does, and then with an
/// error.
fn reply_with_error(stream: &TcpStream, error: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let count: usize = line.trim().trim_start_matches('*').parse().unwrap_or(0);
        let mut words = Vec::new();
        for _ in 0..count {
            let (mut length, mut word) = (String::new(), String::new());
            reader.read_line(&mut length)?;
            let length: usize = length.trim().trim_start_matches('$').parse().unwrap_or(0);
            (&mut reader)
                .take(length as u64 + 2)
                .read_to_string(&mut word)?;
            words.push(word.trim().to_owned());
        }
        match words.first().map(String::as_str) {
            Some("HELLO") => writer.write_all(b"%1\r\n+server\r\n+redis\r\n")?,
            Some("CLIENT") => writer.write_all(b"+OK\r\n")?,
            _ => writer.write_all(format!("{error}\r\n").as_bytes())?,
        }
        line.clear();
    }
    Ok(())
}

/// A server, or a program that pretends to be one, can put any text into its errors.
#[tokio::test]
async fn server_errors_are_escaped() {
    for reply in [
        "-ERR evil \u{1b}[2J\u{202e} words",
        "-NOAUTH evil \u{7}bell",
        "-LOADING evil \u{9b}31m",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || reply_with_error(&stream, reply));
            }
        });
        let builder = LockManager::builder().command_timeout(ms(300));
        let error = builder.connect(&url).await.unwrap_err();
        assert!(text(&error).contains("evil"), "{error:?}");
        assert_escaped(&text(&error));
    }
}

/// The error says where the connection failed, why, and what to do.
#[tokio::test]
async fn unreachable_server_is_reported_with_address_and_reason() {
    let server = RedisServer::start();
    let address = server.address();
    let url = format!("redis://user:secret@{address}");
    server.kill9();
    let error = LockManager::connect(&url).await.unwrap_err();
    let text = text(&error);
    assert!(
        text.starts_with(&format!(
            "cannot connect to the lock server at {address} (connection refused): check that"
        )),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
    let error = LockManager::connect("unix:///not/there.sock")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("/not/there.sock (no such file"),
        "{error}"
    );
}

/// The URL contains a password, and no error repeats it.
#[tokio::test]
async fn malformed_url_error_does_not_contain_the_password() {
    for url in [
        "user:secret@host://x",
        "redis://user:secret@host:port",
        "redis://user:secret@",
        "redis://:sec/secret@host",
        "rediss://user:secret@host:port",
        "redis+sentinel://user:secret@host",
        "redis://user:secret@host/secret",
        "secret",
    ] {
        let error = LockManager::connect(url).await.unwrap_err();
        let text = text(&error);
        assert!(!text.contains("secret"), "{url}: {text}");
        assert!(text.contains("InvalidUrl"), "{url}: {text}");
    }
}

#[tokio::test]
async fn refused_url_gets_advice() {
    for (url, what) in [
        ("redis+sentinel://h", "redis+sentinel://host/mymaster"),
        ("redis+cluster://h/1", "database 0 only"),
        ("redis+quorum://a,b", "at least 3"),
        ("redis://a,b", "use redis+cluster://"),
        ("redis://h#insecure", "`?ssl_ca_certs=`"),
        ("redis://:pa#ss@h", "`#` is `%23`"),
        ("redis://:pa/ss@h", "`/` is `%2F`"),
    ] {
        let error = LockManager::connect(url).await.unwrap_err();
        assert!(error.to_string().contains(what), "{url}: {error}");
    }
}

/// People read the durations.
#[tokio::test]
async fn durations_in_errors_are_rounded() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let error = locks.lock(NAME).wait(ms(50)).acquire().await.unwrap_err();
    let text = error.to_string();
    let times: Vec<_> = text
        .split([' ', ',', ':'])
        .filter(|word| word.ends_with('s'))
        .collect();
    assert!(text.contains(" ms") || text.contains("ms"), "{text}");
    for time in times
        .iter()
        .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
    {
        assert!(time.len() <= 8 && !time.contains("µs"), "{text}");
    }
    held.release().await.unwrap();
}

/// Returns what a program prints whose `main` returns the error of a lock.
fn stderr_of_main(url: Option<&str>) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_returns-error"));
    match url {
        Some(url) => program.env("DISTRIBUTED_LOCK_URL", url),
        None => program.env_remove("DISTRIBUTED_LOCK_URL"),
    };
    let output = program.arg(NAME).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_that_main_returns_is_one_line_for_people() {
    let text = stderr_of_main(None);
    assert!(
        text.starts_with("Error: NotConfigured: no lock manager is configured: set the environment variable DISTRIBUTED_LOCK_URL"),
        "{text}"
    );
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let text = stderr_of_main(Some(&server.url()));
    assert!(
        text.starts_with("Error: Contended: lock `lock:job` is busy: `"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    held.release().await.unwrap();
    // Nothing listens there any more.
    let address = server.address();
    server.kill9();
    let text = stderr_of_main(Some(&format!("redis://user:s3cret@{address}")));
    let begin = format!(
        "Error: Backend(Unreachable): cannot connect to the lock server at {address} (connection refused)"
    );
    assert!(text.starts_with(&begin), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// `locks.lock("a").await` is the same as `acquire`.
#[tokio::test]
async fn awaiting_a_request_acquires() {
    let locks = LockManager::in_memory();
    let guard = locks.lock(NAME).await.unwrap();
    let error = locks.lock(NAME).await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    guard.release().await.unwrap();
}

/// Nothing can wait outside tokio. Calls return an error and do not panic.
#[test]
fn calls_outside_a_runtime_return_no_runtime() {
    fn now<F: Future>(future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => panic!("the call waits"),
        }
    }
    let server = RedisServer::start();
    let assert_no_runtime = |error: LockError| {
        assert!(matches!(error, LockError::NoRuntime), "{error}");
        assert!(error.to_string().contains("tokio runtime"), "{error}");
    };
    assert_no_runtime(now(LockManager::connect(&server.url())).unwrap_err());
    let runtime = multi_thread_runtime(1);
    let locks = runtime.block_on(connect(&server));
    for locks in [locks.clone(), LockManager::in_memory()] {
        assert_no_runtime(now(locks.lock(NAME).acquire()).unwrap_err());
        assert_no_runtime(now(locks.lock(NAME).wait(ms(50)).acquire()).unwrap_err());
        assert_no_runtime(now(locks.lock(NAME).try_acquire()).unwrap_err());
    }
    let guard = runtime.block_on(locks.lock(NAME).acquire()).unwrap();
    assert_no_runtime(now(guard.renew()).unwrap_err());
    assert_no_runtime(now(guard.release()).unwrap_err());
    // The background worker releases the lock nevertheless.
    runtime.block_on(tests::shut_down(&locks));
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
}
