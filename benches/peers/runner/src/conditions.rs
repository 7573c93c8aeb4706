//! The machine, the versions and the size of a run.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};
use test_support::RedisServer;

/// The conditions of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// The day, as `2026-11-22`.
    pub(crate) date: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    /// The name and version of the server.
    pub(crate) server: String,
    pub(crate) rounds: usize,
    pub(crate) is_quick: bool,
    /// Whether client and server of the row `pair` shared one core.
    pub(crate) is_pinned: bool,
}

impl Conditions {
    pub(crate) fn of(server: &RedisServer, rounds: usize, is_quick: bool, is_pinned: bool) -> Self {
        Self {
            date: output("date", &["-u", "+%F"]),
            processor: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: available_parallelism().map_or(1, usize::from),
            system: system(&output("uname", &["-sr"])),
            server: version(server.cli(&["INFO", "server"]).text()),
            rounds,
            is_quick,
            is_pinned,
        }
    }

    /// Returns a sentence for the page.
    pub(crate) fn sentence(&self) -> String {
        let pinned = if self.is_pinned {
            "In the column `pair`, client and server share one core."
        } else {
            "`taskset` is missing, so that client and server of the column `pair` may use several cores."
        };
        let quick = if self.is_quick {
            " A quick run: too short for conclusions."
        } else {
            ""
        };
        let rounds = match self.rounds {
            1 => "one measurement".to_owned(),
            rounds => format!("the median of {rounds} rounds"),
        };
        format!(
            "Measured on {}: {} cores ({}), {}, {}. Each figure is {rounds}. {pinned}{quick}",
            self.date, self.cores, self.processor, self.system, self.server
        )
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// Returns the name and the first two numbers of the version. The rest names a build.
fn system(uname: &str) -> String {
    let mut parts = uname.splitn(3, '.');
    let [name, minor] = [parts.next(), parts.next()].map(Option::unwrap_or_default);
    if minor.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{minor}")
    }
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the name and version from `INFO server`.
fn version(info: &str) -> String {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines
            .find_map(|line| line.strip_prefix(name))
            .map(|value| value.trim().to_owned())
    };
    match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::{system, version};

    #[test]
    fn system_has_no_name_of_a_build() {
        assert_eq!(system("Linux 6.12.9-build-17"), "Linux 6.12");
        assert_eq!(system("Linux"), "Linux");
    }

    #[test]
    fn version_names_the_server() {
        assert_eq!(
            version("# Server\r\nredis_version:7.0.15\r\n"),
            "Redis 7.0.15"
        );
        let both = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n";
        assert_eq!(version(both), "Valkey 8.1.0");
    }
}
