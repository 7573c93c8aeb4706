//! What is said to operators, and what must not get into it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
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
fn assert_tidy(text: &str) {
    let harmful = |letter: char| letter.is_control() || "\u{202e}\u{2028}\u{2066}".contains(letter);
    assert!(!text.contains(harmful), "{text:?}");
    // Debug output escapes what it shows; an escape means that it was there.
    for escape in ["\\u{1b}", "\\n", "\\r", "\\u{202e}", "\\u{2028}"] {
        assert!(!text.contains(escape), "{text}");
    }
}

/// Labels and values of other clients are printed in errors and logs.
#[tokio::test]
async fn what_others_wrote_is_tidied() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let evil = "web\r\n2026 ERROR fake\u{1b}[31m\u{202e}\u{2028}end";
    for value in [
        format!("lk1:{id} 1 2 {evil}"),
        format!("lk1:{id} {evil}"),
        format!("{id} {evil}"),
        evil.to_owned(),
    ] {
        server.cli(&["SET", KEY, &value, "PX", "60000"]);
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(text(&error).contains("2026 ERROR fake"), "{error}");
        assert_tidy(&text(&error));
        let error = locks.lock(NAME).wait(ms(60)).acquire().await.unwrap_err();
        assert_tidy(&text(&error));
        server.cli(&["PERSIST", KEY]);
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert_tidy(&text(&error));
    }
}

/// A name may come from a request: in an error it is one line, and nothing of it is hidden.
#[tokio::test]
async fn names_in_errors_cannot_forge_a_line() {
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

/// Schemes have no case.
#[tokio::test]
async fn a_scheme_in_capitals_is_understood() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "REDIS://");
    let locks = LockManager::connect(&url).await.unwrap();
    acquire_and_release(&locks).await;
    LockManager::connect("Memory://").await.unwrap();
}

/// Why a command came to nothing is said in the same line as where it was sent.
#[tokio::test]
async fn a_connection_that_broke_is_named_with_the_reason() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    let error = held.renew().await.unwrap_err().to_string();
    let begin = format!("cannot ask the lock server at {} (", proxy.address());
    assert!(error.starts_with(&begin), "{error}");
    assert!(!error.contains("os error"), "{error}");
    proxy.forward();
    held.release().await.unwrap();
}

/// Answers each command of a connection: as a server does while it is greeted, and then by an error.
fn answer(stream: &TcpStream, said: &str) -> std::io::Result<()> {
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
            _ => writer.write_all(format!("{said}\r\n").as_bytes())?,
        }
        line.clear();
    }
    Ok(())
}

/// A server, or what pretends to be one, says what it likes in its errors.
#[tokio::test]
async fn what_a_server_says_is_tidied() {
    for said in [
        "-ERR evil \u{1b}[2J\u{202e} words",
        "-NOAUTH evil \u{7}bell",
        "-LOADING evil \u{9b}31m",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || answer(&stream, said));
            }
        });
        let builder = LockManager::builder().command_timeout(ms(300));
        let error = builder.connect(&url).await.unwrap_err();
        assert!(text(&error).contains("evil"), "{error:?}");
        assert_tidy(&text(&error));
    }
}

/// An operator has to know where, why, and what to do.
#[tokio::test]
async fn a_server_that_is_not_there_is_named_with_the_reason() {
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

/// The URL holds a password, and is never repeated.
#[tokio::test]
async fn a_malformed_url_gives_no_secret_away() {
    for url in [
        "user:secret@host://x",
        "redis://user:secret@host:port",
        "redis://user:secret@",
        "redis://:sec/secret@host",
        "rediss://user:secret@host",
        "redis+sentinel://user:secret@host/x",
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
async fn urls_that_are_not_supported_yet_say_so() {
    for (url, what) in [
        ("rediss://h", "TLS is not supported yet"),
        ("redis+sentinel://h/m", "Sentinel is not supported yet"),
        ("redis+cluster://h", "Redis Cluster is not supported yet"),
        ("redis://:pa#ss@h", "`#` is `%23`"),
        ("redis://:pa/ss@h", "`/` is `%2F`"),
    ] {
        let error = LockManager::connect(url).await.unwrap_err();
        assert!(error.to_string().contains(what), "{url}: {error}");
    }
}

/// Times are read by people.
#[tokio::test]
async fn times_in_errors_are_rounded() {
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

/// `locks.lock("a").await` is `acquire`.
#[tokio::test]
async fn a_request_can_be_awaited() {
    let locks = LockManager::in_memory();
    let guard = locks.lock(NAME).await.unwrap();
    let error = locks.lock(NAME).await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    guard.release().await.unwrap();
}

/// Outside of tokio nothing can wait; that is an error and not a panic.
#[test]
fn calls_outside_of_a_runtime_say_so() {
    fn now<F: Future>(future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => panic!("it waits"),
        }
    }
    let server = RedisServer::start();
    let is_told = |error: LockError| {
        assert!(matches!(error, LockError::NoRuntime), "{error}");
        assert!(error.to_string().contains("tokio runtime"), "{error}");
    };
    is_told(now(LockManager::connect(&server.url())).unwrap_err());
    let runtime = multi_thread_runtime(1);
    let locks = runtime.block_on(connect(&server));
    for locks in [locks.clone(), LockManager::in_memory()] {
        is_told(now(locks.lock(NAME).acquire()).unwrap_err());
        is_told(now(locks.lock(NAME).wait(ms(50)).acquire()).unwrap_err());
        is_told(now(locks.lock(NAME).try_acquire()).unwrap_err());
    }
    let guard = runtime.block_on(locks.lock(NAME).acquire()).unwrap();
    is_told(now(guard.renew()).unwrap_err());
    is_told(now(guard.release()).unwrap_err());
    // Released in the background all the same.
    runtime.block_on(tests::shut_down(&locks));
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
}
