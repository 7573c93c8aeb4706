//! The flags of `run`, and of the guard process.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;
use lock_core::Kind;
use rustix::process::Signal;

use crate::duration;

/// Runs a command while a lock is held
///
/// The lock is renewed while the command runs, and released when it exits. When the lock is lost, the
/// command gets SIGTERM, and SIGKILL after `--kill-after`. So two commands overlap at most from the end of
/// the lease until then; a resource that checks LOCKCTL_FENCING_TOKEN refuses a late writer. With --warn-signal, the
/// command gets a signal while there is still time to stop by itself.
///
/// The lock is exclusive, unless --read or --permits is given. All jobs with one name should give the same
/// number of permits. With several --name, the command runs when it has all of the locks.
///
/// The command gets LOCKCTL_NAME, LOCKCTL_KEY and LOCKCTL_FENCING_TOKEN. With several names, these have a
/// number each, in the order of the flags: LOCKCTL_NAME_1, LOCKCTL_KEY_1 and so on. DISTRIBUTED_LOCK_URL is removed
/// from its environment, since it may hold a password; --keep-url keeps it. Processes that the command leaves
/// behind run without the lock. No shell is involved: for one, write `-- sh -c '..'`.
///
/// Example: lockctl run --name nightly-report -- /usr/local/bin/report
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("lock").required(true)))]
pub(crate) struct RunArgs {
    /// The name of the lock. Several are acquired together: all, or none
    #[arg(long = "name", group = "lock", value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Takes over the lock of a ticket instead of acquiring one: `-` reads it from the first line of stdin, since a
    /// ticket in the arguments would be visible in the process list. The rest of stdin is CMD's. The exit code is the
    /// conflict exit code if the ticket was resumed already or has expired. An outage may last for --outage-wait, or
    /// else for --wait
    #[arg(
        long,
        group = "lock",
        conflicts_with_all = ["read", "permits", "on_contended", "max_queue"],
        value_parser = ["-"],
        hide_possible_values = true,
        value_name = "FROM"
    )]
    pub(crate) resume: Option<String>,

    /// Shares the lock with other readers. While a reader holds it, no job gets it exclusively
    #[arg(long, conflicts_with_all = ["permits", "min_hold", "once_per"])]
    pub(crate) read: bool,

    /// Takes one of COUNT permits, so that up to COUNT jobs run at once. From 1 to 10000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "COUNT")]
    pub(crate) permits: Option<u32>,

    /// How many of the permits the command takes, from 1 to 256. Defaults to 1
    #[arg(long, requires = "permits", value_parser = clap::value_parser!(u32).range(1..=256), value_name = "COUNT")]
    pub(crate) weight: Option<u32>,

    /// How long the lock outlives a machine that dies, from 100ms to 24h
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock. Without it, one attempt is made
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,

    /// How long to wait for a server that cannot be reached, in addition to --wait. A busy lock does not use this time.
    /// Without it, a server that is away at the start is an error at once, and a later outage is a part of --wait
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) outage_wait: Option<Duration>,

    /// How many callers may wait already. Where more do, the lock counts as busy, without a wait
    #[arg(long, requires = "wait", value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub(crate) max_queue: Option<u32>,

    /// The longest time for which the command may run. Then the lock counts as lost
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) max_hold: Option<Duration>,

    /// The shortest time for which the name stays locked, for jobs that many machines start at about
    /// the same time. Less than the ttl
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) min_hold: Option<Duration>,

    /// Runs the command once in this time: after it has exited with 0, the name stays taken until the time since
    /// its start is over. After any other end, the next caller may run it at once. From 100ms to 366 days (8784h).
    /// `lockctl release` lets it run again
    #[arg(long, conflicts_with_all = ["permits", "min_hold"], value_parser = duration::parse, value_name = "TIME")]
    pub(crate) once_per: Option<Duration>,

    /// What to do while another holder has the lock, or has done the work of this --once-per
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_contended: OnContended,

    /// The exit code while another holder has the lock, or has done the work of this --once-per. With 0, the caller
    /// cannot see it
    #[arg(short = 'E', long, default_value_t = 75, value_name = "CODE")]
    pub(crate) conflict_exit_code: u8,

    /// How long the command may take to end after the lock was lost, or after lockctl was killed: then it
    /// gets SIGTERM, and SIGKILL after this time. Signals that lockctl passes on have no such limit. Defaults
    /// to the smaller of 5s and half of the ttl, so that a command whose lockctl was killed is dead before its
    /// lease ends
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) kill_after: Option<Duration>,

    /// The signal that the command gets while there is time to stop at a safe point: when less than half of the ttl is
    /// left, and the lock could not be renewed. Once more each time that this happens again. By default, it gets none
    #[arg(long, value_enum, ignore_case = true, value_name = "SIGNAL")]
    pub(crate) warn_signal: Option<WarnSignal>,

    /// The text that others see as the holder. Defaults to the host name and the process id
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Leaves DISTRIBUTED_LOCK_URL in the environment of the command. It may hold a password
    #[arg(long)]
    pub(crate) keep_url: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the kind of the locks.
    pub(crate) fn kind(&self) -> Kind {
        match (self.permits, self.read) {
            (Some(of), _) => Kind::Permits {
                of,
                weight: self.weight.unwrap_or(1),
            },
            (None, true) => Kind::Read,
            (None, false) => Kind::Exclusive,
        }
    }
}

/// The signals that reach a command also on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WarnSignal {
    #[value(name = "USR1", alias = "SIGUSR1")]
    Usr1,
    #[value(name = "USR2", alias = "SIGUSR2")]
    Usr2,
    #[value(name = "HUP", alias = "SIGHUP")]
    Hup,
    #[value(name = "TERM", alias = "SIGTERM")]
    Term,
}

impl WarnSignal {
    pub(crate) fn as_signal(self) -> Signal {
        match self {
            Self::Usr1 => Signal::USR1,
            Self::Usr2 => Signal::USR2,
            Self::Hup => Signal::HUP,
            Self::Term => Signal::TERM,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Hup => "SIGHUP",
            Self::Term => "SIGTERM",
        }
    }
}

/// What to do while another holder has the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnContended {
    /// Ends with the conflict exit code
    #[default]
    Fail,
    /// Ends with 0: another machine does the work, or has done it
    Skip,
}

/// The hidden `lockctl exec`, which `run` starts. It is not among the commands, so that completions and
/// manual pages do not show it.
#[derive(Debug, clap::Parser)]
#[command(name = "lockctl exec", no_binary_name = true)]
pub(crate) struct ExecArgs {
    /// The process id of lockctl
    pub(crate) parent: i32,

    /// How long the command may take to end after SIGTERM
    #[arg(long, value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// The command belongs to the foreground group of a terminal
    #[arg(long)]
    pub(crate) terminal: bool,

    /// Writes JSON to stdout for errors
    #[arg(long)]
    pub(crate) json: bool,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
