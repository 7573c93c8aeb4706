//! What the server counts of each command: `INFO commandstats`.

use std::collections::BTreeMap;

use test_support::RedisServer;

/// The calls of each command, and the server's time for them, since the last [`reset`].
///
/// The commands within a script are counted themselves too, and their time is a part of the
/// script's time.
#[derive(Debug, Default)]
pub struct CommandStats(BTreeMap<String, CommandStat>);

/// The calls of one command, and the server's time for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommandStat {
    /// The number of calls.
    pub calls: f64,
    /// The time in microseconds.
    pub micros: f64,
}

/// What the server received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// How often the server read from a connection. It reads one command, or several.
    pub reads: f64,
    /// The bytes that it received.
    pub bytes_in: f64,
    /// The bytes that it sent.
    pub bytes_out: f64,
}

impl Traffic {
    /// Reads the counters of a server. Counts this request in the next one.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn read(server: &RedisServer) -> Self {
        Self::parse(server.cli(&["INFO", "stats"]).text())
    }

    fn parse(info: &str) -> Self {
        let field = |name: &str| -> f64 {
            let mut fields = info.lines().filter_map(|line| line.split_once(':'));
            let value = fields.find(|(field, _)| *field == name);
            value
                .and_then(|(_, value)| value.trim().parse().ok())
                .expect("the server counts it")
        };
        Self {
            reads: field("total_reads_processed"),
            bytes_in: field("total_net_input_bytes"),
            bytes_out: field("total_net_output_bytes"),
        }
    }

    /// Returns the traffic since an earlier measurement, for one of `parts` equal operations.
    #[must_use]
    pub fn per(self, earlier: Self, parts: u32) -> Self {
        let each = |now, before| (now - before) / f64::from(parts);
        Self {
            reads: each(self.reads, earlier.reads),
            bytes_in: each(self.bytes_in, earlier.bytes_in),
            bytes_out: each(self.bytes_out, earlier.bytes_out),
        }
    }
}

/// Sets all counters of the server to zero.
///
/// # Panics
///
/// Panics if the server does not reply.
pub fn reset(server: &RedisServer) {
    assert_eq!(server.cli(&["CONFIG", "RESETSTAT"]).text(), "OK");
}

impl CommandStats {
    /// Reads the counters of a server.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn read(server: &RedisServer) -> Self {
        Self::parse(server.cli(&["INFO", "commandstats"]).text())
    }

    fn parse(info: &str) -> Self {
        let commands = info.lines().filter_map(|line| {
            let (command, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let field = |name: &str| -> Option<f64> {
                let mut fields = fields.split(',').filter_map(|field| field.split_once('='));
                let (_, value) = fields.find(|(field, _)| *field == name)?;
                value.trim().parse().ok()
            };
            let stat = CommandStat {
                calls: field("calls")?,
                micros: field("usec")?,
            };
            Some((command.to_owned(), stat))
        });
        Self(commands.collect())
    }

    /// Returns the counters of one command, in small letters.
    #[must_use]
    pub fn of(&self, command: &str) -> CommandStat {
        self.0.get(command).copied().unwrap_or_default()
    }

    /// Returns the counters of all scripts.
    #[must_use]
    pub fn of_scripts(&self) -> CommandStat {
        let scripts = ["eval", "evalsha", "fcall"].map(|command| self.of(command));
        CommandStat {
            calls: scripts.iter().map(|stat| stat.calls).sum(),
            micros: scripts.iter().map(|stat| stat.micros).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandStat, CommandStats, Traffic};

    #[test]
    fn scripts_are_summed_and_other_commands_are_kept_apart() {
        let stats = CommandStats::parse(
            "# Commandstats\r\n\
             cmdstat_set:calls=2,usec=3,usec_per_call=1.50,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_evalsha:calls=4,usec=20,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_eval:calls=1,usec=100,usec_per_call=100.00,rejected_calls=0,failed_calls=0\r\n",
        );
        let stat = |calls, micros| CommandStat { calls, micros };
        assert_eq!(stats.of("set"), stat(2.0, 3.0));
        assert_eq!(stats.of("get"), stat(0.0, 0.0));
        assert_eq!(stats.of_scripts(), stat(5.0, 120.0));
    }

    #[test]
    fn traffic_is_divided_by_the_operations() {
        let info = |reads, bytes| {
            format!(
                "# Stats\r\ntotal_net_input_bytes:{bytes}\r\ntotal_net_output_bytes:7\r\n\
                 total_reads_processed:{reads}\r\n"
            )
        };
        let (before, after) = (Traffic::parse(&info(3, 100)), Traffic::parse(&info(5, 500)));
        let each = Traffic {
            reads: 0.5,
            bytes_in: 100.0,
            bytes_out: 0.0,
        };
        assert_eq!(after.per(before, 4), each);
    }
}
