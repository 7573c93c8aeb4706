//! A bounded model of sets of two locks, explored completely.
//!
//! The server has two production lock states, and executes the commands of a set as `acquire_all.lua` does. Each client
//! acquires both locks, holds them and releases them, over a network that delays, reorders, duplicates and loses
//! messages. Time is a handful of ticks. The client is a small copy of `lock-core/src/runtime/set.rs` and
//! `lock-core/src/request/set.rs`, without renewals: a lock that expires while the set waits is acquired again.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

use crate::kind::Kind;
use crate::lock_state::LockState;

const EXCLUSION: &str = "no two clients hold one lock, unless both read";
const ALL: &str = "a client that uses its set holds both locks on the server";
const NO_CYCLE: &str = "no two sets wait for each other";
const FINAL: &str = "a set that was released for good does not come back";
/// Not a promise: what each run has to reach.
const USED: &str = "every client has used its set";
const WAITED: &str = "a set has held one lock and waited for the other one";

const START_US: u64 = 1_000_000_000;
const TICK_MS: u64 = 100;
/// The ticks of a lease.
const TTL: u8 = 2;
/// The ticks for which a command may take effect.
const LIFE: u8 = 1;
/// Entries in the queue live longer than the model.
const ENTRY_LIFE: u8 = 10;
const NAMES: usize = 2;
const CLIENTS: usize = 2;

/// What one run explores.
#[derive(Clone, Copy)]
struct SetModel {
    /// The order in which each client acquires its locks.
    orders: [[usize; NAMES]; CLIENTS],
    kinds: [Kind; CLIENTS],
    /// Whether the client waits, or makes one attempt.
    waits: [bool; CLIENTS],
    /// The tick after which nothing is explored.
    horizon: u8,
    lost_replies: u8,
    copies: u8,
    crashes: u8,
}

const MODEL: SetModel = SetModel {
    orders: [[0, 1]; CLIENTS],
    kinds: [Kind::Exclusive; CLIENTS],
    waits: [true; CLIENTS],
    horizon: 3,
    lost_replies: 0,
    copies: 0,
    crashes: 0,
};

mod state;

use self::state::{Action, Body, Client, Message, Phase, State};

impl Model for SetModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            phase: Phase::Idle,
            attempt: 0,
            held: [None; NAMES],
            not_after: 0,
            cleanups: BTreeSet::new(),
            ended: BTreeSet::new(),
            has_used: false,
        };
        vec![State {
            now: 0,
            locks: std::array::from_fn(|_| LockState::default()),
            clients: std::array::from_fn(|_| client.clone()),
            network: BTreeSet::new(),
            lost_replies: self.lost_replies,
            copies: self.copies,
            crashes: self.crashes,
            has_waited: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
        let is_sent = |client: usize, attempt: u8| {
            let mut network = state.network.iter();
            network.any(|it| it.client == client && it.attempt == attempt)
        };
        for (id, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle => actions.push(Action::Begin(id)),
                Phase::Asking | Phase::Waiting if !is_sent(id, client.attempt) => {
                    actions.push(Action::Ask(id));
                }
                Phase::Using => actions.push(Action::EndBody(id)),
                _ => {}
            }
            if client.phase == Phase::Crashed {
                continue;
            }
            for (attempt, until) in &client.cleanups {
                // A reply before that does not end the cleanup.
                if state.now > *until && !is_sent(id, *attempt) {
                    actions.push(Action::Cancel(id, *attempt));
                }
            }
            if state.crashes > 0 && !matches!(client.phase, Phase::Idle | Phase::Done) {
                actions.push(Action::Crash(id));
            }
        }
        for message in &state.network {
            actions.push(Action::Deliver(message.clone()));
            if state.copies > 0 && matches!(message.body, Body::Acquire { .. }) {
                actions.push(Action::DeliverCopy(message.clone()));
            }
            if state.lost_replies > 0 && message.is_reply() {
                actions.push(Action::Lose(message.clone()));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick => state.tick(self),
            Action::Begin(client) | Action::Ask(client) => state.ask(self, client),
            Action::EndBody(client) => state.give_up(client),
            Action::Cancel(client, attempt) => {
                let body = Body::Release;
                let sent = state.now;
                state.network.insert(Message {
                    client,
                    attempt,
                    sent,
                    body,
                });
            }
            Action::Crash(client) => {
                state.crashes -= 1;
                state.clients[client].phase = Phase::Crashed;
                state.clients[client].cleanups.clear();
                state
                    .network
                    .retain(|it| it.client != client || !it.is_reply());
            }
            Action::Deliver(message) => {
                state.network.remove(&message);
                state.deliver(self, &message);
            }
            Action::DeliverCopy(message) => {
                state.copies -= 1;
                state.deliver(self, &message);
            }
            Action::Lose(message) => {
                state.lost_replies -= 1;
                state.network.remove(&message);
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |model: &Self, state: &State| {
                let both_read = model.kinds == [Kind::Read; CLIENTS];
                both_read || !(state.uses(0) && state.uses(1))
            }),
            Property::always(ALL, |_, state: &State| {
                (0..CLIENTS)
                    .all(|id| !state.uses(id) || (0..NAMES).all(|lock| state.owner(lock, id)))
            }),
            Property::always(NO_CYCLE, |_, state: &State| {
                let waits_for = |client: usize, other: usize, lock: usize| {
                    let attempt = state.clients[other].attempt;
                    state.is_queued(lock, client)
                        && state.on_server(lock).contains(&(other, attempt))
                };
                let is_live = |id: usize| state.clients[id].phase == Phase::Waiting;
                !(is_live(0)
                    && is_live(1)
                    && (0..NAMES)
                        .any(|lock| waits_for(0, 1, lock) && waits_for(1, 0, NAMES - 1 - lock)))
            }),
            Property::always(FINAL, |_, state: &State| {
                (0..NAMES).all(|lock| {
                    let holders = state.on_server(lock);
                    holders
                        .iter()
                        .all(|(id, attempt)| !state.clients[*id].ended.contains(attempt))
                })
            }),
            Property::sometimes(USED, |_, state: &State| {
                state.clients.iter().all(|client| client.has_used)
            }),
            Property::sometimes(WAITED, |_, state: &State| state.has_waited),
        ]
    }
}

/// Explores all states, and returns the promises that do not hold, and the events that did not happen.
fn explore(model: SetModel) -> Vec<&'static str> {
    let waits = model.waits[0];
    let checker = model.checker().threads(1).spawn_bfs().join();
    assert!(checker.is_done());
    let states = checker.unique_state_count();
    assert!(states > 500, "{states} states");
    let found = checker.discoveries();
    let broken = [EXCLUSION, ALL, NO_CYCLE, FINAL].into_iter();
    let mut broken: Vec<_> = broken.filter(|it| found.contains_key(it)).collect();
    let expected = if waits {
        vec![USED, WAITED]
    } else {
        vec![USED]
    };
    broken.extend(expected.into_iter().filter(|it| !found.contains_key(it)));
    broken
}

/// One fault of each kind, each in a run of its own.
fn faults(model: SetModel) -> [SetModel; 3] {
    [
        SetModel {
            lost_replies: 1,
            ..model
        },
        SetModel { copies: 1, ..model },
        SetModel {
            crashes: 1,
            ..model
        },
    ]
}

#[test]
fn sets_of_two_names_hold_both_locks_and_never_wait_for_each_other() {
    for model in faults(MODEL) {
        assert_eq!(explore(model), [""; 0]);
    }
}

#[test]
fn set_that_tries_once_holds_both_locks_or_none() {
    for model in faults(SetModel {
        waits: [false, true],
        horizon: 2,
        ..MODEL
    }) {
        assert_eq!(explore(model), [""; 0]);
    }
}

#[test]
fn set_of_readers_and_a_set_of_writers_exclude_each_other() {
    for model in faults(SetModel {
        kinds: [Kind::Read, Kind::Exclusive],
        horizon: 2,
        ..MODEL
    }) {
        assert_eq!(explore(model), [""; 0]);
    }
}

/// The control: in the order in which the names are written, the sets wait for each other.
#[test]
fn sets_in_written_order_would_wait_for_each_other() {
    let written = SetModel {
        orders: [[0, 1], [1, 0]],
        ..MODEL
    };
    assert!(explore(written).contains(&NO_CYCLE));
}
