//! One scenario for each row of the tables of events and metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use lock_core::telemetry::METRICS;
use test_support::eventually_async;
use test_support::fixtures::SOON;

use super::recorder::Series;
use super::{alone, recorder, subscriber, tables};

mod connections;
mod contention;
mod losses;
mod operators;
mod servers;

/// What the scenarios have emitted.
#[derive(Default)]
struct Proof {
    metrics: BTreeSet<String>,
    events: BTreeSet<(String, String)>,
    /// The state when the scenario began.
    before: BTreeMap<Series, i64>,
    events_before: usize,
}

impl Proof {
    /// Begins a scenario.
    fn begin(&mut self) {
        self.before = recorder::totals().clone();
        self.events_before = subscriber::events(|_| true).len();
    }

    /// Waits until the scenario has changed a series of this metric with these labels.
    async fn metric(&mut self, name: &str, labels: &[(&str, &str)]) {
        let before = self.before.clone();
        let changed = || {
            let totals = recorder::totals();
            totals.iter().any(|(series, value)| {
                recorder::matches(series, name, labels)
                    && before.get(series).is_none_or(|before| before != value)
            })
        };
        println!("  {name} {labels:?}");
        eventually_async(SOON, async || changed()).await;
        self.metrics.insert(name.to_owned());
    }

    /// Waits until the scenario has emitted this event.
    async fn event(&mut self, name: &str, level: &str) {
        let before = self.events_before;
        let is_emitted = || {
            let events = subscriber::events(|_| true);
            let mut new = events[before..].iter();
            new.any(|event| event.name == name && event.level.as_str() == level)
        };
        println!("  {name} {level}");
        eventually_async(SOON, async || is_emitted()).await;
        self.events.insert((name.to_owned(), level.to_owned()));
    }
}

/// Runs all scenarios once.
fn proof() -> &'static Proof {
    static PROOF: OnceLock<Proof> = OnceLock::new();
    PROOF.get_or_init(|| {
        alone(async {
            let mut proof = Proof::default();
            contention::run(&mut proof).await;
            losses::run(&mut proof).await;
            connections::run(&mut proof).await;
            servers::run(&mut proof).await;
            operators::run(&mut proof).await;
            proof
        })
    })
}

#[test]
fn every_metric_is_emitted() {
    let proof = proof();
    let all = METRICS.iter().map(|metric| metric.name.to_owned());
    assert_eq!(all.collect::<BTreeSet<_>>(), proof.metrics);
}

#[test]
fn every_event_is_emitted() {
    let proof = proof();
    let all = tables::events().into_iter();
    let all = all.flat_map(|(name, levels)| {
        let with_name = move |level| (name.clone(), level);
        levels.into_iter().map(with_name)
    });
    assert_eq!(all.collect::<BTreeSet<_>>(), proof.events);
}

/// A metric has only the labels of its row.
#[test]
fn metrics_have_the_labels_of_the_table() {
    proof();
    for (name, labels) in recorder::totals().keys() {
        let row = METRICS.iter().find(|metric| metric.name == name);
        let row = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        for (label, _) in labels {
            assert!(row.labels.contains(&label.as_str()), "{name}: {label}");
        }
    }
}

/// An event has only the fields of its row, and the lock's name.
#[test]
fn events_have_the_fields_of_the_table() {
    proof();
    let rows: BTreeMap<_, _> = tables::event_fields().into_iter().collect();
    for event in subscriber::events(|event| event.target.starts_with("lock_core")) {
        let known = &rows[event.name];
        for field in event.fields.0.keys() {
            let is_common = field == "message" || field == "distributed_lock.name";
            assert!(
                is_common || known.contains(field),
                "{}: {field}",
                event.name
            );
        }
        let message = event.fields.get("message").expect("a message");
        assert!(message.starts_with(event.name), "{message}");
    }
}
