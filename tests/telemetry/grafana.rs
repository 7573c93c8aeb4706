//! The dashboard and its alerts name metrics that exist.

use std::collections::BTreeSet;

use std::time::Duration;

use lock_core::telemetry::{ACQUIRE_BUCKETS, METRICS, MetricInfo, MetricKind};
use lock_core::{LockManager, LockName};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
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
        for text in ["summary", "runbook", "runbook_url"] {
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

fn alerts() -> Vec<Value> {
    let mut dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    serde_json::from_value(dashboard["alerts"].take()).unwrap()
}

/// An alert without them does not say which process has the trouble.
#[test]
fn alerts_keep_the_job_and_the_instance() {
    for alert in alerts() {
        let expression = alert["expr"].as_str().unwrap();
        let sums: Vec<_> = expression.match_indices("sum").collect();
        assert!(!sums.is_empty(), "{expression}");
        for (at, _) in sums {
            let (by, _) = expression[at..].split_once(')').unwrap();
            let labels: Vec<_> = by["sum by (".len()..].split(", ").collect();
            assert!(
                labels.contains(&"job") && labels.contains(&"instance"),
                "{by}"
            );
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        assert!(url.starts_with("https://") && url.ends_with("#alerts"));
    }
}

fn waits_long() -> (String, f64) {
    let name = "DistributedLockWaitsLong";
    let alert = alerts().into_iter().find(|alert| alert["alert"] == name);
    let expression = alert.unwrap()["expr"].as_str().unwrap().to_owned();
    let (expression, limit) = expression.rsplit_once(" > ").unwrap();
    (expression.to_owned(), limit.parse().unwrap())
}

/// Computes `histogram_quantile(0.99, ..)` as Prometheus does: linearly within a bucket.
fn p99(buckets: &[f64], waits: &[f64]) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap());
    let count = |end: f64| number(waits.iter().filter(|wait| **wait <= end).count());
    let rank = 0.99 * number(waits.len());
    let at = buckets.iter().position(|end| count(*end) >= rank);
    let Some(at) = at else {
        return buckets[buckets.len() - 1];
    };
    let (start, below) = match at {
        0 => (0.0, 0.0),
        _ => (buckets[at - 1], count(buckets[at - 1])),
    };
    start + (buckets[at] - start) * (rank - below) / (count(buckets[at]) - below)
}

/// The limit of the alert is the end of a bucket. Within a bucket Prometheus only guesses.
#[test]
fn alert_of_long_waits_fires_above_its_limit_only() {
    let (_, limit) = waits_long();
    for wait in [0.001, 0.7, 1.001, 1.2, 2.0, 2.4] {
        let seen = p99(ACQUIRE_BUCKETS, &[wait; 200]);
        assert!(seen <= limit, "{wait} s are seen as {seen} s");
    }
    for wait in [2.6, 4.0, 7.0, 60.0] {
        let seen = p99(ACQUIRE_BUCKETS, &[wait; 200]);
        assert!(seen > limit, "{wait} s are seen as {seen} s");
    }
    let without: Vec<_> = ACQUIRE_BUCKETS
        .iter()
        .copied()
        .filter(|end| (*end - limit).abs() > 0.1)
        .collect();
    assert!(
        p99(&without, &[1.2; 200]) > limit,
        "the bucket is what helps"
    );
}

/// A standby reports a timeout of ten minutes every ten minutes, for as long as another instance leads.
#[test]
fn standby_of_a_leader_is_apart_from_waits() {
    let (expression, _) = waits_long();
    let series = "distributed_lock_acquire_duration_bucket";
    assert!(expression.contains(&format!("{series}{{role!=\"candidate\"}}[")));

    let matcher = Matcher::Full("distributed_lock.acquire.duration".into());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, ACQUIRE_BUCKETS);
    let recorder = builder.unwrap().build_recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let page = runtime.block_on(async {
        let locks = LockManager::in_memory();
        let leader = locks
            .lock(LockName::from("leader").with_template("leader"))
            .acquire()
            .await;
        let leader = leader.unwrap();
        let standby = locks.lock(LockName::from("leader").with_template("leader"));
        let standby = standby.lead(async |_| ());
        let hour = Duration::from_secs(3600);
        let watched = async {
            tokio::time::sleep(hour).await;
            let page = recorder.handle().render();
            drop(leader);
            page
        };
        let (led, page) = tokio::join!(standby, watched);
        led.unwrap();
        page
    });
    let standby = "role=\"candidate\"";
    let timeouts: Vec<_> = page
        .lines()
        .filter(|line| line.contains("outcome=\"timeout\""))
        .collect();
    assert!(!timeouts.is_empty(), "{page}");
    assert!(timeouts.iter().all(|line| line.contains(standby)), "{page}");
    // The call of the leader itself is one.
    let calls: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with(series) && !line.contains(standby))
        .collect();
    assert_eq!(calls.len(), ACQUIRE_BUCKETS.len() + 1, "{page}");
    let waiting = page
        .lines()
        .find(|line| line.starts_with("distributed_lock_waiting{"));
    assert!(waiting.is_some_and(|line| line.contains(standby)), "{page}");
}
