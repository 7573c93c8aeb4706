//! The commands and their flags.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Duration;

use clap::builder::styling::{Style, Styles};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lock_core::FencingToken;
use lock_core::config::{ManagerConfig, parse_address_map};

use crate::duration;
use crate::exit::{self, Exit};
use crate::failure::Failure;

#[cfg(unix)]
mod run;
mod usage;

#[cfg(unix)]
pub(crate) use run::{ExecArgs, OnContended, RunArgs, WarnSignal};
pub(crate) use usage::explain;

const ABOUT: &str = "Runs commands under a distributed lock on Redis, shows and frees locks, and \
                     checks servers";

const AFTER_HELP: &str = "A TIME has units, the largest first: 500ms, 30s, 1m30s, 2h.";

/// The bold headings of the help, without colours.
const STYLES: Styles = Styles::plain()
    .header(Style::new().bold())
    .usage(Style::new().bold())
    .literal(Style::new().bold());

#[derive(Debug, Parser)]
#[command(
    name = "lockctl",
    version,
    about = ABOUT,
    after_help = AFTER_HELP,
    after_long_help = exit_codes(),
    styles = STYLES,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = false
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The prefix of the library.
pub(crate) const DEFAULT_PREFIX: &str = "lock:";

/// The flags of all commands.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// The server: redis://[user:password@]host[:port][/db], unix:///path, redis+sentinel://host,host/service,
    /// redis+cluster://host,host or redis+quorum://host,host,host; with TLS rediss:// and rediss+..://. The scheme
    /// may also begin with valkey. A password in this flag is visible in the process list, so set the variable
    /// instead
    #[arg(
        long,
        global = true,
        env = "DISTRIBUTED_LOCK_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(crate) url: Option<String>,

    /// The text before every name on the server
    #[arg(
        long,
        global = true,
        env = "DISTRIBUTED_LOCK_PREFIX",
        hide_env_values = true,
        default_value = DEFAULT_PREFIX,
        value_name = "TEXT"
    )]
    pub(crate) prefix: String,

    /// How long one command of the server may take
    #[arg(long, global = true, default_value = "1s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) timeout: Duration,

    /// Where this machine reaches an address that the nodes of a cluster or the Sentinels announce, such as
    /// 10.0.0.2:6379=localhost:7001. A comma separates several
    #[arg(
        long,
        global = true,
        env = "DISTRIBUTED_LOCK_ADDRESS_MAP",
        hide_env_values = true,
        value_name = "FROM=TO"
    )]
    pub(crate) address_map: Option<String>,

    /// Writes JSON to stdout, also for errors. `run` writes only its errors: stdout is that of CMD
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,

    /// Writes no notes, and warns only about unknown variables
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Writes the causes of errors, and what the command does
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Where the URL comes from.
    #[arg(skip)]
    pub(crate) url_from: UrlFrom,
}

impl GlobalArgs {
    /// Returns the settings of a manager. An empty variable is the same as none.
    pub(crate) fn config(&self) -> Result<ManagerConfig, Failure> {
        let mut config = ManagerConfig::default();
        config.prefix = Some(self.prefix.clone());
        config.command_timeout = Some(self.timeout);
        let address_map = self.address_map.as_deref();
        if let Some(text) = address_map.filter(|text| !text.is_empty()) {
            config.address_map = parse_address_map(text).map_err(|advice| {
                let text = format!("invalid --address-map `{text}`: {advice}");
                Failure::new(Exit::Config, "configuration", text)
            })?;
        }
        Ok(config)
    }

    /// Names the place where the URL was set.
    pub(crate) fn url_source(&self) -> &'static str {
        match self.url_from {
            UrlFrom::Variable => "DISTRIBUTED_LOCK_URL",
            UrlFrom::Flag => "--url",
            UrlFrom::Address => "the address in the arguments",
        }
    }
}

/// Where a URL comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UrlFrom {
    #[default]
    Variable,
    Flag,
    /// `doctor` made it of an address without a scheme.
    Address,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Also in pipes and files
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(unix)]
    Run(RunArgs),
    List(ListArgs),
    Show(NameArgs),
    Release(ReleaseArgs),
    Watch(WatchArgs),
    Doctor(DoctorArgs),
    /// Prints the completions of a shell
    ///
    /// Example: lockctl completions bash > /usr/share/bash-completion/completions/lockctl
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Prints the manual page
    ///
    /// Example: lockctl man > /usr/local/share/man/man1/lockctl.1
    Man {
        /// The page of this command instead
        command: Option<String>,
    },
}

/// Lists the locks that are held
///
/// The list is not a snapshot. It uses SCAN, so the user needs +scan. A pattern is a glob of Redis: `*`,
/// `?`, `[a-z]`. When a node of a cluster cannot be read, the others are listed, and the exit code is 1.
///
/// Example: lockctl list 'order:*' --older-than 5m
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The names to list
    #[arg(default_value = "*", hide_default_value = true)]
    pub(crate) pattern: String,

    /// The most locks to list
    #[arg(long, default_value_t = 200, value_parser = parse_limit, value_name = "COUNT")]
    pub(crate) limit: usize,

    /// Lists the keys of other programs too
    #[arg(long)]
    pub(crate) all: bool,

    /// Lists only the locks that their holder has had for this time or longer. A lock whose age the server does not
    /// know is left out
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) older_than: Option<Duration>,
}

/// Reads the limit of a list.
fn parse_limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("use at least 1".to_owned()),
        Ok(limit) => Ok(limit),
        Err(_) => Err("write a whole number".to_owned()),
    }
}

/// Shows who holds a lock, since when, and who waits for it
///
/// The exit code is 0 if the name is locked, and 1 if it is free. With -q nothing is printed.
///
/// Example: lockctl show order:42
#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    /// The name of the lock
    pub(crate) name: String,
}

/// Takes a lock from its holder
///
/// The lock is revoked: it has no holder any more, but stays locked until its lease ends. The holder learns
/// of it at its next renewal, at most a third of its ttl later. So two never hold the lock at once. With
/// --now the lock is free at once, and the old holder may work on until it notices.
///
/// The command shows the holder and asks. It releases the lock that it showed, and not that of a next
/// holder. The exit code is 1 if nothing is held, or if the holder changed. Without a terminal it cannot
/// ask: pass --yes.
///
/// Example: lockctl release import --reason "stuck import"
#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// Frees the lock at once, instead of at the end of its lease
    #[arg(long)]
    pub(crate) now: bool,

    /// Does not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Who releases the lock, as the holder and other operators see it. Defaults to the user and the host
    #[arg(long, value_name = "TEXT")]
    pub(crate) by: Option<String>,

    /// Why. The holder and other operators see it; with `--now` only this program's event has it
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    /// Releases the lock only if it has this token
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<FencingToken>,

    /// Deletes the key of another program
    #[arg(long)]
    pub(crate) foreign: bool,
}

/// Follows locks: redraws a table on a terminal, and writes a line for each change elsewhere
///
/// Example: lockctl watch 'order:*'
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// The name or the names to follow
    #[arg(default_value = "*", hide_default_value = true)]
    pub(crate) pattern: String,

    /// The time between two looks
    #[arg(long, default_value = "1s", value_parser = duration::parse_interval, value_name = "TIME")]
    pub(crate) interval: Duration,
}

/// Checks whether servers are fit for locks
///
/// Each finding says what it means for locks, and what to do. The exit code is 1 if a check failed. The
/// checks read INFO, acquire and release one lock, and list keys if the user has +scan. What the user
/// lacks is not checked, and a note says so.
///
/// The user is checked too: whether it has the rights of an application, and those of an operator. A user
/// with the rights of one of them passes; --role asks for one.
///
/// Of Sentinels, a cluster or a quorum, each server is checked: also the replicas, which a failover makes primaries,
/// and the Sentinels. One that cannot be reached is a failed check; if none can, the exit code says why.
///
/// With an address instead of a URL, it tries how the server wants to be reached, and says which URL to use.
///
/// Example: lockctl doctor --role app
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The address of a server whose URL is not known: [user:password@]host[:port][?parameters]. It is tried with TLS and
    /// without, and may be a server, a node of a cluster or a Sentinel
    #[arg(value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,

    /// Counts warnings as failures
    #[arg(long)]
    pub(crate) strict: bool,

    /// How many instances of a service will connect: compares their connections, and those that are open, with maxclients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub(crate) instances: u32,

    /// Fails if the user lacks a right of this role. By default, the rights of one of the roles suffice
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) role: Option<Role>,
}

/// What a user of the server is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Acquires, renews and releases locks
    App,
    /// Shows, lists and releases the locks of others
    Operator,
}

fn exit_codes() -> String {
    let mut text = format!("{AFTER_HELP}\n\nExit codes:\n");
    for (code, meaning) in exit::TABLE {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {code:<6} {meaning}");
    }
    text.truncate(text.trim_end().len());
    text
}

/// The commands that use no server.
pub(crate) const WITHOUT_SERVER: [&str; 2] = ["completions", "man"];
/// The flags of all commands that these ignore.
const OF_SERVER: [&str; 4] = ["url", "prefix", "timeout", "address_map"];

/// Returns the definitions of the commands. Help and manual pages leave out what a command ignores.
pub(crate) fn definitions() -> clap::Command {
    let mut definitions = Cli::command();
    // Gives each command the flags of all commands.
    definitions.build();
    let without_server = WITHOUT_SERVER.map(|name| (name, &OF_SERVER[..]));
    for (name, ignored) in without_server {
        definitions = definitions.mut_subcommand(name, |command| {
            command.mut_args(|arg| {
                let is_ignored = ignored.contains(&arg.get_id().as_str());
                if is_ignored { arg.hide(true) } else { arg }
            })
        });
    }
    definitions
}

/// Reads the arguments of the process.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = definitions();
    if let Some(color) = early_color(arguments) {
        command = command.color(color);
    }
    let matches = command.try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let is_argument =
        |matches: &clap::ArgMatches| matches.value_source("url") == Some(ValueSource::CommandLine);
    let is_flag = is_argument(&matches)
        || matches
            .subcommand()
            .is_some_and(|(_, matches)| is_argument(matches));
    if is_flag {
        cli.global.url_from = UrlFrom::Flag;
    }
    // An empty variable is the same as none.
    cli.global.url = cli.global.url.take().filter(|url| !url.is_empty());
    Ok(cli)
}

/// The arguments before `--`: those after it belong to CMD.
pub(crate) fn own(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    let own = arguments
        .iter()
        .map_while(|argument| match argument.to_str() {
            Some("--") => None,
            text => Some(text.unwrap_or_default()),
        });
    own.skip(1)
}

/// Finds `--color` before the arguments are read, because the help and the errors need it.
pub(crate) fn early_color(arguments: &[OsString]) -> Option<clap::ColorChoice> {
    let mut own = own(arguments);
    let mut found = None;
    while let Some(argument) = own.next() {
        let value = match argument.strip_prefix("--color") {
            Some("") => own.next(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        found = match value {
            Some("always") => Some(clap::ColorChoice::Always),
            Some("never") => Some(clap::ColorChoice::Never),
            Some("auto") => Some(clap::ColorChoice::Auto),
            _ => found,
        };
    }
    found
}
