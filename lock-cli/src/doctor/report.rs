//! The report, as text and as JSON.

use lock_core::doctor::{Part, Server, Servers, Topology};
use serde::Serialize;

use super::check::{Check, Level};
use super::node::Examined;
use super::rights;
use crate::args::DoctorArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::{self, Line, Page, Paint};

/// How many servers the last line names.
const NAMED: usize = 3;

/// All findings.
pub(super) struct Report<'a> {
    /// What the servers are together.
    title: String,
    sections: Vec<Section<'a>>,
}

/// The findings about one server, or about all of them.
struct Section<'a> {
    /// `None` for all of them.
    server: Option<&'a Server>,
    checks: Vec<&'a Check>,
    user: Option<&'a str>,
}

#[derive(Serialize)]
struct Record<'a> {
    schema: &'static str,
    server: &'a str,
    failed: usize,
    warnings: usize,
    nodes: Vec<NodeRecord>,
    checks: Vec<CheckRecord<'a>>,
}

#[derive(Serialize)]
struct NodeRecord {
    address: Line,
    kind: &'static str,
    failed: usize,
    warnings: usize,
}

#[derive(Serialize)]
struct CheckRecord<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<Line>,
    #[serde(flatten)]
    check: &'a Check,
}

impl<'a> Report<'a> {
    pub(super) fn new(found: &'a Servers, examined: &'a [Examined], of_all: &'a [Check]) -> Self {
        let mut sections: Vec<_> = found
            .servers
            .iter()
            .zip(examined)
            .map(|(server, examined)| Section {
                server: Some(server),
                checks: examined.checks.iter().collect(),
                user: examined.user.as_deref(),
            })
            .collect();
        if !of_all.is_empty() {
            sections.push(Section {
                server: None,
                checks: of_all.iter().collect(),
                user: None,
            });
        }
        Self {
            title: title(found),
            sections,
        }
    }

    fn checks(&self) -> Vec<&'a Check> {
        let checks = self.sections.iter().flat_map(|section| &section.checks);
        checks.copied().collect()
    }

    /// Returns the findings as JSON has them.
    fn record(&self) -> Record<'_> {
        let all = self.checks();
        let mut record = Record {
            schema: "lockctl.doctor/1",
            server: &self.title,
            failed: count(&all, Level::Fail),
            warnings: count(&all, Level::Warn),
            nodes: Vec::new(),
            checks: Vec::new(),
        };
        for Section { server, checks, .. } in &self.sections {
            let address = server.map(|server| Line::new(&server.address()));
            record.nodes.extend(server.map(|server| NodeRecord {
                address: Line::new(&server.address()),
                kind: kind(server.part),
                failed: count(checks, Level::Fail),
                warnings: count(checks, Level::Warn),
            }));
            let checks = checks.iter().map(|check| CheckRecord {
                node: address.clone(),
                check,
            });
            record.checks.extend(checks);
        }
        record
    }

    /// Returns the findings as people read them. A single server has one section without a heading.
    fn page(&self, output: &Output) -> Page {
        let mut page = Page::default();
        let all = self.checks();
        let mut servers = self.sections.iter().filter_map(|section| section.server);
        if servers.all(|server| server.part == Part::Single) {
            write_checks(&mut page, &all, output);
            let user = self.sections.iter().find_map(|section| section.user);
            page.line(&conclusion(&self.title, &all, user));
            return page;
        }
        for Section {
            server,
            checks,
            user,
        } in &self.sections
        {
            let Some(server) = server else {
                page.line("all servers");
                write_checks(&mut page, checks, output);
                page.end_line();
                continue;
            };
            let address = server.address();
            page.line(&format!("{address}, {}", words(server.part)));
            write_checks(&mut page, checks, output);
            page.line(&conclusion(&address, checks, *user)).end_line();
        }
        let conclusion = conclusion(&self.title, &all, None);
        page.line(&format!("{conclusion}{}", self.failed_at()));
        page
    }

    /// Names the servers at which a check failed, for the last line.
    fn failed_at(&self) -> String {
        let failed = self.sections.iter().filter_map(|section| {
            let server = section.server?;
            (count(&section.checks, Level::Fail) > 0).then(|| server.address())
        });
        let failed: Vec<_> = failed.collect();
        match failed.len() {
            0 => String::new(),
            all @ 0..=NAMED => format!("; see {}", failed[..all].join(", ")),
            all => format!(
                "; see {} and {} more",
                failed[..NAMED].join(", "),
                all - NAMED
            ),
        }
    }
}

/// Writes the report. Returns whether all servers are fit.
pub(super) fn write(
    report: &Report<'_>,
    args: &DoctorArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    if output.is_json() {
        output.record(&report.record())?;
    } else {
        output.print(&report.page(output))?;
    }
    let checks = report.checks();
    let is_bad =
        |check: &&Check| check.level == Level::Fail || args.strict && check.level == Level::Warn;
    Ok(if checks.iter().any(is_bad) {
        Exit::No
    } else {
        Exit::Success
    })
}

fn count(checks: &[&Check], level: Level) -> usize {
    checks.iter().filter(|check| check.level == level).count()
}

/// The line that ends a section.
fn conclusion(of: &str, checks: &[&Check], user: Option<&str>) -> String {
    let user = user.map(|user| format!("; {user}")).unwrap_or_default();
    let (summary, failed) = (summary(checks), failed_rights(checks));
    let polls = polls(checks);
    format!("{of}: {summary}{user}{polls}{failed}")
}

/// Says what the servers are together.
fn title(found: &Servers) -> String {
    let count = |sentinels: bool| {
        let servers = found.servers.iter();
        servers
            .filter(|server| (server.part == Part::Sentinel) == sentinels)
            .count()
    };
    let servers = count(false);
    match &found.topology {
        Topology::Single => found.servers.iter().map(Server::address).collect(),
        Topology::Sentinel(service) => {
            let sentinels = count(true);
            format!("service `{service}` ({servers} servers, {sentinels} Sentinels)")
        }
        Topology::Cluster => format!("cluster of {servers} nodes"),
        Topology::Quorum => format!("quorum of {servers} servers"),
    }
}

/// The kind of a server in JSON: a word that does not change.
fn kind(part: Part) -> &'static str {
    match part {
        Part::Single => "server",
        Part::Primary => "primary",
        Part::Replica => "replica",
        Part::Sentinel => "sentinel",
        Part::Member => "member",
        Part::Unlisted => "unlisted",
    }
}

/// What a server is, for people.
fn words(part: Part) -> &'static str {
    match part {
        Part::Single => "a server",
        Part::Primary => "primary",
        Part::Replica => "replica",
        Part::Sentinel => "Sentinel",
        Part::Member => "server of the quorum",
        Part::Unlisted => "named by the URL only",
    }
}

/// Writes the checks. Those that were skipped for the same reason have one line, so that a missing
/// right is named once.
fn write_checks(page: &mut Page, checks: &[&Check], output: &Output) {
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
            ..(*check).clone()
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
    // A note isn't a defect, and most notes need no action.
    let explained = check.level >= Level::Warn || output.is_verbose();
    for (name, line) in [("means", &check.means), ("do", &check.advice)] {
        if explained && *line != Line::default() {
            page.line(&format!("      {name:<6} {line}"));
        }
    }
}

/// Says that a check of the rights failed, since the rest of the summary is about the server.
fn failed_rights(checks: &[&Check]) -> String {
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
fn polls(checks: &[&Check]) -> &'static str {
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
fn summary(checks: &[&Check]) -> String {
    let of_server = |check: &&&Check| !rights::IDS.contains(&check.id);
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
