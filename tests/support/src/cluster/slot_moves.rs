//! Slots that move to another node.

use super::nodes::{id, lines, node_port, ok, slot};
use super::{RedisCluster, STEP};
use crate::server::RedisServer;
use crate::wait::eventually;

/// How a slot moves to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMove {
    /// The slot is open meanwhile, and its keys are at two nodes.
    KeyByKey,
    /// The old owner copies the keys, and hands the slot over at once: Redis 8.4 and Valkey 9.
    Atomic,
}

impl RedisCluster {
    /// Opens the slot of a key: it is on its way to `to`.
    ///
    /// # Panics
    ///
    /// Panics if the two nodes do not see each other as primaries within 30 s.
    #[track_caller]
    pub fn begin_move(&self, key: &str, to: &RedisServer) {
        let (from, slot) = (self.owner_of(key), slot(key).to_string());
        wait_for_primaries(from, to);
        ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves some keys of a slot that is open.
    #[track_caller]
    pub fn move_keys(&self, keys: &[&str], to: &RedisServer) {
        let (from, port) = (self.owner_of(keys[0]), node_port(to));
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys);
        eventually(STEP, || {
            let reply = from.cli(&command);
            let error = reply.error().unwrap_or_default();
            // On a loaded machine, the target may miss the other nodes for a moment. It has taken nothing then.
            let is_target_down = error.contains("CLUSTERDOWN");
            assert!(is_target_down || reply.error().is_none(), "{reply:?}");
            !is_target_down
        });
    }

    /// Moves the keys that are left, and closes the slot.
    #[track_caller]
    pub fn end_move(&self, key: &str, to: &RedisServer) {
        let (from, slot) = (self.owner_of(key), slot(key).to_string());
        loop {
            let left = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let left: Vec<_> = left
                .array()
                .iter()
                .map(|key| key.text().to_owned())
                .collect();
            if left.is_empty() {
                break;
            }
            self.move_keys(&left.iter().map(String::as_str).collect::<Vec<_>>(), to);
        }
        let new = id(to);
        ok(to, &["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
        ok(from, &["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
        // The other nodes hear of it from these two.
        self.wait_for_owner(key, to);
    }

    /// Moves the slot of a key with all its keys.
    #[track_caller]
    pub fn move_slot(&self, key: &str, to: &RedisServer) {
        self.begin_move(key, to);
        self.end_move(key, to);
    }

    /// Returns the ways in which slots can move on this version of the server.
    #[track_caller]
    pub fn slot_moves(&self) -> &'static [SlotMove] {
        match atomic_move(&self.nodes[0]) {
            None => &[SlotMove::KeyByKey],
            Some(_) => &[SlotMove::KeyByKey, SlotMove::Atomic],
        }
    }

    /// Moves the slot of a key with all its keys, in this way.
    ///
    /// # Panics
    ///
    /// Panics if the server cannot, or needs more than 30 s.
    #[track_caller]
    pub fn move_slot_by(&self, way: SlotMove, key: &str, to: &RedisServer) {
        if way == SlotMove::KeyByKey {
            return self.move_slot(key, to);
        }
        let (from, slot) = (self.owner_of(key), slot(key).to_string());
        wait_for_primaries(from, to);
        match atomic_move(&self.nodes[0]).expect("the server moves slots atomically") {
            AtomicMove::Import => ok(to, &["CLUSTER", "MIGRATION", "IMPORT", &slot, &slot]),
            AtomicMove::Send => {
                let new = id(to);
                let words = ["SLOTSRANGE", &slot, &slot, "NODE", &new];
                ok(from, &[&["CLUSTER", "MIGRATESLOTS"], &words[..]].concat());
            }
        }
        self.wait_for_owner(key, to);
    }
}

/// Waits until both ends of a slot's move see each other as primaries: after a failover, most nodes may know the
/// new primary before these two do.
#[track_caller]
fn wait_for_primaries(from: &RedisServer, to: &RedisServer) {
    let sees = |observer: &RedisServer, id: &str| {
        let mut nodes = lines(observer).into_iter();
        nodes.any(|line| line.starts_with(id) && line.contains("master"))
    };
    let (from_id, to_id) = (id(from), id(to));
    eventually(STEP, || sees(to, &from_id) && sees(from, &to_id));
}

/// Who starts an atomic move.
enum AtomicMove {
    /// The new owner: Redis.
    Import,
    /// The old owner: Valkey.
    Send,
}

fn atomic_move(node: &RedisServer) -> Option<AtomicMove> {
    let help = node.cli(&["CLUSTER", "HELP"]);
    let knows = |name: &str| help.array().iter().any(|it| it.text().starts_with(name));
    if knows("MIGRATION ") {
        Some(AtomicMove::Import)
    } else {
        knows("MIGRATESLOTS ").then_some(AtomicMove::Send)
    }
}
