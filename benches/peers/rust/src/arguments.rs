//! The arguments of a peer program.

use std::str::FromStr;
use std::time::Duration;

use crate::Fault;

/// The arguments of a peer program: a scenario and flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The name of the scenario.
    pub scenario: String,
    /// The URL of the server.
    pub url: String,
    /// The name of the lock.
    pub key: String,
    /// The lease.
    pub ttl: Duration,
    /// The longest wait.
    pub wait: Duration,
    /// The number of blocks of each side of `pair`.
    pub blocks: usize,
    /// The number of pairs in a block.
    pub block: u32,
    /// The number of tasks of `contend`.
    pub tasks: usize,
    /// The number of sections of each task.
    pub sections: usize,
    /// The time for which a section holds the lock.
    pub hold: Duration,
    /// Whether each task has its own client.
    pub separate_clients: bool,
}

impl Arguments {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    ///
    /// Fails for an unknown flag, a missing value, and a value that is not a number.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, Fault> {
        let mut words = words.into_iter();
        let scenario = words.next().ok_or("the first argument is the scenario")?;
        let mut arguments = Self {
            scenario,
            url: String::new(),
            key: String::new(),
            ttl: Duration::from_secs(30),
            wait: Duration::from_secs(60),
            blocks: 20,
            block: 100,
            tasks: 8,
            sections: 25,
            hold: Duration::ZERO,
            separate_clients: false,
        };
        while let Some(flag) = words.next() {
            let mut value = || {
                let value = words.next();
                value.ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag.as_str() {
                "--url" => arguments.url = value()?,
                "--key" => arguments.key = value()?,
                "--ttl-ms" => arguments.ttl = Duration::from_millis(number(&flag, &value()?)?),
                "--wait-ms" => arguments.wait = Duration::from_millis(number(&flag, &value()?)?),
                "--blocks" => arguments.blocks = number(&flag, &value()?)?,
                "--block" => arguments.block = number(&flag, &value()?)?,
                "--tasks" => arguments.tasks = number(&flag, &value()?)?,
                "--sections" => arguments.sections = number(&flag, &value()?)?,
                "--hold-us" => arguments.hold = Duration::from_micros(number(&flag, &value()?)?),
                "--hold-ms" => arguments.hold = Duration::from_millis(number(&flag, &value()?)?),
                "--separate-clients" => arguments.separate_clients = true,
                other => return Err(format!("unknown flag `{other}`").into()),
            }
        }
        let is_about = arguments.scenario == "about";
        if !is_about && (arguments.url.is_empty() || arguments.key.is_empty()) {
            return Err("--url and --key are required".into());
        }
        Ok(arguments)
    }
}

fn number<T: FromStr>(flag: &str, text: &str) -> Result<T, String> {
    let number = text.parse();
    number.map_err(|_| format!("{flag} needs a number, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words = line.split_whitespace().map(ToOwned::to_owned);
        Arguments::parse(words).map_err(|fault| fault.to_string())
    }

    #[test]
    fn flags_set_their_fields() {
        let arguments = parse("contend --url u --key k --tasks 3 --hold-us 7").unwrap();
        assert_eq!((arguments.url.as_str(), arguments.key.as_str()), ("u", "k"));
        assert_eq!((arguments.tasks, arguments.hold.as_micros()), (3, 7));
    }

    #[test]
    fn faults_are_errors() {
        assert!(parse("").is_err());
        assert!(parse("pair --url u").is_err());
        assert!(parse("pair --url u --key k --blocks x").is_err());
        assert!(parse("pair --url u --key k --blocks").is_err());
        assert!(parse("pair --url u --key k --unknown 1").is_err());
    }
}
