//! Pairs of scripts with the keys and arguments of the library's own, which do less. They show where
//! the server's time for a pair of acquire and release goes.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::connection::{LoadedScript, open};
use crate::raw::TTL;

/// An acquire of one attempt and a release that call nothing.
pub const EMPTY: [&str; 2] = ["return 'held'", "return 'released'"];

/// The calls that the protocol needs, and no other work. No such pair of scripts takes less time.
///
/// The time is the bound of the lease and a part of the value. The lock is free if it has neither a
/// key nor a queue. The counter gives the fencing token. The release compares the owner, and hands
/// over if there is a queue.
pub const BOUND: [&str; 2] = [
    "redis.call('TIME') \
     redis.call('EXISTS', KEYS[1], KEYS[2]) \
     redis.call('INCR', KEYS[3]) \
     redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
     return 'held'",
    "redis.call('GET', KEYS[1]) \
     redis.call('EXISTS', KEYS[2]) \
     redis.call('DEL', KEYS[1]) \
     return 'released'",
];

/// Sends the two scripts in turn. Clones share the connection.
#[derive(Clone)]
pub struct ScriptPair {
    connection: MultiplexedConnection,
    acquire: LoadedScript,
    release: LoadedScript,
    label: String,
}

impl ScriptPair {
    /// Connects with the settings of the library's own connections, and loads the scripts. `label` is
    /// that of a manager: the machine and the process by default.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn connect(url: &str, scripts: [&str; 2], label: &str) -> Self {
        let connection = open(url, None).await;
        let [acquire, release] = scripts;
        Self {
            acquire: LoadedScript::load(&connection, acquire).await,
            release: LoadedScript::load(&connection, release).await,
            connection,
            label: label.to_owned(),
        }
    }

    /// Gives the lock a counter as an earlier acquire of the library leaves it: its time in
    /// microseconds, with an expiry.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn seed_counter(&mut self, name: &str) {
        let [_, _, counter, ..] = keys(name);
        let () = redis::cmd("SET")
            .arg(counter)
            .arg(now().as_micros())
            .arg("PX")
            .arg(300_000)
            .query_async(&mut self.connection)
            .await
            .expect("the server replies");
    }

    /// Sends the first script, and returns the owner id of its caller.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn acquire(&mut self, name: &str) -> String {
        let owner_id = Uuid::new_v4().to_string();
        let now = now();
        let arguments = [
            &owner_id,
            &TTL.as_millis().to_string(),
            &now.as_micros().to_string(),
            &(now.as_millis() + TTL.as_millis()).to_string(),
            &self.label,
        ];
        let keys = keys(name);
        let reply: String = self
            .acquire
            .call(&keys.each_ref().map(|key| &**key), &arguments[..])
            .await;
        assert_eq!(reply, "held");
        owner_id
    }

    /// Sends the second script.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn release(&mut self, name: &str, owner_id: &str) {
        let floor = now().as_micros().to_string();
        let keys = keys(name);
        let reply: String = self
            .release
            .call(&keys.each_ref().map(|key| &**key), &[owner_id, &floor, "0"])
            .await;
        assert_eq!(reply, "released");
    }
}

/// Returns the keys of a lock: its value, queue, counter, grace key and holders.
fn keys(name: &str) -> [String; 5] {
    let companion = |end| format!("{{lock:{name}}}:{end}");
    [
        format!("lock:{name}"),
        companion('q'),
        companion('f'),
        companion('g'),
        companion('h'),
    ]
}

fn now() -> std::time::Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is after 1970")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use test_support::RedisServer;
    use test_support::fixtures::{NAME, current_thread_runtime};

    use super::{BOUND, EMPTY, ScriptPair};
    use crate::pairs;

    /// Returns the words of each command about the lock: equal keys and numbers, and the lengths of
    /// all other words.
    fn commands(server: &RedisServer, pair: impl Future<Output = ()>) -> Vec<Vec<String>> {
        let monitor = server.monitor();
        current_thread_runtime().block_on(pair);
        let recording = monitor.stop();
        let about_lock = recording
            .from_clients()
            .filter(|command| command.words.iter().any(|word| word.contains(NAME)));
        let shape = |(at, word): (usize, &String)| {
            if (2..8).contains(&at) {
                word.clone()
            } else {
                word.len().to_string()
            }
        };
        about_lock
            .map(|command| command.words.iter().enumerate().map(shape).collect())
            .collect()
    }

    #[test]
    fn keys_and_arguments_are_those_of_the_library() {
        let server = RedisServer::start();
        let label = "machine:1234";
        let library = async {
            let locks = pairs::connect_with_label(&server, label).await;
            for _ in 0..2 {
                pairs::guard(&locks, NAME, Duration::ZERO).await;
            }
        };
        let library = commands(&server, library);
        assert_eq!(library.len(), 4, "{library:?}");
        for scripts in [EMPTY, BOUND] {
            let pair = async {
                let mut pair = ScriptPair::connect(&server.url(), scripts, label).await;
                let owner_id = pair.acquire(NAME).await;
                pair.release(NAME, &owner_id).await;
            };
            // The floor of the first pair of the library may be zero.
            assert_eq!(commands(&server, pair), library[2..], "{scripts:?}");
        }
    }
}
