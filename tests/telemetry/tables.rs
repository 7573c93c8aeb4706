//! The tables of the guide.

use lock_core::telemetry::{METRICS, MetricInfo};

pub(crate) const GUIDE: &str = include_str!("../../lock-core/docs/telemetry.md");

fn code_spans(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(ToOwned::to_owned)
        .collect()
}

/// Returns the cells of the rows of a section that begin with this text.
fn rows(section: &str, begins: &str) -> Vec<Vec<&'static str>> {
    let section = GUIDE.split("\n## ").find(|part| part.starts_with(section));
    let lines = section.expect("the section").lines();
    let rows = lines.filter(|line| line.starts_with(begins));
    rows.map(|line| line.trim_matches('|').split('|').collect())
        .collect()
}

/// Returns the names of the events with their levels.
pub(crate) fn events() -> Vec<(String, Vec<String>)> {
    let rows = rows("Events", "| `lock.").into_iter();
    rows.map(|cells| {
        let levels = cells[1].split(',').map(|level| level.trim().to_owned());
        (code_spans(cells[0])[0].clone(), levels.collect())
    })
    .collect()
}

/// Returns the names of the events with their fields.
pub(crate) fn event_fields() -> Vec<(String, Vec<String>)> {
    let rows = rows("Events", "| `lock.").into_iter();
    rows.map(|cells| (code_spans(cells[0])[0].clone(), code_spans(cells[2])))
        .collect()
}

/// Returns the names of the spans with their fields.
pub(crate) fn span_fields() -> Vec<(String, Vec<String>)> {
    let rows = rows("Spans", "| `lock.").into_iter();
    rows.map(|cells| (code_spans(cells[0])[0].clone(), code_spans(cells[3])))
        .collect()
}

#[test]
fn guide_shows_the_observer_of_the_example() {
    let observer = include_str!("../../examples/otel/observer.rs");
    assert!(GUIDE.contains(&format!("```ignore\n{observer}```")));
}

#[test]
fn guide_has_the_metrics_of_the_code() {
    let in_guide: Vec<_> = GUIDE
        .split("\n## ")
        .find(|part| part.starts_with("Metrics"))
        .expect("the section")
        .lines()
        .filter(|line| line.starts_with("| `distributed_lock."))
        .map(ToOwned::to_owned)
        .collect();
    let row = |metric: &MetricInfo| {
        let labels = metric.labels.iter().map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        let labels = if labels.is_empty() {
            labels
        } else {
            labels + " "
        };
        format!("| `{}` | {} | {labels}|", metric.name, metric.kind.as_str())
    };
    let in_code: Vec<_> = METRICS.iter().map(row).collect();
    assert_eq!(in_guide, in_code);
}

#[test]
fn guide_has_the_texts_of_all_labels() {
    use lock_core::telemetry::{
        AcquireEnd, CleanupEnd, CleanupOperation, HoldEnd, LockCommand, NotificationUse,
    };
    let values = |label: &str| {
        let rows = GUIDE.lines();
        let row = rows
            .filter(|line| line.starts_with("| `"))
            .find(|line| line[2..].starts_with(label));
        let row = row.unwrap_or_else(|| panic!("no row {label}"));
        code_spans(row.trim_matches('|').split('|').nth(1).expect("two cells"))
    };
    let acquire = [
        AcquireEnd::Acquired,
        AcquireEnd::Contended,
        AcquireEnd::TimedOut,
        AcquireEnd::QueueFull,
        AcquireEnd::Done,
        AcquireEnd::Cancelled,
        AcquireEnd::Failed,
    ];
    assert_eq!(
        values("`outcome` of an acquire"),
        acquire.map(AcquireEnd::as_str)
    );
    let hold = [
        HoldEnd::Released,
        HoldEnd::Lost,
        HoldEnd::ReleaseFailed,
        HoldEnd::Ticket,
    ];
    assert_eq!(values("`outcome` of a hold"), hold.map(HoldEnd::as_str));
    let cleanup = [
        CleanupEnd::Confirmed,
        CleanupEnd::Expired,
        CleanupEnd::ClockSetBack,
        CleanupEnd::Forbidden,
        CleanupEnd::Refused,
    ];
    assert_eq!(
        values("`outcome` of a cleanup"),
        cleanup.map(CleanupEnd::as_str)
    );
    let operations = [CleanupOperation::Release, CleanupOperation::Cancel];
    assert_eq!(
        values("`operation`"),
        operations.map(CleanupOperation::as_str)
    );
    let uses = [
        NotificationUse::Used,
        NotificationUse::Stale,
        NotificationUse::Refused,
    ];
    assert_eq!(
        values("`outcome` of a notification"),
        uses.map(NotificationUse::as_str)
    );
    let commands = [
        LockCommand::Acquire,
        LockCommand::Renew,
        LockCommand::Release,
        LockCommand::Cancel,
        LockCommand::Ping,
        LockCommand::Inspect,
    ];
    assert_eq!(values("`command`"), commands.map(LockCommand::as_str));
}
