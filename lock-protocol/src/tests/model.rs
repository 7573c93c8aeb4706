//! A bounded model of the protocol, explored completely.
//!
//! Up to three clients lock one key over a network that delays, reorders, duplicates and loses
//! messages, on a server whose clock jumps and whose memory is lost. Time is a handful of ticks, and
//! the model tries all events in every order. Server and clients are the production state machines:
//! the lock state, the acquisition, the lease, the cleanup and the server's clock. The model adds a
//! network, the passing of time, faults, and the properties.
//!
//! The network has no order at all, and a message that is never delivered is lost. So it can do more
//! than connections can. Clients do at once what is due; a late client is the same as a client whose
//! commands arrive late. Not in the model: clients of other libraries, waiters that poll, a server
//! without memory, the longest hold, several keys, several callers of one manager. The simulation has
//! most of them.

#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of `ClientStep` as a function is not general over the lifetime"
)]

mod kinds;
mod network;
mod rules;
mod runs;
mod server;
mod state;
mod step;
mod time;
mod turn;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use crate::kind::Kind;
use crate::tests::virtual_client::Caller;
use crate::ttl::Ttl;
use rules::{Budget, Mutation, Rules, Sight, Sights};
use state::{Breach, Client, ModelState, Part};
use step::Event;
use turn::Turn;

const EXCLUSION: &str =
    "no two kinds hold the lock at once, and no permit too many, as far as this is promised";
const GRANTS: &str = "the tokens of grants grow, whatever is lost";
const GUARDS: &str = "the tokens of guards grow, as far as exclusion is promised";
const VALID: &str = "each guard begins with a lock that is valid";
const CAUSE: &str = "before the end of its lease, a lock is lost only on the server";
const FINAL: &str = "an acquisition that was cancelled for good does not come back";
const ENDS: &str = "each wait ends in time";
const SERVED: &str = "no lock stays free while a client waits";
const AT_REST: &str = "in the end no client holds the lock";

/// One run of the model.
struct Protocol {
    rules: Rules,
    sights: Sights,
}

impl Model for Protocol {
    type State = ModelState;
    type Action = Event;

    fn init_states(&self) -> Vec<ModelState> {
        vec![ModelState::first(&self.rules)]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<Event>) {
        step::actions(&self.rules, state, actions);
    }

    fn next_state(&self, state: &ModelState, action: Event) -> Option<ModelState> {
        let turn = Turn {
            rules: &self.rules,
            sights: &self.sights,
            state: state.clone(),
        };
        Some(turn.apply(action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(EXCLUSION, |_, s: &ModelState| {
                s.beyond_promise || s.holders_fit()
            }),
            Property::always(GRANTS, |_, s: &ModelState| {
                !s.breaches.has(Breach::GrantOrder)
            }),
            Property::always(GUARDS, |_, s: &ModelState| {
                !s.breaches.has(Breach::GuardOrder)
            }),
            Property::always(VALID, |_, s: &ModelState| {
                !s.breaches.has(Breach::LateGuard)
            }),
            Property::always(CAUSE, |_, s: &ModelState| {
                !s.breaches.has(Breach::EarlyLoss)
            }),
            Property::always(FINAL, |_, s: &ModelState| {
                let mut known = s.queued().map(|entry| entry.owner_id).chain(s.owners());
                s.may_come_back || !known.any(|owner_id| s.is_final(owner_id))
            }),
        ];
        // The other promises need messages that arrive within a time limit.
        if self.rules.prompt {
            all.push(Property::always(ENDS, |_, s: &ModelState| {
                s.waits_end_in_time()
            }));
            all.push(Property::always(SERVED, |m: &Self, s: &ModelState| {
                // Until the poll at the expiry, and again for each poll whose reply is lost.
                s.free_ticks <= 2 + 2 * m.rules.budget.losses
            }));
            all.push(Property::always(AT_REST, |m: &Self, s: &ModelState| {
                let mut next = Vec::new();
                step::actions(&m.rules, s, &mut next);
                let rests = |c: &Part<Client>| c.is_at_rest() || c.caller == Caller::Idle;
                !next.is_empty() || (s.clients.iter().all(rests) && s.token().is_none())
            }));
        }
        all
    }
}

/// Two clients that have time for little more than a handover. A ttl is two ticks long.
fn rules() -> Rules {
    Rules {
        clients: 2,
        kinds: [Kind::Exclusive; 3],
        may_downgrade: 0,
        has_tickets: false,
        may_try: 0b001,
        may_wait: 0b110,
        begin_by: 2,
        horizon: 4,
        wait: millis(90),
        ttl: ttl(100),
        handover_lease: millis(100),
        command_timeout: millis(49),
        min_hold: None,
        prompt: false,
        budget: Budget::default(),
        most_faults: u8::MAX,
        mutation: None,
    }
}

/// Rules under which time waits for messages, and with enough time for all actions to end.
fn prompt_rules() -> Rules {
    Rules {
        may_try: 0,
        may_wait: 0b111,
        horizon: 16,
        wait: millis(390),
        prompt: true,
        // A sender always notices that a reply is missing.
        budget: Budget {
            silences: u8::MAX,
            ..Budget::default()
        },
        ..rules()
    }
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(millis(ms)).unwrap()
}

/// Explores everything within the rules, and fails with the steps that broke a property.
fn holds(name: &str, rules: Rules, expected: &[Sight]) {
    let (checker, sights) = explore(name, rules, &HasDiscoveries::AnyFailures);
    if let Some((broken, path)) = checker.discoveries().into_iter().next() {
        panic!("{name}: broken property: {broken}\n{}", story(path));
    }
    for sight in expected {
        assert!(sights.has(*sight), "{name}: {sight:?} never happened");
    }
}

/// Checks that the model detects a mutation, by the property that it breaks.
fn is_detected(mutation: Mutation, by: &'static str, rules: Rules) {
    let rules = Rules {
        mutation: Some(mutation),
        ..rules
    };
    let name = format!("{mutation:?}");
    let until = HasDiscoveries::AllOf(BTreeSet::from([by]));
    let (checker, _) = explore(&name, rules, &until);
    let path = checker.discovery(by);
    let path = path.unwrap_or_else(|| panic!("{name} is not detected: {by}"));
    let steps = path.into_actions().len();
    let _ = writeln!(
        std::io::stderr(),
        "model, {name}: detected after {steps} steps: {by}"
    );
}

fn explore(name: &str, rules: Rules, until: &HasDiscoveries) -> (impl Checker<Protocol>, Sights) {
    let started = Instant::now();
    let sights = Sights::default();
    let protocol = Protocol {
        rules,
        sights: sights.clone(),
    };
    // One thread, so that each run gives the same counts and steps. Depth first, because it keeps the
    // frontier small and finds a broken property soon.
    let checker = protocol.checker().threads(1).finish_when(until.clone());
    let checker = checker.spawn_dfs().join();
    // Not captured by the test harness, so that each run shows what it explored.
    let _ = writeln!(
        std::io::stderr(),
        "model, {name}: {} states, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f32(),
    );
    (checker, sights)
}

fn story(path: Path<ModelState, Event>) -> String {
    let mut story = String::new();
    for (state, action) in path.into_vec() {
        let Some(action) = action else { break };
        let _ = write!(story, "tick {}: {action:?}", state.ticks);
        if let Event::Deliver(at) | Event::Duplicate(at) | Event::Lose(at) = action {
            let _ = write!(story, " {:?}", state.network.iter().nth(at));
        }
        story.push('\n');
    }
    story
}
