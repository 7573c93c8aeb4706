//! What a server says of itself when a connection begins.
//!
//! Hosting services leave out some of it: `ROLE` or `INFO` may be unknown commands there, `INFO` may take no section, and
//! a user may lack the right. So each fact has several sources, and none of them has to answer.
//!
//! | Fact | Sources |
//! |---|---|
//! | the role | `ROLE`, `HELLO`, `INFO`: the server is a replica if any of them says so |
//! | whether it is a node of a cluster | `INFO`, `HELLO` |
//! | the process | `INFO`: `run_id` |
//! | the version | `INFO`: `valkey_version`, `redis_version`; `HELLO` |
//! | the epoch | `CLUSTER INFO` |

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::clock_sync::UNKNOWN_RUN_ID;
use crate::resp::{Reply, number};
use crate::unconfirmed::ANY_PROCESS;

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Primary,
    Replica,
    /// Two servers accept writes, and copy them to each other.
    ActiveReplica,
    Sentinel,
}

impl Role {
    /// Reads the reply to `ROLE`. Returns `None` if the server doesn't know roles.
    pub fn of_reply(reply: Reply<'_>) -> Option<Self> {
        let first = reply.items()?.next();
        Some(Self::named(first.and_then(Reply::word).unwrap_or_default()))
    }

    /// A name that isn't known is that of a replica: nothing may be written there.
    fn named(name: &str) -> Self {
        match name {
            "master" => Self::Primary,
            "active-replica" => Self::ActiveReplica,
            "sentinel" => Self::Sentinel,
            _ => Self::Replica,
        }
    }
}

/// The reply to `HELLO`, as far as it is of interest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    pub role: Option<Role>,
    /// Whether the server is a node of a cluster.
    pub is_in_cluster: Option<bool>,
    /// The version of the server, without its name.
    pub version: Option<String>,
}

impl Hello {
    pub fn read(reply: Reply<'_>) -> Self {
        let mut hello = Self::default();
        let Some(mut items) = reply.items() else {
            return hello;
        };
        while let (Some(name), Some(value)) = (items.next(), items.next()) {
            match (name.word(), value.word()) {
                (Some("role"), Some(role)) => hello.role = Some(Role::named(role)),
                (Some("version"), Some(version)) => hello.version = Some(version.to_owned()),
                (Some("mode"), Some(mode)) => hello.is_in_cluster = Some(mode == "cluster"),
                _ => {}
            }
        }
        hello
    }
}

/// The lines of `INFO` and of `CLUSTER INFO`.
#[derive(Clone, Copy, Debug)]
pub struct Info<'a>(&'a str);

impl<'a> Info<'a> {
    pub fn new(text: &'a str) -> Self {
        Self(text)
    }

    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// Returns `None` if the reply isn't a text.
    pub fn read(reply: Reply<'a>) -> Option<Self> {
        reply.word().map(Self)
    }

    pub fn field(self, name: &str) -> Option<&'a str> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim())
    }

    pub fn role(self) -> Option<Role> {
        self.field("role").map(Role::named)
    }

    /// Returns a number for the process of the server.
    pub fn run_id(self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        self.field("run_id")?.hash(&mut hasher);
        Some(hasher.finish().clamp(UNKNOWN_RUN_ID + 1, ANY_PROCESS - 1))
    }

    /// Returns the name and the version of the server.
    pub fn version(self) -> Option<String> {
        let valkey = self.field("valkey_version");
        let valkey = valkey.map(|version| format!("Valkey {version}"));
        valkey.or_else(|| Some(format!("Redis {}", self.field("redis_version")?)))
    }

    /// Returns the epoch of the cluster as a node knows it, from its `CLUSTER INFO`.
    pub fn current_epoch(self) -> Option<u64> {
        self.field("cluster_current_epoch")?.parse().ok()
    }

    /// Returns the epoch of the node itself, from its `CLUSTER INFO`.
    pub fn my_epoch(self) -> Option<u64> {
        self.field("cluster_my_epoch")?.parse().ok()
    }
}

/// Reads the reply to `TIME`, in microseconds.
pub fn time_of(reply: Reply<'_>) -> Option<u64> {
    let mut parts = reply.items()?;
    let mut next = || number(parts.next()?.text()?);
    let (seconds, micros) = (next()?, next()?);
    Some(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Replies;

    fn reply(bytes: &[u8]) -> Reply<'_> {
        Replies::new(bytes).next().unwrap()
    }

    #[test]
    fn role_is_the_first_word() {
        for (bytes, role) in [
            (
                &b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"[..],
                Some(Role::Primary),
            ),
            (b"*1\r\n+master\r\n", Some(Role::Primary)),
            (b"*2\r\n$5\r\nslave\r\n:1\r\n", Some(Role::Replica)),
            (
                b"*1\r\n$14\r\nactive-replica\r\n",
                Some(Role::ActiveReplica),
            ),
            (b"*1\r\n$8\r\nsentinel\r\n", Some(Role::Sentinel)),
            (b"*1\r\n:1\r\n", Some(Role::Replica)),
            (b"*0\r\n", Some(Role::Replica)),
            (b"+OK\r\n", None),
            (b"_\r\n", None),
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(Role::of_reply(reply(bytes)), role, "{text}");
        }
    }

    #[test]
    fn hello_is_a_map_or_a_list() {
        let fields = "$7\r\nversion\r\n$6\r\n6.0.16\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$7\r\nreplica\r\n$7\r\nmodules\r\n*0\r\n";
        let expected = Hello {
            role: Some(Role::Replica),
            is_in_cluster: Some(true),
            version: Some("6.0.16".to_owned()),
        };
        for head in ["%4\r\n", "*8\r\n"] {
            let bytes = format!("{head}{fields}");
            assert_eq!(Hello::read(reply(bytes.as_bytes())), expected);
        }
        assert_eq!(Hello::read(reply(b"+OK\r\n")), Hello::default());
    }

    #[test]
    fn info_has_its_fields() {
        let text = "# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\nrole:slave\r\ncluster_my_epoch: 7\r\ncluster_current_epoch:9\r\n";
        let bytes = format!("${}\r\n{text}\r\n", text.len());
        let info = Info::read(reply(bytes.as_bytes())).unwrap();
        assert_eq!(info.version().as_deref(), Some("Redis 7.2.4"));
        assert_eq!(info.role(), Some(Role::Replica));
        assert_eq!((info.my_epoch(), info.current_epoch()), (Some(7), Some(9)));
        assert!(info.run_id().is_some_and(|id| id != UNKNOWN_RUN_ID));
        assert_eq!(info.field("redis"), None);
        assert_eq!(Info("valkey_version:8.1").version().unwrap(), "Valkey 8.1");
        assert!(Info("x:1").run_id().is_none() && Info("x:1").version().is_none());
        assert!(Info::read(reply(b":1\r\n")).is_none());
    }

    #[test]
    fn time_has_two_numbers() {
        assert_eq!(
            time_of(reply(b"*2\r\n$1\r\n5\r\n$2\r\n17\r\n")),
            Some(5_000_017)
        );
        for bytes in [
            &b"*1\r\n$1\r\n5\r\n"[..],
            b"*2\r\n$1\r\n5\r\n$1\r\nx\r\n",
            b"+OK\r\n",
        ] {
            assert_eq!(time_of(reply(bytes)), None);
        }
    }
}
