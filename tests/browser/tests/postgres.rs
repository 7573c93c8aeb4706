//! The flash sale with its stock in PostgreSQL. It needs no browser, but a server that the other tests
//! do not have.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use browser::demo::Demo;
use serde_json::Value;
use test_support::fixtures::SOON;
use test_support::process::Process;
use test_support::{Helper, eventually, eventually_some};

const MISSING: &str = "this test needs PostgreSQL; install it:\n\
    \x20 Debian  apt-get install postgresql\n\
    or run ./scripts/browser, which does it";

/// The user `nobody`: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

/// A server on a free port. It is killed on drop.
struct Postgres {
    _process: Process,
    _data: Data,
    url: String,
}

/// The folder of the data, which is removed on drop.
struct Data(PathBuf);

impl Data {
    fn new() -> Self {
        let name = format!("flash-sale-postgres-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the folder is new");
        if is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may do that");
        }
        Self(path)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The system chooses a free port, and frees it again when the listener is dropped.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("an address")
        .port()
        .to_string()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Returns the folder of PostgreSQL's programs. Debian has them in a folder for each version.
fn programs() -> PathBuf {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let folders = versions.map(|version| version.path().join("bin"));
    let mut folders = folders.chain(std::env::split_paths(&search));
    let found = folders.find(|folder| {
        let has = |program| folder.join(program).exists();
        has("initdb") && has("postgres") && has("pg_isready")
    });
    found.expect(MISSING)
}

/// Returns the helper that runs a program as a user who is not root.
fn helper(program: &Path, arguments: &str, data: &Data) -> Helper {
    let mut words = Vec::new();
    if is_root() {
        let user = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --");
        words.extend(user.split(' ').map(ToOwned::to_owned));
    }
    words.push(program.display().to_string());
    words.extend(arguments.split(' ').map(ToOwned::to_owned));
    words.push(data.0.display().to_string());
    let helper = Helper::new(&words[0]);
    words[1..].iter().fold(helper, Helper::arg)
}

impl Postgres {
    fn start() -> Self {
        let (programs, data) = (programs(), Data::new());
        let arguments = "--auth=trust --username=postgres --no-sync --pgdata";
        let initdb = helper(&programs.join("initdb"), arguments, &data).spawn();
        let status = initdb.wait(SOON);
        assert!(status.success(), "initdb failed: {:?}", initdb.lines());

        let port = free_port();
        let arguments = format!(
            "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off \
             -c log_min_messages=fatal -D"
        );
        let process = helper(&programs.join("postgres"), &arguments, &data).spawn();
        eventually(SOON, || {
            let mut ready = Command::new(programs.join("pg_isready"));
            let ready = ready
                .args(["-U", "postgres", "-q", "-h", "127.0.0.1", "-p", &port])
                .status();
            ready.is_ok_and(|status| status.success())
        });
        Self {
            _process: process,
            _data: data,
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        }
    }
}

fn text(state: &Value, name: &str) -> String {
    state["texts"][name].as_str().unwrap_or_default().to_owned()
}

/// Starts a sale, and returns its verdict.
fn sell(demo: &Demo) -> String {
    demo.press("start");
    let is_over = || demo.state()["can_start"] == true;
    eventually(SOON, is_over);
    text(&demo.state(), "verdict")
}

#[test]
fn stock_in_postgres_has_the_same_results() {
    let server = Postgres::start();
    let demo = Demo::start(&["--database", &server.url]);
    assert!(
        demo.line.ends_with(", PostgreSQL); Ctrl-C ends it"),
        "{}",
        demo.line
    );
    demo.press("lock");
    let verdict = sell(&demo);
    assert!(
        verdict.ends_with(": two requests read the same stock."),
        "{verdict}"
    );
    demo.press("lock");
    assert_eq!(
        sell(&demo),
        "Stock 100 · Sold 100 · Oversold 0 — the lock held"
    );

    let result = |experiment: usize| {
        eventually_some(SOON, || {
            let state = demo.state();
            let text = state["experiments"][experiment]["text"].as_str();
            text.map(ToOwned::to_owned)
        })
    };
    demo.press("freeze-1");
    let refused = result(2);
    assert!(
        refused.contains("its late write was refused: token "),
        "{refused}"
    );
    let is_over = || demo.state()["can_start"] == true;
    eventually(SOON, is_over);
    let verdict = text(&demo.state(), "verdict");
    assert_eq!(
        verdict,
        "Stock 100 · Sold 100 · Oversold 0 — the fencing token held"
    );
    demo.press("fence");
    demo.press("freeze-2");
    let late = result(3);
    assert!(
        late.starts_with("Instance 2 wrote late: the lease had ended "),
        "{late}"
    );

    // A second demo on the same server has its own stock.
    let other = Demo::start(&["--database", &server.url]);
    assert_eq!(
        sell(&other),
        "Stock 100 · Sold 100 · Oversold 0 — the lock held"
    );
}
