//! What differs from a current server.

use std::collections::HashMap;
use std::time::Duration;

use super::script::{is_script, script_name};

/// Texts with which hosting services refuse a command that exceeds a limit.
pub mod limits {
    /// As serverless services word a limit of commands.
    pub const REQUESTS: &str = "ERR max requests limit exceeded. Limit: 10000, Usage: 10000";
    /// As services with a plan word what the plan does not include.
    pub const DENIED: &str = "DENIED the plan of this database does not allow it";
    /// As proxies word a limit of connections.
    pub const CLIENTS: &str = "ERR too many clients";
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// `ROLE` is an unknown command.
    NoRole,
    /// `INFO` with several sections is a syntax error, as before Redis 7.
    OldInfo,
    /// `INFO` has no run id.
    NoRunId,
    /// Every second client gets another run id, as behind two proxies that answer `INFO` themselves.
    TwoRunIds,
    /// `HELLO` is refused.
    Hello(HelloRefusal),
    /// `INFO` says that the server is no node of a cluster.
    ClusterDisabledInInfo,
    /// The slot map has one host with two ports, the second one for reads. The real server is a node that has all
    /// slots.
    ServerlessCluster,
    /// Errors inside scripts have the form of versions before Redis 7.
    OldScriptErrors,
    /// A script with a first line `#!lua` is refused, as before Redis 7.
    PlainScriptsOnly,
    /// `PEXPIRE` and its relatives have no options, as before Redis 7, also inside scripts.
    NoExpireOptions,
    /// The server has `DELEX` and `SET` with `IFEQ`. It runs them as scripts on the real server.
    OwnerCommands,
    /// Commands get this reply, and aren't executed.
    Replies(Target, Answer),
    /// New connections get this error and are closed.
    RefusesClients(String),
    /// After a subscription, its connection gets messages without a pause.
    Flood,
}

/// How `HELLO` is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloRefusal {
    /// As an unknown command.
    Unknown,
    /// With `NOPERM`.
    NoPermission,
    /// With this text.
    Text(String),
    /// By closing the connection.
    Closes,
}

/// Some of the commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The commands of this name, in capitals.
    Command(&'static str),
    /// The runs of a script, by the name in its first comment.
    Script(&'static str),
}

impl Target {
    pub(super) fn matches(&self, words: &[String], scripts: &HashMap<String, String>) -> bool {
        let verb = words.first().map(|verb| verb.to_uppercase());
        let verb = verb.as_deref();
        match self {
            Self::Command(name) => verb == Some(name),
            Self::Script(name) => {
                let known = words.get(1).and_then(|hash| scripts.get(hash));
                match verb {
                    Some("EVALSHA") => known.is_some_and(|known| known == name),
                    Some("EVAL") => {
                        is_script(words[1].as_bytes()) && script_name(&words[1]) == *name
                    }
                    _ => false,
                }
            }
        }
    }
}

/// A reply that the stand-in makes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An error with this text.
    Error(String),
    /// These bytes.
    Raw(Vec<u8>),
    /// No reply, and none to later commands of the connection.
    Silence,
    /// The connection is closed.
    Closes,
    /// A line that never ends.
    Endless,
    /// An array that announces this many numbers, and goes on sending them forever.
    EndlessItems(u64),
    /// The reply of the real server, one byte at a time. After a subscription, all that is pushed on its connection.
    Dripping(Duration),
    /// The reply of the real server behind these bytes.
    Behind(Vec<u8>),
    /// What is no RESP.
    Malformed,
    /// Arrays within arrays, this many.
    Nested(usize),
    /// A string of this many bytes, which really come.
    Giant(u64),
}
