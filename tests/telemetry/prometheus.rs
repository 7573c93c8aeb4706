//! What Prometheus reads.

use std::collections::BTreeMap;

use lock_core::telemetry::{ACQUIRE_BUCKETS, METRICS, MetricKind};
use lock_core::{LockManager, LockName};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use test_support::RedisServer;
use test_support::fixtures::{LONG, current_thread_runtime, ms};

/// One line with a value.
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: f64,
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads a line by the grammar of the text format. No label of this library has a quote or a comma.
fn sample(line: &str) -> Sample<'_> {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').expect("a closed brace")),
        None => (series, ""),
    };
    assert!(is_name(name), "{line}");
    let labels = labels.split("\",").filter(|label| !label.is_empty());
    let labels = labels.map(|label| {
        let (key, value) = label.split_once("=\"").expect("a quoted value");
        assert!(is_name(key), "{line}");
        (key, value.trim_end_matches('"'))
    });
    Sample {
        name,
        labels: labels.collect(),
        value: value.parse().expect("a number"),
    }
}

#[test]
fn prometheus_exposition_is_valid() {
    let matcher = Matcher::Full("distributed_lock.acquire.duration".into());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, ACQUIRE_BUCKETS);
    let recorder = builder.unwrap().build_recorder();
    // On this thread only: the other tests have the recorder of the process.
    let _local = metrics::set_default_local_recorder(&recorder);
    current_thread_runtime().block_on(async {
        let server = RedisServer::start();
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let request = || {
            locks
                .lock(LockName::from("order:7").with_template("order:{id}"))
                .ttl(LONG)
        };
        let held = request().acquire().await.unwrap();
        assert!(request().wait(ms(20)).acquire().await.is_err());
        held.release().await.unwrap();
        drop(request().acquire().await.unwrap());
    });
    let text = recorder.handle().render();
    let mut types = BTreeMap::new();
    let mut samples = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a kind");
            assert_eq!(types.insert(name, kind), None, "{name} is declared twice");
        } else if !line.starts_with('#') {
            samples.push(sample(line));
        }
    }
    for metric in METRICS {
        let name = metric.name.replace('.', "_");
        let Some(kind) = types.get(name.as_str()) else {
            continue;
        };
        let expected: &[&str] = match metric.kind {
            MetricKind::Histogram => &["histogram", "summary"],
            MetricKind::Gauge | MetricKind::Seconds => &["gauge"],
            MetricKind::Counter => &["counter"],
            _ => &[],
        };
        assert!(expected.contains(kind), "{name}: {kind}");
        let help = format!("# HELP {name} {}", metric.description);
        assert!(text.contains(&help), "{help}\n{text}");
    }
    // The buckets are those of the library, they grow, and the last one has all values.
    let bucket = |sample: &&Sample<'_>| {
        sample.name == "distributed_lock_acquire_duration_bucket"
            && sample.labels.get("outcome") == Some(&"acquired")
    };
    let buckets: Vec<_> = samples.iter().filter(bucket).collect();
    assert_eq!(buckets.len(), ACQUIRE_BUCKETS.len() + 1);
    assert!(buckets.is_sorted_by(|a, b| a.value <= b.value));
    let last = buckets.last().unwrap();
    assert_eq!(last.labels["le"], "+Inf");
    assert_eq!(last.labels["distributed_lock_name"], "order:{id}");
    assert!((last.value - 2.0).abs() < 0.5);
    for gauge in ["distributed_lock_held", "distributed_lock_waiting"] {
        let now = samples.iter().find(|sample| sample.name == gauge).unwrap();
        assert!(now.value.abs() < 0.5, "{gauge}: {}", now.value);
        assert_eq!(now.labels["kind"], "exclusive");
    }
}
