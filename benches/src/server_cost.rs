//! The cost of scripts on the server, from `INFO commandstats`.

use test_support::RedisServer;

/// The scripts that clients called, and the time that the server spent in them. The commands within
/// a script count as the script.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScriptCost {
    /// The number of EVALSHA and EVAL commands.
    pub calls: u32,
    /// Their time in microseconds.
    pub micros: u32,
}

impl ScriptCost {
    /// Returns the cost since the start of the server.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn of(server: &RedisServer) -> Self {
        Self::parse(server.cli(&["INFO", "commandstats"]).text())
    }

    /// Returns the cost since an earlier measurement.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            micros: self.micros - earlier.micros,
        }
    }

    /// Returns the mean time of one call in microseconds.
    #[must_use]
    pub fn micros_per_call(self) -> f64 {
        f64::from(self.micros) / f64::from(self.calls)
    }

    fn parse(info: &str) -> Self {
        let mut cost = Self::default();
        for line in info.lines() {
            let Some((name, fields)) = line.split_once(':') else {
                continue;
            };
            if !matches!(name, "cmdstat_evalsha" | "cmdstat_eval") {
                continue;
            }
            for field in fields.split(',') {
                match field.split_once('=') {
                    Some(("calls", calls)) => cost.calls += calls.parse::<u32>().unwrap_or(0),
                    Some(("usec", micros)) => cost.micros += micros.parse::<u32>().unwrap_or(0),
                    _ => {}
                }
            }
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_adds_the_scripts_and_nothing_else() {
        let info = "# Commandstats\r\n\
            cmdstat_get:calls=7,usec=9,usec_per_call=1.29,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_evalsha:calls=3,usec=30,usec_per_call=10.00,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_eval:calls=1,usec=90,usec_per_call=90.00,rejected_calls=0,failed_calls=0\r\n";
        let cost = ScriptCost::parse(info);
        let expected = ScriptCost {
            calls: 4,
            micros: 120,
        };
        assert_eq!(cost, expected);
        assert!((cost.micros_per_call() - 30.0).abs() < 1e-9);
        assert_eq!(cost.since(cost), ScriptCost::default());
    }
}
