//! `lockctl` on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use test_support::fixtures::{KEY, NAME, SOON, exists};
use test_support::{RedisServer, eventually, eventually_some};

use crate::program::{LOCKCTL, is_alive, send};

/// A terminal, and a program in it.
pub(crate) struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    program: Child,
}

impl Terminal {
    /// Runs `program` as the leader of a session of its own.
    pub(crate) fn start(server: &RedisServer, program: &[&str]) -> Self {
        let master: OwnedFd = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)
            .expect("the system has terminals");
        rustix::pty::grantpt(&master).expect("the terminal is ours");
        rustix::pty::unlockpt(&master).expect("the terminal is ours");
        let name = rustix::pty::ptsname(&master, Vec::new()).expect("the terminal has a name");
        let path = PathBuf::from(name.into_string().expect("the name is text"));
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("a file can be shared");
        let program = Command::new(env!("CARGO_BIN_EXE_in-terminal"))
            .arg(path)
            .args(program)
            .env("DISTRIBUTED_LOCK_URL", server.url())
            .env("NO_COLOR", "1")
            .spawn()
            .expect("the helper was built");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let filled = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let mut screen = filled.lock().unwrap_or_else(PoisonError::into_inner);
                screen.extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            keyboard,
            screen,
            reader,
            program,
        }
    }

    pub(crate) fn screen(&self) -> String {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&screen).replace("\r\n", "\n")
    }

    /// Waits until the screen shows a line that begins with this, and returns the rest of it.
    #[track_caller]
    pub(crate) fn line(&self, start: &str) -> String {
        eventually_some(SOON, || {
            let screen = self.screen();
            let whole = screen.rfind('\n').map_or("", |end| &screen[..end]);
            let mut lines = whole.lines();
            lines.find_map(|line| Some(line.strip_prefix(start)?.to_owned()))
        })
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("the terminal is open");
    }

    /// Waits for the end of all programs in the terminal, and returns the exit code. From then on the
    /// screen has all that they wrote.
    #[track_caller]
    pub(crate) fn code(&mut self) -> Option<i32> {
        let ended = eventually_some(SOON, || self.program.try_wait().expect("it is a child"));
        eventually(SOON, || self.reader.is_finished());
        ended.code()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.program.id().try_into().expect("process ids fit")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

fn run<'a>(flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut program = vec![LOCKCTL, "run", "--name", NAME];
    program.extend(flags);
    program.extend(["--", "sh", "-c", script]);
    program
}

#[test]
fn tty_ctrl_c() {
    let server = RedisServer::start();
    let script = "trap 'echo got INT; exit 5' INT; echo ready; while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(&server, &run(&[], script));
    terminal.line("ready");
    terminal.press(CTRL_C);
    assert_eq!(terminal.code(), Some(5), "{}", terminal.screen());
    assert_eq!(terminal.screen().matches("got INT").count(), 1);
    assert!(!exists(&server, KEY), "the lock is released");
}

#[test]
fn tty_ctrl_c_that_the_command_ignores_changes_nothing() {
    let server = RedisServer::start();
    let script = "trap '' INT; echo ready; read line; echo \"read $line\"";
    let mut terminal = Terminal::start(&server, &run(&[], script));
    terminal.line("ready");
    terminal.press(CTRL_C);
    terminal.press("words\n");
    // The command reads from the terminal, so it is in the foreground group.
    terminal.line("read words");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn tty_ctrl_c_ends_the_wait() {
    let server = RedisServer::start();
    server.cli(&["SET", KEY, "another-library", "PX", "60000"]);
    let mut terminal = Terminal::start(&server, &run(&["--wait", "1m"], "echo ran"));
    eventually(SOON, || test_support::fixtures::queue_length(&server) == 1);
    terminal.press(CTRL_C);
    assert_eq!(terminal.code(), Some(130));
}

#[test]
fn tty_other_signals_go_to_the_command() {
    let server = RedisServer::start();
    let script = "trap 'echo got TERM; exit 6' TERM; echo ready; while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(&server, &run(&[], script));
    terminal.line("ready");
    send(terminal.pid(), Signal::TERM);
    assert_eq!(terminal.code(), Some(6), "{}", terminal.screen());
    assert_eq!(terminal.screen().matches("got TERM").count(), 1);
}

const STUBBORN: &str = "trap '' TERM HUP; sh -c 'trap \"\" TERM HUP; echo grandchild $$; exec sleep 60' & echo child $$; wait; wait";

#[test]
fn tty_loss_ends_a_command_that_ignores_term() {
    let server = RedisServer::start();
    let flags = ["--ttl", "1s", "--kill-after", "300ms"];
    let mut terminal = Terminal::start(&server, &run(&flags, STUBBORN));
    let child: i32 = terminal.line("child ").parse().unwrap();
    let grandchild: i32 = terminal.line("grandchild ").parse().unwrap();
    server.cli(&["DEL", KEY]);
    assert_eq!(terminal.code(), Some(79), "{}", terminal.screen());
    assert!(!is_alive(child) && !is_alive(grandchild));
    assert!(terminal.screen().contains("lockctl: lost the lock `job`"));
}

#[test]
fn tty_sigkill_of_lockctl_ends_the_command() {
    let server = RedisServer::start();
    let flags = ["--kill-after", "300ms"];
    let mut terminal = Terminal::start(&server, &run(&flags, STUBBORN));
    let child: i32 = terminal.line("child ").parse().unwrap();
    let grandchild: i32 = terminal.line("grandchild ").parse().unwrap();
    send(terminal.pid(), Signal::KILL);
    terminal.code();
    eventually(SOON, || !is_alive(child) && !is_alive(grandchild));
}

/// The lease runs out while all processes are stopped, and the command ends when they continue.
#[test]
fn tty_ctrl_z_lets_the_lease_run_out() {
    let server = RedisServer::start();
    let script = format!(
        "set -m; {LOCKCTL} run --name {NAME} --ttl 500ms -- sh -c 'echo ready; exec sleep 60'
         echo; echo stopped; read line; fg >/dev/null; echo \"code $?\""
    );
    let mut terminal = Terminal::start(&server, &["sh", "-c", &script]);
    terminal.line("ready");
    terminal.press(CTRL_Z);
    terminal.line("stopped");
    eventually(SOON, || !exists(&server, KEY));
    terminal.press("\n");
    assert_eq!(terminal.line("code "), "79");
    assert_eq!(terminal.code(), Some(0));
}
