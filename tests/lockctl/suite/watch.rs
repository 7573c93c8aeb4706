//! `watch` in a pipe and on a terminal.

use rustix::process::Signal;
use test_support::fixtures::{NAME, SOON};
use test_support::{RedisServer, eventually};

use crate::admin::{hold, wait};
use crate::program::{LOCKCTL, Lockctl, send};
use crate::terminal::Terminal;

#[test]
fn watch_writes_a_line_for_each_change() {
    let server = RedisServer::start();
    for pattern in [NAME, "j*"] {
        let flags = ["watch", pattern, "--interval", "20ms"];
        let watch = Lockctl::on(&server, &flags).start();
        let has = |text: &str| eventually(SOON, || watch.stdout().contains(text));
        let holder = hold(&server, NAME, "web-1:42");
        has("  held     job  web-1:42  waiting 0\n");
        let waiter = wait(&server, "web-2:7");
        has("  held     job  web-1:42  waiting 1\n");
        holder.signal(Signal::TERM);
        waiter.line("ran");
        has("  held     job  web-2:7  waiting 0\n");
        waiter.signal(Signal::TERM);
        has("  free     job\n");
        watch.signal(Signal::INT);
        let outcome = watch.wait();
        assert_eq!(outcome.code, Some(130));
        assert_eq!(outcome.stderr, "");
        assert!(!outcome.stdout.contains('\x1b'), "{outcome:?}");
    }
}

#[test]
fn watch_outlives_an_outage() {
    let server = RedisServer::start();
    let flags = ["watch", NAME, "--interval", "20ms", "--timeout", "300ms"];
    let watch = Lockctl::on(&server, &flags).start();
    let holder = hold(&server, NAME, "web-1:42");
    watch.line("");
    server.kill9();
    eventually(SOON, || watch.stderr().lines().count() == 1);
    drop(holder);
    server.restart();
    let _holder = hold(&server, NAME, "web-5:1");
    eventually(SOON, || watch.stdout().contains("web-5:1"));
    assert_eq!(watch.stderr().lines().count(), 1, "{}", watch.stderr());
}

#[test]
fn watch_ends_when_its_reader_is_gone() {
    let server = RedisServer::start();
    let _holder = hold(&server, NAME, "web-1:42");
    let script = format!("{{ {LOCKCTL} watch --interval 20ms; echo code $? >&2; }} | head -1");
    let mut command = std::process::Command::new("sh");
    let command = command
        .args(["-c", &script])
        .env("DISTRIBUTED_LOCK_URL", server.url());
    // Nothing changes after the first line.
    let other = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&other.stderr), "code 0\n");
}

#[test]
fn watch_redraws_on_a_terminal_and_restores_it() {
    let server = RedisServer::start();
    let mut terminal = Terminal::start(&server, &[LOCKCTL, "watch", "--interval", "20ms"]);
    let _holder = hold(&server, NAME, "web-1:42");
    eventually(SOON, || terminal.screen().contains("web-1:42"));
    let screen = terminal.screen();
    assert!(screen.contains("\x1b[?25l"), "the cursor is hidden");
    assert!(!screen.contains("\x1b[?25h"));
    terminal.press("\x03");
    assert_eq!(terminal.code(), Some(130));
    eventually(SOON, || terminal.screen().ends_with("\x1b[?25h"));
    // As a service manager ends it.
    let mut terminal = Terminal::start(&server, &[LOCKCTL, "watch", "--interval", "20ms"]);
    eventually(SOON, || terminal.screen().contains("web-1:42"));
    send(terminal.pid(), Signal::TERM);
    assert_eq!(terminal.code(), Some(143));
    eventually(SOON, || terminal.screen().ends_with("\x1b[?25h"));
}
