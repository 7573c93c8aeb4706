//! The report, as text and as JSON.

use serde::Serialize;

use super::check::{Check, Level};
use super::rights;
use crate::args::DoctorArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::{self, Line, Page, Paint};

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    server: &'a str,
    failed: usize,
    warnings: usize,
    checks: &'a [Check],
}

pub(super) fn report(
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
