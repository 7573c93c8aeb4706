//! Gives the events of locks to the meters of OpenTelemetry.
//!
//! `cargo run -p examples --features otel --example otel`
//!
//! It needs no server: the locks are in memory. An exporter in memory keeps the metrics, and the example
//! prints them.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

// The guide `telemetry` shows this file.
mod observer;

use observer::OtelObserver;

#[distributed_lock(name = "order:{id}", wait = "20ms", manager = locks)]
async fn ship(locks: &LockManager, id: u32) -> Result<(), LockError> {
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let exporter = InMemoryMetricExporter::default();
    let builder = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone());
    let provider = builder.build();
    let observer = OtelObserver::new(&provider.meter("lock-core"));
    let locks = LockManager::builder().observer(observer).in_memory()?;

    for id in 1..=3 {
        ship(&locks, id).await?;
    }
    let held = locks.lock("order:4").acquire().await?;
    assert!(
        ship(&locks, 4)
            .await
            .is_err_and(|error| error.is_contended())
    );
    drop(held);
    let short = locks.lock("report").ttl(Duration::from_millis(100));
    let lost = short.renew(lock_core::Renew::Never).acquire().await?;
    lost.lost().await;
    drop(lost);

    provider.force_flush()?;
    let snapshots = exporter.get_finished_metrics()?;
    let latest = snapshots.last().ok_or("nothing was exported")?;
    for scope in latest.scope_metrics() {
        for metric in scope.metrics() {
            print(metric);
        }
    }
    provider.shutdown()?;
    Ok(())
}

fn print(metric: &Metric) {
    let line = |labels: Vec<&KeyValue>, value: String| {
        let mut labels: Vec<_> = labels
            .iter()
            .map(|label| format!("{}={}", label.key, label.value))
            .collect();
        labels.sort();
        println!("{} {{{}}} {value}", metric.name(), labels.join(", "));
    };
    match metric.data() {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
            for point in histogram.data_points() {
                line(point.attributes().collect(), point.count().to_string());
            }
        }
        AggregatedMetrics::U64(MetricData::Sum(sum)) => {
            for point in sum.data_points() {
                line(point.attributes().collect(), point.value().to_string());
            }
        }
        AggregatedMetrics::I64(MetricData::Sum(sum)) => {
            for point in sum.data_points() {
                line(point.attributes().collect(), point.value().to_string());
            }
        }
        _ => {}
    }
}
