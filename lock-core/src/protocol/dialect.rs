//! The ways of locking on Redis that services of other languages already use.

use std::fmt;
use std::time::Duration;

/// How a lock is written on the server: this library's own way, or one that other libraries and
/// services know, so that both sides exclude each other on one key.
///
/// Chosen for a manager by [`LockManagerBuilder::dialect`](crate::LockManagerBuilder::dialect) or
/// for one lock by [`LockRequest::dialect`](crate::LockRequest::dialect). What each can do is in
/// its [`capabilities`](Self::capabilities); the [module](crate::guide::dialects) has them side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// This library's own: a queue, hand-over, fencing tokens.
    #[default]
    Native,
    /// `SETNX key owner`, then an expiry; two commands. A holder that dies in between leaves a
    /// key without expiry, to which the next one who asks gives one.
    SetnxExpire,
    /// `SETNX key deadline`, taken over by `GETSET` when the deadline has passed. The value is
    /// the time at which the lock ends, in milliseconds since the epoch.
    DeadlineGetset,
    /// One script that does `SETNX` and `EXPIRE`, in whole seconds.
    LuaSetnxExpire,
    /// `SET key owner NX PX ttl`: what redsync, redis-py, the Redlock libraries and most code
    /// over Jedis write.
    SetNxPx {
        /// How the lock is released and renewed.
        release: ReleaseMethod,
    },
}

/// How [`Dialect::SetNxPx`] makes sure that it releases and renews its own lock only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReleaseMethod {
    /// A script that compares and deletes.
    #[default]
    Script,
    /// `WATCH`, `GET`, `MULTI`, `DEL`, `EXEC` on a connection of its own: for servers where
    /// scripts are denied.
    WatchMulti,
}

/// What a [`Dialect`] can do. Printed for all of them on the page of the
/// [dialects](crate::guide::dialects).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a column of a table: what can be done and what cannot"
)]
pub struct Capabilities {
    /// Each grant has a [`FencingToken`](crate::FencingToken).
    pub fencing_token: bool,
    /// Those who wait are served in the order in which they came.
    pub fifo: bool,
    /// A release gives the lock to the next at once; otherwise those who wait look for
    /// themselves.
    pub handover: bool,
    /// Each acquisition writes a value that no other one writes.
    pub unique_owner: bool,
    /// Whoever is refused is told what the holder calls itself.
    pub names_holder: bool,
    /// An acquisition or a release whose answer got lost is settled as long as the process lives,
    /// instead of ending with its ttl. Outside the native dialect not what arrives later than the
    /// command timeout.
    pub cancels_unconfirmed: bool,
    /// Works without the right to run scripts.
    pub without_scripts: bool,
    /// Clocks of the machines have to agree.
    pub needs_clocks: bool,
    /// One step writes the key and its expiry. Otherwise a holder that dies in between leaves a key
    /// without an expiry.
    pub atomic_expiry: bool,
    /// Locks [in memory](crate::LockManager::in_memory) have it.
    pub in_memory: bool,
    /// The ttl has to be a multiple of this.
    pub ttl_step: Duration,
    /// The shortest ttl.
    pub min_ttl: Duration,
}

/// By how much the clocks of two machines may differ in [`Dialect::DeadlineGetset`]: ten times
/// what NTP leaves, and a tenth of the shortest ttl that the dialect takes.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Dialect {
    /// All dialects.
    pub const ALL: &'static [Self] = &[
        Self::Native,
        Self::SetnxExpire,
        Self::DeadlineGetset,
        Self::LuaSetnxExpire,
        Self::SetNxPx {
            release: ReleaseMethod::Script,
        },
        Self::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        },
    ];

    /// What the dialect can do.
    #[must_use]
    pub const fn capabilities(self) -> Capabilities {
        let shared = Capabilities {
            fencing_token: false,
            fifo: false,
            handover: false,
            unique_owner: true,
            names_holder: true,
            cancels_unconfirmed: true,
            without_scripts: false,
            needs_clocks: false,
            atomic_expiry: true,
            in_memory: false,
            ttl_step: MILLISECOND,
            min_ttl: crate::protocol::ttl::MIN_TTL,
        };
        match self {
            Self::Native => Capabilities {
                fencing_token: true,
                fifo: true,
                handover: true,
                in_memory: true,
                ..shared
            },
            Self::SetnxExpire => Capabilities {
                atomic_expiry: false,
                ..shared
            },
            Self::SetNxPx {
                release: ReleaseMethod::Script,
            } => shared,
            Self::DeadlineGetset => Capabilities {
                unique_owner: false,
                names_holder: false,
                cancels_unconfirmed: false,
                needs_clocks: true,
                min_ttl: SECOND,
                ..shared
            },
            Self::LuaSetnxExpire => Capabilities {
                ttl_step: SECOND,
                min_ttl: SECOND,
                ..shared
            },
            Self::SetNxPx {
                release: ReleaseMethod::WatchMulti,
            } => Capabilities {
                without_scripts: true,
                ..shared
            },
        }
    }

    /// How much earlier than on the server a lease ends for its holder, because of those whose
    /// clocks are ahead.
    pub(crate) const fn margin(self) -> Duration {
        if self.capabilities().needs_clocks {
            CLOCK_TOLERANCE
        } else {
            Duration::ZERO
        }
    }

    /// Whether a lock of that ttl can be had.
    pub(crate) fn check_ttl(self, ttl: Duration) -> Result<(), InvalidDialectReason> {
        let able = self.capabilities();
        if !ttl.as_nanos().is_multiple_of(able.ttl_step.as_nanos()) && able.ttl_step > MILLISECOND {
            return Err(InvalidDialectReason::WholeSeconds);
        }
        if ttl < able.min_ttl {
            return Err(InvalidDialectReason::TooShort {
                shortest: able.min_ttl,
            });
        }
        Ok(())
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "Native",
            Self::SetnxExpire => "SetnxExpire",
            Self::DeadlineGetset => "DeadlineGetset",
            Self::LuaSetnxExpire => "LuaSetnxExpire",
            Self::SetNxPx {
                release: ReleaseMethod::Script,
            } => "SetNxPx",
            Self::SetNxPx {
                release: ReleaseMethod::WatchMulti,
            } => "SetNxPx with WatchMulti",
        })
    }
}

/// What a [`Dialect`] cannot do. The message says what to do instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDialectReason {
    /// There is no server to speak it to.
    #[error("locks in memory are shared with nobody; connect to a Redis server")]
    NoServer,
    /// The expiry is in seconds.
    #[error("its expiry counts in seconds; use a ttl of whole seconds")]
    WholeSeconds,
    /// The ttl is shorter than the dialect can tell apart.
    #[error("it needs a ttl of at least {shortest:?}")]
    TooShort {
        /// The shortest that will do.
        shortest: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes(able: bool) -> String {
        if able { "yes" } else { "no" }.to_owned()
    }

    /// The table of the documentation is made from the one in code.
    fn table() -> String {
        type Row = (&'static str, fn(Capabilities) -> String);
        let rows: [Row; 12] = [
            ("fencing token", |able| yes(able.fencing_token)),
            ("first in, first out", |able| yes(able.fifo)),
            ("handover at release", |able| yes(able.handover)),
            ("unique owner value", |able| yes(able.unique_owner)),
            ("names the holder", |able| yes(able.names_holder)),
            ("cancels unconfirmed commands", |able| {
                yes(able.cancels_unconfirmed)
            }),
            ("works without scripts", |able| yes(able.without_scripts)),
            ("needs synchronized clocks", |able| yes(able.needs_clocks)),
            ("writes key and expiry in one step", |able| {
                yes(able.atomic_expiry)
            }),
            ("works in memory", |able| yes(able.in_memory)),
            ("shortest ttl", |able| format!("{:?}", able.min_ttl)),
            ("ttl in steps of", |able| format!("{:?}", able.ttl_step)),
        ];
        let names: Vec<_> = Dialect::ALL
            .iter()
            .map(|dialect| format!(" `{dialect}` |"))
            .collect();
        let head = [
            format!("| |{}\n", names.concat()),
            format!("|---|{}\n", "---|".repeat(names.len())),
        ];
        let body = rows.map(|(what, cell)| {
            let cells: Vec<_> = Dialect::ALL
                .iter()
                .map(|dialect| format!(" {} |", cell(dialect.capabilities())))
                .collect();
            format!("| {what} |{}\n", cells.concat())
        });
        [head.concat(), body.concat()].concat()
    }

    #[test]
    fn the_documentation_prints_the_table() {
        let page = include_str!("../../docs/dialects.md");
        let table = table();
        assert!(
            page.contains(&table),
            "docs/dialects.md has another table of capabilities than the code, which is:\n\n{table}"
        );
    }

    #[test]
    fn a_ttl_has_to_fit_the_dialect() {
        let ms = Duration::from_millis;
        for (dialect, ttl, fits) in [
            (Dialect::Native, ms(100), Ok(())),
            (Dialect::SetnxExpire, ms(1_234), Ok(())),
            (Dialect::LuaSetnxExpire, ms(30_000), Ok(())),
            (
                Dialect::LuaSetnxExpire,
                ms(1_500),
                Err(InvalidDialectReason::WholeSeconds),
            ),
            (
                Dialect::LuaSetnxExpire,
                ms(100),
                Err(InvalidDialectReason::WholeSeconds),
            ),
            (Dialect::DeadlineGetset, ms(1_000), Ok(())),
            (
                Dialect::DeadlineGetset,
                ms(999),
                Err(InvalidDialectReason::TooShort { shortest: SECOND }),
            ),
        ] {
            assert_eq!(dialect.check_ttl(ttl), fits, "{dialect} {ttl:?}");
        }
    }

    #[test]
    fn only_agreeing_clocks_cost_a_margin() {
        for dialect in Dialect::ALL {
            let margin = dialect.margin();
            assert_eq!(margin.is_zero(), *dialect != Dialect::DeadlineGetset);
            assert!(dialect.capabilities().min_ttl >= margin * 10);
        }
    }
}
