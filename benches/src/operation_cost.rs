//! What an operation costs: time of the server, time of this process, and commands.

use std::time::Duration;

use test_support::RedisServer;

use crate::figures::{median, micros};
use crate::process::own_processor_time;
use crate::server_info::{CommandStat, scripts};

/// The mean cost of one operation.
#[derive(Clone, Copy, Debug)]
pub struct OperationCost {
    /// The time of the server in its scripts, in microseconds.
    pub server_us: f64,
    /// The processor time of all threads of this process, in microseconds.
    pub client_us: f64,
    /// The number of scripts that clients called.
    pub commands: f64,
}

impl OperationCost {
    /// Returns the median of each cost. A measurement on a busy machine may be far off: the time of
    /// the server includes the time for which another process had its core.
    ///
    /// # Panics
    ///
    /// Panics if there are no costs.
    #[must_use]
    pub fn median(costs: &[Self]) -> Self {
        let middle = |cost: fn(&Self) -> f64| median(costs.iter().map(cost));
        Self {
            server_us: middle(|cost| cost.server_us),
            client_us: middle(|cost| cost.client_us),
            commands: middle(|cost| cost.commands),
        }
    }
}

/// Measures the cost of operations from its creation on.
pub struct Meter<'a> {
    server: &'a RedisServer,
    scripts: CommandStat,
    processor_time: Duration,
}

impl<'a> Meter<'a> {
    /// Begins to measure.
    #[must_use]
    pub fn start(server: &'a RedisServer) -> Self {
        Self {
            server,
            scripts: scripts(server),
            processor_time: own_processor_time(),
        }
    }

    /// Returns the number of scripts since the start.
    #[must_use]
    pub fn calls(&self) -> f64 {
        (scripts(self.server) - self.scripts).calls
    }

    /// Ends the measurement of this many operations.
    #[must_use]
    pub fn stop(self, operations: f64) -> OperationCost {
        let used = own_processor_time().saturating_sub(self.processor_time);
        let scripts = scripts(self.server) - self.scripts;
        OperationCost {
            server_us: scripts.micros / operations,
            client_us: micros(used) / operations,
            commands: scripts.calls / operations,
        }
    }
}
