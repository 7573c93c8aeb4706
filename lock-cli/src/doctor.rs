//! `lockctl doctor`: says whether a server is fit for locks, and what each defect means for them.
//!
//! It has a connection of its own, because the library refuses to connect to a server with some of these
//! defects. It reads INFO only, since many services forbid CONFIG.

use std::fmt::Write as _;

use serde::Serialize;

use crate::args::{DoctorArgs, GlobalArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{self, Output};

mod connection;
mod info;
mod keys;
mod probe;
mod server;

use connection::Server;
use info::Info;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
struct Check {
    /// A word that does not change.
    id: &'static str,
    level: Level,
    /// What was found.
    text: String,
    /// What it means for locks.
    means: String,
    /// What to do. Empty if nothing has to be done.
    #[serde(rename = "do")]
    advice: String,
}

impl Check {
    fn new(id: &'static str, level: Level, text: impl Into<String>) -> Self {
        Self {
            id,
            level,
            text: text.into(),
            means: usual_meaning(id).to_owned(),
            advice: String::new(),
        }
    }

    fn ok(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Level::Ok, text)
    }

    fn warn(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Level::Warn, text)
    }

    fn fail(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Level::Fail, text)
    }

    fn means(mut self, means: impl Into<String>) -> Self {
        self.means = means.into();
        self
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }
}

/// What a check means for locks while nothing is wrong.
fn usual_meaning(id: &str) -> &'static str {
    match id {
        "reachable" => "a lock costs two round trips",
        "version" => "the scripts of locks need Redis 7.0 or later",
        "role" => "only a primary grants locks",
        "topology" => "all managers have to reach the same server",
        "rights" => "without one of its rights, a user gets no lock",
        "notifications" => "waiters learn of a grant at once",
        "eviction" => "no lock is deleted to make room for other data",
        "memory" => "a full server refuses to grant and to renew locks (OOM)",
        "persistence" => "a lock that a restart forgets goes to another holder",
        "replicas" => "a failover forgets the locks that the new primary has not received",
        "clock" => "the times in the output are those of the server",
        "clients" => "each manager needs one connection for each runtime, and two more",
        "no_expiry" => "a lock without an expiry would stay for ever",
        "foreign" => "no other data blocks the names",
        "queue_orphans" => "no free lock has waiters that do not take it",
        "tls" => "nobody else reads the password",
        _ => "",
    }
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    server: &'a str,
    failed: usize,
    warnings: usize,
    checks: &'a [Check],
}

/// Runs all checks.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &DoctorArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let url = connect::url(global, output)?;
    let mut server = Server::connect(url, global).await?;
    let mut checks = vec![server.reachable().await?];
    let info = server.info().await;
    let role = server.role().await;
    match &info {
        Ok(info) => {
            checks.push(server::version(info));
            checks.push(server::role(role.as_deref(), info));
            checks.push(server::topology(role.as_deref(), info));
        }
        Err(refused) => checks.push(server::no_info(refused)),
    }
    let can_lock = checks.iter().all(|check| check.level != Level::Fail);
    if can_lock {
        checks.push(probe::rights(&mut server, global).await);
        checks.push(probe::notifications(&mut server, global).await);
    }
    if let Ok(info) = &info {
        checks.extend(server::of_info(info));
    }
    checks.extend(server.clock().await);
    if can_lock {
        checks.extend(keys::checks(&mut server, global).await);
    }
    checks.push(server::tls(url, server.address()));
    report(&checks, server.address(), args, output)
}

fn report(
    checks: &[Check],
    address: &str,
    args: &DoctorArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    let (failed, warnings) = (count(Level::Fail), count(Level::Warn));
    if output.is_json() {
        output.record(&Report {
            schema: "lockctl.doctor/1",
            server: address,
            failed,
            warnings,
            checks,
        })?;
    } else {
        let mut text = String::new();
        for check in checks {
            write_check(&mut text, check, output);
        }
        let _ = writeln!(text, "{address}: {}", summary(failed, warnings));
        output.print(&text)?;
    }
    let is_bad = failed > 0 || args.strict && warnings > 0;
    Ok(if is_bad { Exit::No } else { Exit::Success })
}

/// The word that names a level, and its colour.
fn word(level: Level) -> (&'static str, output::Paint) {
    match level {
        Level::Ok => ("ok", output::GREEN),
        Level::Warn => ("warn", output::YELLOW),
        Level::Fail => ("FAIL", output::RED),
    }
}

fn write_check(text: &mut String, check: &Check, output: &Output) {
    let (word, paint) = word(check.level);
    let word = paint.on(&format!("{word:<4}"));
    let _ = writeln!(text, "{word}  {:<14} {}", check.id, check.text);
    let explained = check.level != Level::Ok || output.is_verbose();
    for (name, line) in [("means", &check.means), ("do", &check.advice)] {
        if explained && !line.is_empty() {
            let _ = writeln!(text, "      {name:<6} {line}");
        }
    }
}

fn summary(failed: usize, warnings: usize) -> String {
    let count = |number: usize, word: &str| match number {
        1 => format!("1 {word}"),
        number => format!("{number} {word}s"),
    };
    let (failed_text, warning_text) = (count(failed, "defect"), count(warnings, "warning"));
    match (failed, warnings) {
        (0, 0) => "fit for locks".to_owned(),
        (0, _) => format!("fit for locks, with {warning_text}"),
        (_, 0) => format!("not fit for locks: {failed_text}"),
        (_, _) => format!("not fit for locks: {failed_text}, and {warning_text}"),
    }
}
