//! The command line.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The text of `--help`.
pub(crate) const HELP: &str = "\
A flash sale in the browser: several shop instances sell one stock under a distributed lock.

Usage: flash-sale [options]

  --port PORT        the port of the page; 0 takes a free one (8080)
  --instances N      the number of shop instances, 2 to 8 (2)
  --items N          the stock of each sale, 1 to 10000 (100)
  --rate N           the requests per second, 1 to 500 (200)
  --seed N           the seed of the arrival of requests (1)
  --redis URL        uses this server, and starts none
  --database URL     sqlite:FILE or postgres://user@host/name (a temporary SQLite file)
  --in-process       needs no redis-server: the instances are threads, the locks are in memory
  --help             shows this text
";

/// The lowest and the highest rate.
pub(crate) const RATES: RangeInclusive<u32> = 1..=500;

/// The environment of an instance: the lock server, and the database.
pub(crate) const REDIS_VARIABLE: &str = "FLASH_SALE_REDIS";
pub(crate) const DATABASE_VARIABLE: &str = "FLASH_SALE_DATABASE";

/// What this process does.
#[derive(Debug, PartialEq)]
pub(crate) enum Mode {
    /// Serves the page, and starts everything else.
    Demo(Options),
    /// Serves as one shop instance; started by the demo.
    Instance(InstanceOptions),
    /// Ends its command when the demo has ended; started by the demo.
    Guard(GuardOptions),
    /// Prints [`HELP`].
    Help,
}

/// The options of the demo.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) port: u16,
    pub(crate) instances: usize,
    pub(crate) items: u32,
    pub(crate) rate: u32,
    pub(crate) seed: u64,
    pub(crate) redis: Option<String>,
    pub(crate) database: Option<Database>,
    pub(crate) in_process: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 8080,
            instances: 2,
            items: 100,
            rate: 200,
            seed: 1,
            redis: None,
            database: None,
            in_process: false,
        }
    }
}

/// The options of a shop instance.
#[derive(Debug, PartialEq)]
pub(crate) struct InstanceOptions {
    pub(crate) number: usize,
    pub(crate) redis: String,
    pub(crate) database: Database,
}

/// The options of a guard process.
#[derive(Debug, PartialEq)]
pub(crate) struct GuardOptions {
    pub(crate) parent: u32,
    /// A directory that the guard removes when the parent has ended.
    pub(crate) remove: Option<PathBuf>,
    pub(crate) command: Vec<String>,
}

/// Where the stock and the orders are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Database {
    /// A file that all instances open.
    Sqlite(PathBuf),
    /// A database inside this process.
    SqliteInMemory,
    /// The URL of a server.
    Postgres(String),
}

impl Database {
    /// The URL from which another process reads this value.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
            // Other processes cannot open it.
            Self::SqliteInMemory => String::new(),
            Self::Postgres(url) => url.clone(),
        }
    }

    /// The kind, for the page.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) | Self::SqliteInMemory => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        }
    }
}

impl FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(file) = text.strip_prefix("sqlite:")
            && !file.is_empty()
        {
            Ok(Self::Sqlite(file.into()))
        } else if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self::Postgres(text.to_owned()))
        } else {
            Err("use `sqlite:FILE` or `postgres://user@host/name`".to_owned())
        }
    }
}

/// The arguments that are not yet read.
struct Arguments<I>(I);

impl<I: Iterator<Item = String>> Arguments<I> {
    /// Returns the value of an option: the text behind `=`, or the next argument.
    fn value(&mut self, name: &str, inline: Option<String>) -> Result<String, String> {
        let value = inline.or_else(|| self.0.next());
        value.ok_or_else(|| format!("`{name}` needs a value; see --help"))
    }

    fn number<T: FromStr + PartialOrd + std::fmt::Display>(
        &mut self,
        name: &str,
        inline: Option<String>,
        range: &RangeInclusive<T>,
    ) -> Result<T, String> {
        let text = self.value(name, inline)?;
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            format!("`{text}` is not a valid value of `{name}`; use a number from {low} to {high}")
        })
    }

    /// Returns the URL of a server. The error does not show the value, which may have a password.
    fn redis(&mut self, name: &str, inline: Option<String>) -> Result<String, String> {
        let url = self.value(name, inline)?;
        let scheme = url.split("://").next().unwrap_or_default();
        // Locks in memory would be in each instance for itself.
        let is_server = ["redis", "redis+unix", "unix"]
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known));
        if is_server {
            Ok(url)
        } else {
            Err(format!(
                "`{name}` needs a URL that begins with redis:// or unix://; for locks in memory use \
                 --in-process"
            ))
        }
    }

    fn database(&mut self, name: &str, inline: Option<String>) -> Result<Database, String> {
        let text = self.value(name, inline)?;
        let database = text.parse::<Database>();
        database.map_err(|advice| format!("`{text}` is not a valid value of `{name}`; {advice}"))
    }
}

/// Reads the command line, without the program's name.
///
/// # Errors
/// The text says which argument is wrong, and what to write instead.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Mode, String> {
    let mut arguments = Arguments(arguments);
    let mut options = Options::default();
    while let Some(argument) = arguments.0.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        match name.as_str() {
            "--port" => options.port = arguments.number(&name, inline, &(0..=u16::MAX))?,
            "--instances" => options.instances = arguments.number(&name, inline, &(2..=8))?,
            "--items" => options.items = arguments.number(&name, inline, &(1..=10_000))?,
            "--rate" => options.rate = arguments.number(&name, inline, &RATES)?,
            "--seed" => options.seed = arguments.number(&name, inline, &(0..=u64::MAX))?,
            "--redis" => options.redis = Some(arguments.redis(&name, inline)?),
            "--database" => options.database = Some(arguments.database(&name, inline)?),
            "--in-process" => options.in_process = true,
            "--help" | "-h" => return Ok(Mode::Help),
            "--instance" => return instance(&mut arguments).map(Mode::Instance),
            "--guard" => return guard(&mut arguments).map(Mode::Guard),
            _ => return Err(format!("unknown option `{name}`; see --help")),
        }
    }
    if options.in_process && options.redis.is_some() {
        return Err("`--in-process` needs no server; leave `--redis` out".to_owned());
    }
    Ok(Mode::Demo(options))
}

/// Reads `--instance NUMBER`. The URLs may have passwords, so they are in the environment and not in
/// the process list.
fn instance<I: Iterator<Item = String>>(
    arguments: &mut Arguments<I>,
) -> Result<InstanceOptions, String> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("`{name}` is not set"));
    Ok(InstanceOptions {
        number: arguments.number("--instance", None, &(1..=8))?,
        redis: variable(REDIS_VARIABLE)?,
        database: variable(DATABASE_VARIABLE)?.parse()?,
    })
}

/// Reads `--guard PARENT [--remove DIRECTORY] -- COMMAND..`.
fn guard<I: Iterator<Item = String>>(arguments: &mut Arguments<I>) -> Result<GuardOptions, String> {
    let parent = arguments.number("--guard", None, &(1..=u32::MAX))?;
    let mut remove = None;
    while let Some(argument) = arguments.0.next() {
        match argument.as_str() {
            "--remove" => remove = Some(arguments.value("--remove", None)?.into()),
            "--" => break,
            _ => return Err(format!("unknown option `{argument}` of `--guard`")),
        }
    }
    let command: Vec<_> = arguments.0.by_ref().collect();
    if command.is_empty() {
        return Err("`--guard` needs a command".to_owned());
    }
    Ok(GuardOptions {
        parent,
        remove,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Mode, String> {
        parse(line.split_whitespace().map(ToOwned::to_owned))
    }

    #[test]
    fn options_are_read_with_and_without_an_equals_sign() {
        let line = "--port=0 --instances 3 --items 5 --rate 7 --seed 9 --database sqlite:a.db";
        let expected = Options {
            port: 0,
            instances: 3,
            items: 5,
            rate: 7,
            seed: 9,
            database: Some(Database::Sqlite("a.db".into())),
            ..Options::default()
        };
        assert_eq!(read(line), Ok(Mode::Demo(expected)));
        assert_eq!(read(""), Ok(Mode::Demo(Options::default())));
        assert_eq!(read("--rate 1 --help"), Ok(Mode::Help));
    }

    #[test]
    fn guard_passes_the_arguments_of_its_command_on() {
        let expected = GuardOptions {
            parent: 7,
            remove: Some("/tmp/x".into()),
            command: vec!["redis-server".into(), "--port".into(), "1".into()],
        };
        let read = read("--guard 7 --remove /tmp/x -- redis-server --port 1");
        assert_eq!(read, Ok(Mode::Guard(expected)));
    }

    #[test]
    fn errors_name_the_argument_and_the_advice() {
        for (line, text) in [
            ("--prot 1", "unknown option `--prot`; see --help"),
            ("--port", "`--port` needs a value; see --help"),
            (
                "--instances 9",
                "`9` is not a valid value of `--instances`; use a number from 2 to 8",
            ),
            (
                "--rate=fast",
                "`fast` is not a valid value of `--rate`; use a number from 1 to 500",
            ),
            (
                "--database mysql:x",
                "`mysql:x` is not a valid value of `--database`; use `sqlite:FILE` or \
                 `postgres://user@host/name`",
            ),
            (
                "--redis memory://",
                "`--redis` needs a URL that begins with redis:// or unix://; for locks in memory use \
                 --in-process",
            ),
            (
                "--redis=:secret@host:6379",
                "`--redis` needs a URL that begins with redis:// or unix://; for locks in memory use \
                 --in-process",
            ),
            (
                "--in-process --redis redis://x",
                "`--in-process` needs no server; leave `--redis` out",
            ),
        ] {
            assert_eq!(read(line), Err(text.to_owned()));
        }
    }
}
