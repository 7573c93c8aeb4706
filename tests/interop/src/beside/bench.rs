//! The server, the key and the agents of an experiment.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use test_support::{Connection, Helper, RedisServer, eventually};

use super::Options;
use super::agent::{Agent, Pending, Side};

/// The key of an experiment. Each has a server of its own.
pub(super) const KEY: &str = "orders";

/// The lease of a lock without a lease time, except where an experiment says otherwise.
pub(super) const TTL: Duration = Duration::from_secs(3);

/// The delay with which a process of a busy machine may notice something.
pub(super) const SLACK: Duration = Duration::from_millis(500);

/// Bound on conditions whose speed does not matter.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// A server and the programs of one version of Redisson.
pub(super) struct Bench<'a> {
    pub(super) server: RedisServer,
    connection: RefCell<Connection>,
    options: &'a Options,
    scheme: &'static str,
    client: &'static str,
    agents: Cell<u32>,
}

impl<'a> Bench<'a> {
    /// Starts a server.
    pub(super) fn new(options: &'a Options, scheme: &'static str, client: &'static str) -> Self {
        let server = RedisServer::start();
        let connection = server.connect().expect("the server runs");
        Self {
            server,
            connection: RefCell::new(connection),
            options,
            scheme,
            client,
            agents: Cell::new(0),
        }
    }

    /// Starts an agent whose locks have this ttl.
    pub(super) fn agent(&self, side: Side, ttl: Duration) -> Agent {
        self.agent_with(side, ttl, &[])
    }

    /// Starts an agent with further environment variables.
    pub(super) fn agent_with(&self, side: Side, ttl: Duration, more: &[(&str, &str)]) -> Agent {
        let number = self.agents.get() + 1;
        self.agents.set(number);
        let name = format!("{}-{number}", side.name());
        let program = match side {
            Side::Redisson => Helper::new(self.options.programs.join(self.client)).arg("agent"),
            Side::Ours => Helper::new(self.options.ours.join("interop-agent")),
        };
        let mut program = program
            .env("REDIS_PORT", self.server.port().to_string())
            .env("CLIENT_NAME", &name)
            .env("SCHEME", self.scheme)
            .env("TTL_MS", ttl.as_millis().to_string());
        for (variable, value) in more {
            program = program.env(variable, value);
        }
        Agent::new(name, side, program.spawn())
    }

    /// Returns whether grants have tokens.
    pub(super) fn is_fenced(&self) -> bool {
        self.scheme == crate::dialects::REDISSON_FENCED
    }

    /// Runs a command on the server.
    pub(super) fn cli(&self, words: &[&str]) -> test_support::Reply {
        let reply = self.connection.borrow_mut().call(words);
        reply.unwrap_or_else(|e| panic!("the server does not reply to {words:?}: {e}"))
    }

    /// Returns what is left of the lease, or `None` if the key is free.
    pub(super) fn left(&self, key: &str) -> Option<Duration> {
        let left = self.cli(&["PTTL", key]).integer();
        u64::try_from(left).ok().map(Duration::from_millis)
    }

    /// Returns the owner in the hash.
    pub(super) fn owner(&self, key: &str) -> String {
        let owners = self.cli(&["HKEYS", key]);
        let owners: Vec<_> = owners
            .array()
            .iter()
            .map(test_support::Reply::text)
            .collect();
        owners.join(" and ")
    }

    /// Lets an agent wait for a held lock, and returns when it waits: it has subscribed and then asked
    /// once more.
    pub(super) fn wait_for<'b>(&self, agent: &'b Agent, key: &str) -> Pending<'b> {
        let waits = agent.count("waiting", key);
        // lock-core stays subscribed for some time, and then asks only once.
        let is_subscribed = agent.side == Side::Ours && waits > 0;
        let asked = self.scripts() + if is_subscribed { 1 } else { 2 };
        let pending = agent.send(&format!("lock {key} -1"));
        eventually(SOON, || {
            let is_waiting = self.subscriptions(&agent.name) > 0
                && self.scripts() >= asked
                && (agent.side == Side::Redisson || agent.count("waiting", key) > waits);
            // A reply says what is wrong.
            is_waiting || pending.now().is_some()
        });
        pending
    }

    /// Returns how many scripts the server has run.
    fn scripts(&self) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        calls(stats.text(), &["eval", "evalsha"])
    }

    /// Checks that a late release changes nothing: the former holder learns that the lock is not its
    /// own, and the lock keeps its owner.
    ///
    /// # Errors
    /// Fails if the release has an effect.
    pub(super) fn late_unlock(&self, former: &Agent, key: &str) -> Result<(), String> {
        let owner = self.owner(key);
        former.call(&format!("unlock {key}"))?.expect("gone")?;
        let after = self.owner(key);
        if owner.is_empty() || owner != after {
            return Err(format!(
                "a late release changed the owner `{owner}` to `{after}`"
            ));
        }
        Ok(())
    }

    /// Returns the number of channels to which the client of this name has subscribed.
    fn subscriptions(&self, name: &str) -> u64 {
        let clients = self.cli(&["CLIENT", "LIST"]);
        subscriptions(clients.text(), name)
    }
}

fn subscriptions(clients: &str, name: &str) -> u64 {
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        let found = fields.find(|(it, _)| *it == name);
        found.map(|(_, value)| value.to_owned())
    };
    // lock-core adds the purpose of the connection behind a colon.
    let is_of = |line: &&str| {
        let full = field(line, "name").unwrap_or_default();
        full.split(':').next() == Some(name)
    };
    let counts = clients.lines().filter(is_of);
    let counts = counts.filter_map(|line| field(line, "sub")?.parse::<u64>().ok());
    counts.sum()
}

/// Returns how often the server has run these commands.
fn calls(stats: &str, commands: &[&str]) -> u64 {
    let of_line = |line: &str| {
        let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = stats.split(',').next()?;
        let calls = calls.parse::<u64>().ok()?;
        commands.contains(&command).then_some(calls)
    };
    stats.lines().filter_map(of_line).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::{calls, subscriptions};

    #[test]
    fn calls_are_those_of_the_commands() {
        let stats = "# Commandstats\r\ncmdstat_eval:calls=3,usec=9\r\ncmdstat_evalsha:calls=40,usec=1\r\n\
                     cmdstat_get:calls=500,usec=1\r\n";
        assert_eq!(calls(stats, &["eval", "evalsha"]), 43);
        assert_eq!(calls(stats, &["set"]), 0);
    }

    #[test]
    fn subscriptions_are_those_of_the_client() {
        let clients = "id=3 name=Redisson-1 db=0 sub=0 psub=0\nid=4 name=Redisson-1 db=0 sub=1 psub=0\n\
                       id=5 name=ours-2:pubsub db=0 sub=2 psub=0\nid=6 name= db=0 sub=4";
        assert_eq!(subscriptions(clients, "Redisson-1"), 1);
        assert_eq!(subscriptions(clients, "ours-2"), 2);
        assert_eq!(subscriptions(clients, "Redisson-2"), 0);
    }
}
