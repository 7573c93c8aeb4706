//! The configuration that a worker receives when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_testing::nanos;
use serde_json::{Value, json};

use crate::dialects;
use crate::workload::Workload;

/// The configuration of one worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The URL of the lock server, or of the proxy in front of it.
    pub url: String,
    /// The address of the protected resource.
    pub resource: SocketAddr,
    /// The path of the record.
    pub record: PathBuf,
    /// The number of the worker.
    pub worker: u32,
    /// The seed of its random choices.
    pub seed: u64,
    /// The workload.
    pub workload: Workload,
    /// The manager's command timeout.
    pub command_timeout: Duration,
    /// The manager's dialect.
    pub dialect: Dialect,
}

impl WorkerConfig {
    /// Encodes the configuration as an argument.
    pub fn to_argument(&self) -> String {
        json!({
            "url": self.url,
            "resource": self.resource.to_string(),
            "record": self.record,
            "worker": self.worker,
            "seed": self.seed,
            "workload": self.workload.name(),
            "command_timeout_ms": nanos(self.command_timeout) / 1_000_000,
            "dialect": dialects::name(self.dialect),
        })
        .to_string()
    }

    /// Parses the output of [`to_argument`](Self::to_argument).
    pub fn parse(argument: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(argument).ok()?;
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        Some(Self {
            url: text("url")?.to_owned(),
            resource: text("resource")?.parse().ok()?,
            record: text("record")?.into(),
            worker: u32::try_from(number("worker")?).ok()?,
            seed: number("seed")?,
            workload: Workload::named(text("workload")?)?,
            command_timeout: Duration::from_millis(number("command_timeout_ms")?),
            dialect: dialects::named(text("dialect")?)?,
        })
    }
}
