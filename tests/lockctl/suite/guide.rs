//! The commands and outputs of `lock_core::guide::operations` are those of the program.

use test_support::fixtures::SOON;
use test_support::{RedisServer, eventually};

use crate::program::{LOCKCTL, Lockctl, Outcome};
use crate::terminal::Terminal;

const PAGE: &str = include_str!("../../../lock-core/docs/operations.md");

/// Returns the output that the page shows for a command.
#[track_caller]
fn shown(command: &str) -> &'static str {
    let start = format!("```console\n$ {command}\n");
    let (_, rest) = PAGE
        .split_once(&start)
        .unwrap_or_else(|| panic!("the page has no `{command}`"));
    rest.split_once("```").expect("a block ends").0
}

/// Replaces what differs between two runs: numbers, units of time, hosts, and the width of columns.
fn normal(text: &str) -> String {
    let mut words = Vec::new();
    for line in text.lines() {
        for word in line.split_whitespace() {
            let is_unit = |word: &str| {
                ["ms", "s", "min", "h", "kB", "MB"].contains(&word.trim_matches([',', ';', ')']))
            };
            let shape: String = word
                .chars()
                .map(|c| if c.is_ascii_digit() { '0' } else { c })
                .collect();
            let mut shape = shape.replace('.', "");
            while shape.contains("00") {
                shape = shape.replace("00", "0");
            }
            if is_unit(word) {
                shape = format!(
                    "unit{}",
                    &word[word.trim_end_matches([',', ';', ')']).len()..]
                );
            }
            words.push(shape);
        }
        words.push("\n".to_owned());
    }
    words.join(" ")
}

#[track_caller]
fn compare(command: &str, output: &str) {
    let shown = shown(command);
    assert_eq!(
        normal(output),
        normal(shown),
        "\nthe page shows:\n{shown}\nthe program wrote:\n{output}"
    );
}

fn on(server: &RedisServer, arguments: &[&str]) -> Outcome {
    Lockctl::on(server, arguments).run()
}

#[test]
fn runbooks_show_what_the_program_writes() {
    let server = RedisServer::start();
    let flags = |label| {
        [
            "run", "--name", "import", "--label", label, "--ttl", "30s", "--wait", "1m", "--",
            "sleep", "60",
        ]
    };
    let holder = Lockctl::on(&server, &flags("worker-3:4711")).start();
    eventually(SOON, || {
        test_support::fixtures::exists(&server, "lock:import")
    });
    let waiter = Lockctl::on(&server, &flags("worker-5:812")).start();
    let queue = || server.cli(&["ZCARD", "{lock:import}:q"]).integer();
    eventually(SOON, || queue() == 1);

    let contended = on(&server, &["run", "--name", "import", "--", "import-orders"]);
    assert_eq!(contended.code, Some(75));
    compare(
        "lockctl run --name import -- import-orders",
        &contended.stderr,
    );
    compare(
        "lockctl show import",
        &on(&server, &["show", "import"]).stdout,
    );
    compare(
        "lockctl show imprt",
        &on(&server, &["show", "imprt"]).stderr,
    );

    let mut terminal = Terminal::start(
        &server,
        &[LOCKCTL, "release", "import", "--reason", "stuck import"],
    );
    eventually(SOON, || terminal.screen().ends_with("[y/N] "));
    terminal.press("y\n");
    assert_eq!(terminal.code(), Some(0));
    eventually(SOON, || terminal.screen().ends_with("next renewal\n"));
    compare(
        "lockctl release import --reason \"stuck import\"",
        &terminal.screen(),
    );
    drop((holder, waiter));
}

#[test]
fn doctor_shows_what_the_program_writes() {
    let options =
        RedisServer::options().args(["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let server = options.start();
    let words = ["ahead,", "behind,"];
    let text = |text: &str| text.replace(words[0], words[1]);
    compare("lockctl doctor", &text(&on(&server, &["doctor"]).stdout));
}

/// Crontabs, units and images use flags that exist.
#[test]
fn examples_of_the_page_have_valid_arguments() {
    let mut checked = 0;
    let page = PAGE
        .replace("[\"", " ")
        .replace("\", \"", " ")
        .replace("\"]", " ");
    for line in page.lines() {
        let Some((_, arguments)) = line.split_once("lockctl run ") else {
            continue;
        };
        // Without a ticket, `--resume` runs nothing: see `tickets`.
        let needs_ticket = arguments.contains("--resume");
        if !arguments.contains(" --") || line.starts_with('|') || line.contains('`') || needs_ticket
        {
            continue;
        }
        let mut words: Vec<_> = arguments.split_whitespace().collect();
        if words.last() == Some(&"--") {
            words.push("my-worker");
        }
        words.insert(0, "run");
        let outcome = Lockctl::new(&words)
            .env("DISTRIBUTED_LOCK_URL", "redis://127.0.0.1:1")
            .run();
        assert_eq!(outcome.code, Some(69), "{line}: {outcome:?}");
        checked += 1;
    }
    assert_eq!(checked, 4, "the console, cron, systemd and the container");
}
