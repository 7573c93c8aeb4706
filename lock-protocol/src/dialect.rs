//! The dialects: the ways of writing a lock to Redis.

use std::fmt;
use std::time::Duration;

/// The format of a lock on the server: this library's own format, or a format that other libraries
/// and services use. Clients that use the same dialect exclude each other on one key.
///
/// [`LockManagerBuilder::dialect`](../struct.LockManagerBuilder.html#method.dialect) sets the dialect of a manager,
/// and [`LockRequest::dialect`](../struct.LockRequest.html#method.dialect) sets the dialect of one lock. Each
/// dialect has its [`capabilities`](Self::capabilities). The [guide](../guide/dialects/index.html) compares
/// them in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// This library's own dialect, with a queue, handover and fencing tokens.
    #[default]
    Native,
    /// `SETNX key owner`, and then a second command that sets the expiry. A holder that dies between
    /// the two commands leaves a key without an expiry; the next client that acquires the lock sets
    /// the missing expiry.
    SetnxExpire,
    /// `SETNX key deadline`, and `GETSET` to take over a lock whose deadline has passed. The value is
    /// the end of the lock in milliseconds since the epoch.
    DeadlineGetset,
    /// One script that runs `SETNX` and `EXPIRE`. The ttl is in whole seconds.
    LuaSetnxExpire,
    /// `SET key owner NX PX ttl`. redsync, redis-py, the Redlock libraries and most code over Jedis
    /// write locks like this.
    SetNxPx {
        /// How the lock is released and renewed.
        release: ReleaseMethod,
    },
    /// The locks of Redisson: a hash with the holder as its field, and a channel on which a release notifies all
    /// waiters. Services in Java and this library acquire, wait for, renew and release the same lock.
    ///
    /// The key has to be the name that Redisson sends to the server: set
    /// [`prefix("")`](../struct.LockManagerBuilder.html#method.prefix), or the prefix of Redisson's `NameMapper`. A section of
    /// the [guide](../guide/dialects/index.html#redisson) says what the two sides promise each other.
    Redisson {
        /// The object of Redisson that locks the key.
        lock: RedissonLock,
    },
}

/// The object of Redisson that [`Dialect::Redisson`] speaks. All services have to use the same one on a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedissonLock {
    /// `RLock`, from `getLock`. Also the members of `RedissonMultiLock` and `RedissonRedLock`,
    /// `RedissonNonReentrantLock`, and `RedissonSpinLock`, whose releases notify no waiter.
    #[default]
    Plain,
    /// `RFencedLock`, from `getFencedLock` (Redisson 3.19.0 or later). Each grant has the next number of a counter
    /// that both sides share. The counter has no expiry, and begins at 1 again when the server loses it, or
    /// when a client deletes it. So a token is not greater than all earlier ones after a loss of
    /// data, unlike a token of [`Dialect::Native`].
    Fenced,
}

/// How [`Dialect::SetNxPx`] checks the owner when it releases and renews a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReleaseMethod {
    /// A script compares the owner, and then deletes the key or sets its expiry.
    #[default]
    Script,
    /// `WATCH`, `GETRANGE`, `MULTI`, `DEL`, `PEXPIRE` or `SET`, and `EXEC`, on a separate connection.
    /// Use it for servers that deny scripts.
    WatchMulti,
    /// Commands of the server that compare the owner: `SET key owner IFEQ owner PX ttl` renews, and
    /// `DELEX key IFEQ owner` (Redis 8.4 or later) or `DELIFEQ key owner` (Valkey 9.0 or later)
    /// releases. They need no script. On an older server, a manager with this method does not connect:
    /// the error is [`Unsupported`](../error/enum.BackendErrorKind.html#variant.Unsupported).
    Conditional,
    /// The best of the other methods that the server and the rights of the user allow:
    /// [`Conditional`](Self::Conditional), else [`Script`](Self::Script), else
    /// [`WatchMulti`](Self::WatchMulti). Each connection decides this once.
    Auto,
}

impl ReleaseMethod {
    /// Whether the method depends on the commands of the server.
    #[doc(hidden)]
    pub const fn asks_server(self) -> bool {
        matches!(self, Self::Conditional | Self::Auto)
    }
}

/// What a [`Dialect`] can do. Returned by [`Dialect::capabilities`]. The
/// [guide](../guide/dialects/index.html) has a table of all dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a row of a table: each flag is an independent capability"
)]
pub struct Capabilities {
    fencing_token: bool,
    tokens_survive_data_loss: bool,
    fifo: bool,
    handover: bool,
    notifies_waiters: bool,
    shared_kinds: bool,
    unique_owner: bool,
    names_holder: bool,
    cancels_unconfirmed: bool,
    without_scripts: bool,
    needs_clocks: bool,
    atomic_expiry: bool,
    in_memory: bool,
    in_quorum: bool,
    ttl_step: Duration,
    min_ttl: Duration,
}

impl Capabilities {
    /// Returns whether each grant has a [`FencingToken`](crate::fencing_token::FencingToken).
    #[inline]
    #[must_use]
    pub const fn is_fenced(self) -> bool {
        self.fencing_token
    }

    /// Returns whether tokens keep growing when the server has lost its data.
    #[inline]
    #[must_use]
    pub const fn is_fenced_after_data_loss(self) -> bool {
        self.tokens_survive_data_loss
    }

    /// Returns whether waiters get the lock in the order of their arrival.
    #[inline]
    #[must_use]
    pub const fn is_fair(self) -> bool {
        self.fifo
    }

    /// Returns whether a release gives the lock to the next waiter at once.
    #[inline]
    #[must_use]
    pub const fn hands_over(self) -> bool {
        self.handover
    }

    /// Returns whether a release notifies waiters. Otherwise they poll.
    #[inline]
    #[must_use]
    pub const fn notifies_waiters(self) -> bool {
        self.notifies_waiters
    }

    /// Returns whether several may hold a lock together: readers, and holders of permits.
    #[inline]
    #[must_use]
    pub const fn supports_shared_kinds(self) -> bool {
        self.shared_kinds
    }

    /// Returns whether each acquisition writes a unique value.
    #[inline]
    #[must_use]
    pub const fn is_owner_unique(self) -> bool {
        self.unique_owner
    }

    /// Returns whether an error names the current holder.
    #[inline]
    #[must_use]
    pub const fn names_holder(self) -> bool {
        self.names_holder
    }

    /// Returns whether a cancel undoes an acquire or a release that got no reply, as long as the
    /// process runs. Otherwise the lock expires with its ttl. Outside the native dialect, a cancel does not
    /// undo a command that arrives later than the command timeout.
    #[inline]
    #[must_use]
    pub const fn cancels_unconfirmed(self) -> bool {
        self.cancels_unconfirmed
    }

    /// Returns whether the dialect works without the right to run scripts.
    #[inline]
    #[must_use]
    pub const fn works_without_scripts(self) -> bool {
        self.without_scripts
    }

    /// Returns whether the clocks of all machines have to be synchronized.
    #[inline]
    #[must_use]
    pub const fn needs_synchronized_clocks(self) -> bool {
        self.needs_clocks
    }

    /// Returns whether one step writes the key and its expiry. Otherwise a holder that dies between two steps
    /// leaves a key without an expiry.
    #[inline]
    #[must_use]
    pub const fn is_expiry_atomic(self) -> bool {
        self.atomic_expiry
    }

    /// Returns whether [managers in memory](../struct.LockManager.html#method.in_memory) support the dialect.
    #[inline]
    #[must_use]
    pub const fn works_in_memory(self) -> bool {
        self.in_memory
    }

    /// Returns whether a [quorum](../guide/topologies/index.html#quorum) of servers supports the dialect.
    #[inline]
    #[must_use]
    pub const fn works_at_quorum(self) -> bool {
        self.in_quorum
    }

    /// Returns the duration of which a ttl has to be a multiple.
    #[inline]
    #[must_use]
    pub const fn ttl_step(self) -> Duration {
        self.ttl_step
    }

    /// Returns the shortest ttl.
    #[inline]
    #[must_use]
    pub const fn min_ttl(self) -> Duration {
        self.min_ttl
    }
}

/// How much the clocks of two machines may differ in [`Dialect::DeadlineGetset`]. This is ten times
/// the error that NTP leaves, and a tenth of the dialect's shortest ttl.
pub const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Dialect {
    /// Returns all dialects.
    #[must_use]
    pub const fn all() -> &'static [Self] {
        &[
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
            Self::SetNxPx {
                release: ReleaseMethod::Conditional,
            },
            Self::SetNxPx {
                release: ReleaseMethod::Auto,
            },
            Self::Redisson {
                lock: RedissonLock::Plain,
            },
            Self::Redisson {
                lock: RedissonLock::Fenced,
            },
        ]
    }

    /// Returns what the dialect can do.
    #[must_use]
    pub const fn capabilities(self) -> Capabilities {
        let shared = Capabilities {
            fencing_token: false,
            tokens_survive_data_loss: false,
            fifo: false,
            handover: false,
            notifies_waiters: false,
            shared_kinds: false,
            unique_owner: true,
            names_holder: true,
            cancels_unconfirmed: true,
            without_scripts: false,
            needs_clocks: false,
            atomic_expiry: true,
            in_memory: false,
            in_quorum: true,
            ttl_step: MILLISECOND,
            min_ttl: crate::ttl::MIN_TTL,
        };
        match self {
            Self::Native => Capabilities {
                fencing_token: true,
                tokens_survive_data_loss: true,
                fifo: true,
                handover: true,
                notifies_waiters: true,
                shared_kinds: true,
                in_memory: true,
                ..shared
            },
            Self::SetnxExpire => Capabilities {
                atomic_expiry: false,
                in_quorum: false,
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
                in_quorum: false,
                min_ttl: SECOND,
                ..shared
            },
            Self::LuaSetnxExpire => Capabilities {
                ttl_step: SECOND,
                min_ttl: SECOND,
                ..shared
            },
            Self::SetNxPx {
                release:
                    ReleaseMethod::WatchMulti | ReleaseMethod::Conditional | ReleaseMethod::Auto,
            } => Capabilities {
                without_scripts: true,
                ..shared
            },
            Self::Redisson { lock } => Capabilities {
                fencing_token: matches!(lock, RedissonLock::Fenced),
                notifies_waiters: true,
                in_quorum: false,
                ..shared
            },
        }
    }

    /// Returns the scheme of the dialect; `None` for the native one.
    #[doc(hidden)]
    #[must_use]
    pub const fn scheme(self) -> Option<Scheme> {
        match self {
            Self::Native => None,
            Self::SetnxExpire => Some(Scheme::SetnxExpire),
            Self::DeadlineGetset => Some(Scheme::DeadlineGetset),
            Self::LuaSetnxExpire => Some(Scheme::LuaSetnxExpire),
            Self::SetNxPx { release } => Some(Scheme::SetNxPx(release)),
            Self::Redisson { lock } => Some(Scheme::Redisson(lock)),
        }
    }

    /// Returns the dialect of a probe, which uses a name once: no counter of that name must stay.
    #[doc(hidden)]
    pub const fn of_probe(self) -> Self {
        match self {
            Self::Redisson { .. } => Self::Redisson {
                lock: RedissonLock::Plain,
            },
            other => other,
        }
    }

    /// Whether a release sends one message to all waiters of the key, and gives the lock to none of them.
    #[doc(hidden)]
    pub const fn notifies_all_waiters(self) -> bool {
        let able = self.capabilities();
        able.notifies_waiters && !able.handover
    }

    /// How much earlier than on the server a lease ends for its holder, because other clients' clocks
    /// may be ahead.
    #[doc(hidden)]
    pub const fn margin(self) -> Duration {
        if self.capabilities().needs_clocks {
            CLOCK_TOLERANCE
        } else {
            Duration::ZERO
        }
    }

    /// Checks that the dialect supports this ttl.
    #[doc(hidden)]
    pub fn check_ttl(self, ttl: Duration) -> Result<(), InvalidDialectReason> {
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
            Self::SetNxPx {
                release: ReleaseMethod::Conditional,
            } => "SetNxPx with Conditional",
            Self::SetNxPx {
                release: ReleaseMethod::Auto,
            } => "SetNxPx with Auto",
            Self::Redisson {
                lock: RedissonLock::Plain,
            } => "Redisson",
            Self::Redisson {
                lock: RedissonLock::Fenced,
            } => "Redisson with Fenced",
        })
    }
}

/// What a [`Dialect`] does not support. The message says what to use instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDialectReason {
    /// The locks are in memory, and the dialect needs a server.
    #[error("locks in memory exist only in this process; connect to a Redis server")]
    NoServer,
    /// Several independent servers hold the lock together, and the dialect needs more than one step, or clocks
    /// that are synchronized.
    #[error(
        "a quorum of servers has the dialects `Native`, `SetNxPx` and `LuaSetnxExpire` only; use one of them"
    )]
    InQuorum,
    /// Replicas or the disk have to confirm each lock, which only native locks can.
    #[error("`confirm` works with native locks only; use `Dialect::Native`, or no `confirm`")]
    Confirmed,
    /// The request limits the queue, and its waiters have none.
    #[error(
        "its waiters stand in no queue that `max_queue` could limit; use `Dialect::Native` on a single server, behind \
         Sentinels or in a cluster, or no `max_queue`"
    )]
    NoQueue,
    /// The value of the key cannot say that the work is done, as `once_per` needs it.
    #[error("`once_per` works with native locks only; use `Dialect::Native`, or no `once_per`")]
    OncePer,
    /// The expiry is in whole seconds, and the ttl is not.
    #[error("its expiry counts in seconds; use a ttl of whole seconds")]
    WholeSeconds,
    /// The ttl is shorter than the dialect supports.
    #[error("it needs a ttl of at least {shortest:?}")]
    #[non_exhaustive]
    TooShort {
        /// The shortest ttl of the dialect.
        shortest: Duration,
    },
}

/// A dialect that isn't native. Without `non_exhaustive`, so that a new one can't be forgotten where each needs code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// SETNX, then EXPIRE.
    SetnxExpire,
    /// A deadline as the value, taken over with GETSET.
    DeadlineGetset,
    /// SETNX and EXPIRE in a script.
    LuaSetnxExpire,
    /// SET NX PX, and a release that compares the owner.
    SetNxPx(ReleaseMethod),
    /// A hash with a field for the owner.
    Redisson(RedissonLock),
}

impl Scheme {
    /// Returns whether a release is a single script that may be sent twice.
    #[must_use]
    pub fn releases_by_script(self) -> bool {
        match self {
            Self::SetnxExpire
            | Self::LuaSetnxExpire
            | Self::SetNxPx(ReleaseMethod::Script)
            | Self::Redisson(_) => true,
            Self::DeadlineGetset | Self::SetNxPx(_) => false,
        }
    }

    /// Returns the method that depends on the commands of the server.
    #[must_use]
    pub fn method_of_server(self) -> Option<ReleaseMethod> {
        match self {
            Self::SetNxPx(release) if release.asks_server() => Some(release),
            _ => None,
        }
    }
}

/// The names of the dialects, in the order of [`Dialect::all`].
#[cfg(feature = "serde")]
const NAMES: &[(&str, Dialect)] = &[
    ("native", Dialect::Native),
    ("setnx_expire", Dialect::SetnxExpire),
    ("deadline_getset", Dialect::DeadlineGetset),
    ("lua_setnx_expire", Dialect::LuaSetnxExpire),
    (
        "set_nx_px",
        Dialect::SetNxPx {
            release: ReleaseMethod::Script,
        },
    ),
    (
        "set_nx_px_watch_multi",
        Dialect::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        },
    ),
    (
        "set_nx_px_conditional",
        Dialect::SetNxPx {
            release: ReleaseMethod::Conditional,
        },
    ),
    (
        "set_nx_px_auto",
        Dialect::SetNxPx {
            release: ReleaseMethod::Auto,
        },
    ),
    (
        "redisson",
        Dialect::Redisson {
            lock: RedissonLock::Plain,
        },
    ),
    (
        "redisson_fenced",
        Dialect::Redisson {
            lock: RedissonLock::Fenced,
        },
    ),
];

/// Deserializes the dialect from its name: `native`, `setnx_expire`, `deadline_getset`,
/// `lua_setnx_expire`, `set_nx_px`, `set_nx_px_watch_multi`, `set_nx_px_conditional`,
/// `set_nx_px_auto`, `redisson` or `redisson_fenced`.
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> serde_core::Deserialize<'de> for Dialect {
    fn deserialize<D: serde_core::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(crate::words::WordVisitor {
            what: "dialect",
            words: NAMES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes(able: bool) -> String {
        if able { "yes" } else { "no" }.to_owned()
    }

    /// The table in the guide has to equal this one.
    fn table() -> String {
        type Row = (&'static str, fn(Capabilities) -> String);
        let rows: [Row; 16] = [
            ("fencing token", |able| yes(able.is_fenced())),
            ("tokens survive a loss of data", |able| {
                yes(able.is_fenced_after_data_loss())
            }),
            ("first in, first out", |able| yes(able.is_fair())),
            ("handover at release", |able| yes(able.hands_over())),
            ("release notifies waiters", |able| {
                yes(able.notifies_waiters())
            }),
            ("readers and permits", |able| {
                yes(able.supports_shared_kinds())
            }),
            ("unique owner value", |able| yes(able.is_owner_unique())),
            ("names the holder", |able| yes(able.names_holder())),
            ("cancels unconfirmed commands", |able| {
                yes(able.cancels_unconfirmed())
            }),
            ("works without scripts", |able| {
                yes(able.works_without_scripts())
            }),
            ("needs synchronized clocks", |able| {
                yes(able.needs_synchronized_clocks())
            }),
            ("writes key and expiry in one step", |able| {
                yes(able.is_expiry_atomic())
            }),
            ("works in memory", |able| yes(able.works_in_memory())),
            ("works at a quorum", |able| yes(able.works_at_quorum())),
            ("shortest ttl", |able| format!("{:?}", able.min_ttl())),
            ("ttl in steps of", |able| format!("{:?}", able.ttl_step())),
        ];
        let names: Vec<_> = Dialect::all()
            .iter()
            .map(|dialect| format!(" `{dialect}` |"))
            .collect();
        let head = [
            format!("| |{}\n", names.concat()),
            format!("|---|{}\n", "---|".repeat(names.len())),
        ];
        let body = rows.map(|(capability, cell)| {
            let cells: Vec<_> = Dialect::all()
                .iter()
                .map(|dialect| format!(" {} |", cell(dialect.capabilities())))
                .collect();
            format!("| {capability} |{}\n", cells.concat())
        });
        [head.concat(), body.concat()].concat()
    }

    #[cfg(feature = "serde")]
    #[test]
    fn every_dialect_has_a_name() {
        let read: Vec<Dialect> = NAMES
            .iter()
            .map(|(name, _)| serde_json::from_str(&format!("\"{name}\"")).unwrap())
            .collect();
        assert_eq!(read, Dialect::all());
    }

    #[test]
    fn guide_has_the_table_of_capabilities() {
        let page = include_str!("../../lock-core/docs/dialects.md");
        let table = table();
        assert!(
            page.contains(&table),
            "docs/dialects.md has an outdated table of capabilities; replace it with:\n\n{table}"
        );
    }

    #[test]
    fn check_ttl_accepts_only_a_ttl_that_fits_the_dialect() {
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
    fn only_deadline_getset_has_a_margin() {
        for dialect in Dialect::all() {
            let margin = dialect.margin();
            assert_eq!(margin.is_zero(), *dialect != Dialect::DeadlineGetset);
            assert!(dialect.capabilities().min_ttl() >= margin * 10);
        }
    }
}
