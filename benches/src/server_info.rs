//! What the server reports of itself with INFO: its commands, its traffic and its memory.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::Sub;

use test_support::RedisServer;

/// The calls of each command since the start of the server, and its time for them.
///
/// The commands within a script are counted themselves too, and their time is a part of the
/// script's time.
#[derive(Debug, Default)]
pub struct CommandStats(BTreeMap<String, CommandStat>);

/// The calls of some commands, and the server's time for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommandStat {
    /// The number of calls.
    pub calls: f64,
    /// The time in microseconds.
    pub micros: f64,
}

impl Sum for CommandStat {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), |sum, stat| Self {
            calls: sum.calls + stat.calls,
            micros: sum.micros + stat.micros,
        })
    }
}

impl Sub for CommandStat {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            micros: self.micros - earlier.micros,
        }
    }
}

/// The command that calls a script by its hash. All commands of native locks are such calls: a
/// client sends the text of a script only to a server that has lost it.
pub const SCRIPT: &str = "evalsha";

/// Returns the counters of all scripts that clients called by their hashes.
///
/// # Panics
///
/// Panics if the server does not reply.
#[must_use]
pub fn scripts(server: &RedisServer) -> CommandStat {
    CommandStats::read(server).of(&[SCRIPT])
}

impl CommandStats {
    /// Reads the counters of a server.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn read(server: &RedisServer) -> Self {
        Self::parse(&info(server, "commandstats"))
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

    /// Returns the sum of the counters of these commands, in small letters.
    #[must_use]
    pub fn of(&self, commands: &[&str]) -> CommandStat {
        let stats = commands.iter().filter_map(|command| self.0.get(*command));
        stats.copied().sum()
    }
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
    /// Reads the counters of a server. This request and the end of its connection are reads, too: the
    /// next one counts the end and itself.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn read(server: &RedisServer) -> Self {
        Self::parse(&info(server, "stats"))
    }

    fn parse(info: &str) -> Self {
        Self {
            reads: field(info, "total_reads_processed"),
            bytes_in: field(info, "total_net_input_bytes"),
            bytes_out: field(info, "total_net_output_bytes"),
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

/// Returns the bytes that the server has allocated.
///
/// # Panics
///
/// Panics if the server does not reply.
#[must_use]
pub fn used_memory(server: &RedisServer) -> f64 {
    field(&info(server, "memory"), "used_memory")
}

fn info(server: &RedisServer, section: &str) -> String {
    server.cli(&["INFO", section]).text().to_owned()
}

fn field(info: &str, name: &str) -> f64 {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    let value = fields.find(|(field, _)| *field == name);
    value
        .and_then(|(_, value)| value.trim().parse().ok())
        .expect("the server reports it")
}

#[cfg(test)]
mod tests {
    use super::{CommandStat, CommandStats, Traffic};

    #[test]
    fn commands_are_summed_and_others_are_left_out() {
        let stats = CommandStats::parse(
            "# Commandstats\r\n\
             cmdstat_set:calls=2,usec=3,usec_per_call=1.50,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_evalsha:calls=4,usec=20,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_eval:calls=1,usec=100,usec_per_call=100.00,rejected_calls=0,failed_calls=0\r\n",
        );
        let stat = |calls, micros| CommandStat { calls, micros };
        assert_eq!(stats.of(&["set"]), stat(2.0, 3.0));
        assert_eq!(stats.of(&["get"]), stat(0.0, 0.0));
        assert_eq!(stats.of(&["set", "evalsha"]), stat(6.0, 23.0));
        assert_eq!(stats.of(&["eval"]) - stats.of(&["set"]), stat(-1.0, 97.0));
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
