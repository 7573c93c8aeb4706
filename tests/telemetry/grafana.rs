//! The dashboard and its alerts name metrics that exist.

use std::collections::BTreeSet;

use lock_core::telemetry::{METRICS, MetricInfo, MetricKind};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../docs/grafana.json");

/// Returns the texts of all fields `expr`.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if name == "expr" => found.push(text.to_owned()),
                    _ => expressions(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

/// Returns the series that Prometheus shows for a metric.
fn series(metric: &MetricInfo) -> Vec<String> {
    let name = metric.name.replace('.', "_");
    match metric.kind {
        MetricKind::Histogram => ["bucket", "sum", "count"]
            .map(|end| format!("{name}_{end}"))
            .into(),
        _ => vec![name],
    }
}

fn words(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("distributed_lock_"))
}

#[test]
fn dashboard_names_existing_metrics() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    assert!(found.len() > 10, "{found:?}");
    let labels = |metric: &MetricInfo| {
        let labels = metric.labels.iter().map(|label| label.replace('.', "_"));
        labels.collect::<Vec<_>>()
    };
    let known_labels: BTreeSet<_> = METRICS.iter().flat_map(labels).collect();
    let mut shown = BTreeSet::new();
    for word in found.iter().flat_map(|expression| words(expression)) {
        let metric = METRICS
            .iter()
            .find(|metric| series(metric).iter().any(|series| series == word));
        match metric {
            Some(metric) => {
                shown.insert(metric.name);
            }
            None => assert!(known_labels.contains(word), "no metric has the name {word}"),
        }
    }
    let all: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(shown, all, "the dashboard shows each metric");
}

#[test]
fn alerts_are_those_of_the_guide() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let alerts = dashboard["alerts"].as_array().unwrap();
    let expressions: Vec<_> = alerts
        .iter()
        .map(|alert| alert["expr"].as_str().unwrap())
        .collect();
    for (at, metric) in ["losses", "acquire_duration", "cleanups_open"]
        .into_iter()
        .enumerate()
    {
        assert!(expressions[at].contains(metric), "{expressions:?}");
        for text in ["summary", "runbook"] {
            assert!(alerts[at]["annotations"][text].is_string());
        }
    }
    let section = super::tables::GUIDE
        .split("\n## ")
        .find(|part| part.starts_with("Alerts"));
    let rows = section
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| "));
    // The first row is the heading.
    let rows: Vec<_> = rows.skip(1).collect();
    assert_eq!(rows.len(), alerts.len(), "a row for each");
    for (row, alert) in rows.iter().zip(alerts) {
        let name = alert["alert"].as_str().unwrap();
        assert!(row.starts_with(&format!("| `{name}`: ")), "{name}: {row}");
    }
}

/// A counter begins with its first event, at 1. `increase` alone does not see that event.
#[test]
fn first_event_of_a_counter_is_seen() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    found.retain(|expression| expression.contains("increase("));
    assert!(found.len() > 5, "{found:?}");
    for expression in found {
        let (_, series) = expression.split_once("increase(").unwrap();
        let (series, _) = series.split_once("[5m])").unwrap();
        // In this order: for a new series, `increase` is 0, and `or` takes the left side.
        // Over a range: a failed scrape ends a series, and its next value is not a first event.
        let before = format!("last_over_time({series}[15m] offset 5m)");
        let both = format!("({series} unless {before}) or increase({series}[5m])");
        assert!(expression.contains(&both), "{expression}");
    }
}
