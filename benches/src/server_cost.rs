//! The cost of scripts on the server, from `INFO commandstats`.

use test_support::RedisServer;

/// The scripts that clients called by their hashes, and the time that the server spent in them. The
/// time of a script includes its commands. All lock commands are such scripts: a client sends the text
/// of a script only to a server that has lost it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScriptCost {
    /// The number of EVALSHA commands.
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

    fn parse(info: &str) -> Self {
        let mut cost = Self::default();
        for line in info.lines() {
            let Some((name, fields)) = line.split_once(':') else {
                continue;
            };
            if name != "cmdstat_evalsha" {
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
    fn parse_reads_the_scripts_and_nothing_else() {
        let info = "# Commandstats\r\n\
            cmdstat_get:calls=7,usec=9,usec_per_call=1.29,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_evalsha:calls=3,usec=30,usec_per_call=10.00,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_eval:calls=1,usec=90,usec_per_call=90.00,rejected_calls=0,failed_calls=0\r\n";
        let cost = ScriptCost::parse(info);
        let expected = ScriptCost {
            calls: 3,
            micros: 30,
        };
        assert_eq!(cost, expected);
        assert_eq!(cost.since(cost), ScriptCost::default());
    }
}
