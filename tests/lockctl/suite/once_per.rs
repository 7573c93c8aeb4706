//! `--once-per`: the command runs once in a period.

use test_support::RedisServer;

use crate::program::{Lockctl, Outcome};

const NAME: &str = "job";

fn on(server: &RedisServer, arguments: &[&str]) -> Outcome {
    Lockctl::on(server, arguments).run()
}

fn job(server: &RedisServer, flags: &[&str], command: &[&str]) -> Outcome {
    let mut arguments = vec!["run", "--name", NAME, "--once-per", "24h"];
    arguments.extend(["--label", "web-1:42"]);
    arguments.extend(flags);
    arguments.push("--");
    arguments.extend(command);
    on(server, &arguments)
}

#[test]
fn command_runs_until_it_succeeds() {
    let server = RedisServer::start();
    assert_eq!(job(&server, &[], &["false"]).code, Some(1));
    assert_eq!(
        job(&server, &[], &["sh", "-c", "kill -9 $$"]).code,
        Some(137)
    );
    assert_eq!(job(&server, &[], &["true"]).code, Some(0));
    let again = job(&server, &[], &["true"]);
    assert_eq!(again.code, Some(75));
    let text = &again.stderr;
    assert!(
        text.starts_with("lockctl: the work of `job` is done: web-1:42 began it at 2"),
        "{text}"
    );
    assert!(
        text.ends_with(" and succeeded; the name is free in 23 h; nothing was run (exit 75)\n"),
        "{text}"
    );
    assert_eq!(
        job(&server, &["--on-contended", "skip"], &["false"]).code,
        Some(0)
    );
    assert_eq!(job(&server, &["-E", "9"], &["true"]).code, Some(9));
    let json = job(&server, &["--json"], &["true"]).stdout;
    assert!(
        json.contains("\"kind\":\"done\"") && json.contains("\"exit\":75"),
        "{json}"
    );
}

#[test]
fn operator_sees_the_last_success_and_lets_the_command_run_again() {
    let server = RedisServer::start();
    assert_eq!(job(&server, &[], &["true"]).code, Some(0));
    let shown = on(&server, &["show", NAME]);
    assert_eq!(shown.code, Some(0));
    assert!(
        shown.stdout.contains("\nstate     no holder; done since 2"),
        "{shown:?}"
    );
    assert!(
        shown.stdout.contains(" by web-1:42 (for 23 h)\n"),
        "{shown:?}"
    );
    let listed = on(&server, &["list"]).stdout;
    assert!(listed.contains("(none: done by web-1:42)"), "{listed}");
    let json = on(&server, &["show", NAME, "--json"]).stdout;
    assert!(json.contains("\"state\":\"done\""), "{json}");
    assert!(
        json.contains("\"done\":{\"label\":\"web-1:42\",\"since\":\"2"),
        "{json}"
    );
    let released = on(&server, &["release", NAME, "--yes"]);
    assert_eq!(released.code, Some(0));
    assert_eq!(released.stdout, "freed the lock `job`\n");
    assert_eq!(job(&server, &[], &["true"]).code, Some(0));
}

#[test]
fn invalid_periods_are_refused() {
    let server = RedisServer::start();
    for (flags, code, text) in [
        (
            &["--once-per", "8785h"][..],
            64,
            "invalid --once-per 8785h: use at least 100ms and at most 8784h, which are 366 days",
        ),
        (&["--once-per", "1h", "--read"], 64, "cannot be used with"),
        (
            &["--once-per", "1h", "--permits", "2"],
            64,
            "cannot be used with",
        ),
        (
            &["--once-per", "1h", "--min-hold", "1s"],
            64,
            "cannot be used with",
        ),
    ] {
        let mut arguments = vec!["run", "--name", NAME];
        arguments.extend(flags);
        arguments.extend(["--", "true"]);
        let outcome = on(&server, &arguments);
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains(text), "{outcome:?}");
    }
}
