//! `lockctl doctor`: says whether a server is fit for locks, and what each defect means for them.
//!
//! It has a connection of its own, because the library refuses to connect to a server with some of these
//! defects. It reads INFO only, since many services forbid CONFIG.

use redis::RedisError;
use serde::Serialize;

use crate::args::{DoctorArgs, GlobalArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::{self, Line, Page, Paint};

mod connection;
mod info;
mod keys;
mod names;
mod probe;
mod rights;
mod server;

use connection::Server;
use info::Info;
use rights::Rights;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    /// Nothing is wrong, but something was not checked, or the user has not all rights.
    Note,
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
    text: Line,
    /// What it means for locks.
    means: Line,
    /// What to do. Empty if nothing has to be done.
    #[serde(rename = "do")]
    advice: Line,
    /// Why it was not checked.
    #[serde(skip)]
    skipped: Option<Line>,
}

impl Check {
    fn new(id: &'static str, level: Level, text: impl AsRef<str>) -> Self {
        Self {
            id,
            level,
            text: Line::new(text.as_ref()),
            means: Line::new(usual_meaning(id)),
            advice: Line::default(),
            skipped: None,
        }
    }

    /// A check that could not run.
    fn skipped(id: &'static str, reason: impl AsRef<str>) -> Self {
        let reason = reason.as_ref();
        Self {
            skipped: Some(Line::new(reason)),
            ..Self::new(id, Level::Note, format!("not checked: {reason}"))
        }
        .advice("to check it, run `lockctl doctor` as a user with these rights")
    }

    fn ok(id: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(id, Level::Ok, text)
    }

    fn warn(id: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(id, Level::Warn, text)
    }

    fn fail(id: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(id, Level::Fail, text)
    }

    fn means(mut self, means: impl AsRef<str>) -> Self {
        self.means = Line::new(means.as_ref());
        self
    }

    fn advice(mut self, advice: impl AsRef<str>) -> Self {
        self.advice = Line::new(advice.as_ref());
        self
    }
}

/// What a full server means for locks.
const FULL_MEMORY: &str =
    "a full server refuses to grant locks (OOM); it still renews and releases those that are held";

/// What a check means for locks while nothing is wrong.
fn usual_meaning(id: &str) -> &'static str {
    match id {
        "reachable" => "a lock costs two round trips",
        "version" => "the scripts of locks need Redis 6.2 or later",
        "role" => "only a primary grants locks",
        "topology" => "all managers have to reach the same server",
        "app_rights" => "without one of these rights, a user gets no lock",
        "operator_rights" => "without one of these rights, a command of lockctl fails",
        "probe" => "services get locks",
        "notifications" => "waiters learn of a grant at once",
        "eviction" => "no lock is deleted to make room for other data",
        "memory" => FULL_MEMORY,
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
    let known = match &info {
        Ok(info) => info.clone(),
        Err(_) => server.greeting().await,
    };
    let role = server.role().await;
    checks.push(server::version(&known));
    checks.push(server::role(role.as_deref(), &known));
    checks.push(server::topology(role.as_deref(), &known));
    // Another server has no locks to check, and replies to few commands.
    let has_locks = checks.iter().all(|check| check.level != Level::Fail);
    match &info {
        Ok(info) => checks.extend(server::of_info(info)),
        Err(error) => checks.extend(without_info(error)),
    }
    checks.extend(server.clock().await);
    checks.push(server::tls(url, server.address()));
    let mut user = None;
    if has_locks {
        let rights = Rights::read(&mut server, &global.prefix).await;
        checks.extend(keys::checks(&mut server, global, &rights).await);
        checks.extend(probe::checks(&mut server, global, &rights).await);
        checks.extend(rights.checks(args.role));
        user = Some(rights.summary());
    }
    report(&checks, server.address(), user.as_deref(), args, output)
}

/// The checks that need INFO, where the server refuses it.
fn without_info(error: &RedisError) -> [Check; 5] {
    let reason = if rights::is_refused(error) {
        "the user lacks +info".to_owned()
    } else {
        format!("the server does not reply to INFO ({error})")
    };
    server::OF_INFO.map(|id| Check::skipped(id, reason.as_str()))
}

fn report(
    checks: &[Check],
    address: &str,
    user: Option<&str>,
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
        let mut page = Page::default();
        write_checks(&mut page, checks, output);
        let user = user.map(|user| format!("; {user}")).unwrap_or_default();
        let (summary, failed) = (summary(checks), failed_rights(checks));
        let polls = polls(checks);
        page.line(&format!("{address}: {summary}{user}{polls}{failed}"));
        output.print(&page)?;
    }
    let is_bad = failed > 0 || args.strict && warnings > 0;
    Ok(if is_bad { Exit::No } else { Exit::Success })
}

/// Writes the checks. Those that were skipped for the same reason have one line, so that a missing
/// right is named once.
fn write_checks(page: &mut Page, checks: &[Check], output: &Output) {
    let mut reasons = Vec::new();
    for check in checks {
        let Some(reason) = &check.skipped else {
            write_check(page, check, output);
            continue;
        };
        if reasons.contains(&reason) {
            continue;
        }
        reasons.push(reason);
        let same = checks
            .iter()
            .filter(|other| other.skipped.as_ref() == Some(reason));
        let ids: Vec<_> = same.map(|check| check.id).collect();
        let merged = Check {
            id: "not checked",
            text: Line::new(&format!("{}: {reason}", ids.join(", "))),
            means: Line::default(),
            ..check.clone()
        };
        write_check(page, &merged, output);
    }
}

/// The word that names a level, and its colour.
fn word(level: Level) -> (&'static str, Paint) {
    match level {
        Level::Ok => ("ok", page::GREEN),
        Level::Note => ("note", page::YELLOW),
        Level::Warn => ("warn", page::YELLOW),
        Level::Fail => ("FAIL", page::RED),
    }
}

fn write_check(page: &mut Page, check: &Check, output: &Output) {
    let (word, paint) = word(check.level);
    let Check { id, text, .. } = check;
    page.painted(paint, &format!("{word:<4}"));
    page.line(&format!("  {id:<15}  {text}"));
    // A note is no defect, and most need nothing.
    let explained = check.level >= Level::Warn || output.is_verbose();
    for (name, line) in [("means", &check.means), ("do", &check.advice)] {
        if explained && *line != Line::default() {
            page.line(&format!("      {name:<6} {line}"));
        }
    }
}

/// Says that a check of the rights failed, since the rest of the summary is about the server.
fn failed_rights(checks: &[Check]) -> String {
    let failed = checks.iter().filter(|check| check.level == Level::Fail);
    let ids: Vec<_> = failed
        .map(|check| check.id)
        .filter(|id| rights::IDS.contains(id))
        .collect();
    if ids.is_empty() {
        return String::new();
    }
    format!("; FAIL: {}", ids.join(", "))
}

/// Says what a warning about notifications comes down to.
fn polls(checks: &[Check]) -> &'static str {
    let is = |id, level| {
        let mut found = checks.iter().filter(|check| check.id == id);
        found.any(|check| check.level == level)
    };
    if is("probe", Level::Ok) && is("notifications", Level::Warn) {
        "; works, waiters poll"
    } else {
        ""
    }
}

/// Says whether the server is fit. The rights of the user are no property of the server.
fn summary(checks: &[Check]) -> String {
    let of_server = |check: &&Check| !rights::IDS.contains(&check.id);
    let count = |level, word: &str| {
        let found = checks.iter().filter(of_server);
        match found.filter(|check| check.level == level).count() {
            0 => None,
            1 => Some(format!("1 {word}")),
            number => Some(format!("{number} {word}s")),
        }
    };
    let extent = if checks.iter().any(|check| check.skipped.is_some()) {
        " as far as it was checked"
    } else {
        ""
    };
    match (count(Level::Fail, "defect"), count(Level::Warn, "warning")) {
        (None, None) => format!("fit for locks{extent}"),
        (None, Some(warnings)) => format!("fit for locks{extent}, with {warnings}"),
        (Some(defects), None) => format!("not fit for locks: {defects}"),
        (Some(defects), Some(warnings)) => {
            format!("not fit for locks: {defects}, and {warnings}")
        }
    }
}
