//! A bounded model of fencing tokens across failovers and moves of slots, explored completely.
//!
//! Each primary is the production lock state with a clock of its own. A failover gives the lock to a
//! replica that has an earlier state, and a higher epoch. The old primary goes on for some time, as one
//! that is cut off does. A slot that moves keeps its state, at a node with another clock. The model tries
//! grants, replications, failovers and moves in every order.

use stateright::{Checker, Model, Path, Property};

use crate::clock::ServerMs;
use crate::kind::Kind;
use crate::lock_state::{
    AcquireCommand, AcquireReply, Env, Expiring, LockState, Purpose, ReleaseCommand,
};
use crate::owner_id::OwnerId;

const ORDER: &str = "a token of a later epoch is greater than each of an earlier one, and they grow within an epoch";
/// Late enough for the arithmetic with the skew.
const BEGIN_US: i64 = 1_000_000_000_000;
const TICK_US: i64 = 10_000_000;
/// The ticks for which an old primary grants.
const OLD_PRIMARY_LIVES: u8 = 4;
const TTL_MS: u64 = 1_000;

/// What is tried, and what the deployment promises.
#[derive(Clone, Copy)]
struct Limits {
    /// The greatest difference of a clock from the true time, in microseconds.
    skew_us: i64,
    /// How far a seed lies ahead for each epoch.
    lead_us: u64,
    /// Whether the floor of a connection has the lead.
    floor_has_lead: bool,
    ticks: u8,
    grants: u8,
    failovers: u8,
    moves: u8,
}

/// With the clocks and the old primaries of the guide's page about topologies: twice the skew from the true time
/// and the life of an old primary are less than a lead.
const PROMISED: Limits = Limits {
    skew_us: 9_900_000,
    lead_us: 60_000_000,
    floor_has_lead: true,
    ticks: 4,
    grants: 3,
    failovers: 2,
    moves: 1,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Primary {
    lock: LockState,
    skew_us: i64,
    epoch: u8,
    /// The floor of a connection from the beginning of its epoch.
    first_floor_us: u64,
}

impl Primary {
    fn now_us(&self, ticks: u8) -> u64 {
        (BEGIN_US + i64::from(ticks) * TICK_US + self.skew_us).unsigned_abs()
    }

    fn lead_us(&self, limits: &Limits) -> u64 {
        u64::from(self.epoch) * limits.lead_us
    }

    /// Returns the floor of a connection that begins now.
    fn floor_us(&self, limits: &Limits, ticks: u8) -> u64 {
        let lead = if limits.floor_has_lead {
            self.lead_us(limits)
        } else {
            0
        };
        self.now_us(ticks) + lead
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deployment {
    ticks: u8,
    /// What the replicas of the primary have.
    copy: LockState,
    primary: Primary,
    /// With the ticks for which they go on.
    old: Vec<(Primary, u8)>,
    /// The lowest and the highest token of each epoch.
    tokens: Vec<Option<(u64, u64)>>,
    is_in_order: bool,
    grants: u8,
    failovers: u8,
    moves: u8,
}

/// Where a lock is granted and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Primary,
    Old(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick,
    /// On a connection that begins now, or on one from the beginning of the epoch.
    Grant(At, bool),
    Replicate,
    /// To a replica with this clock.
    Failover(i64),
    MoveSlot(i64),
}

impl Deployment {
    fn first(limits: &Limits, skew_us: i64) -> Self {
        let mut first = Self {
            ticks: 0,
            copy: LockState::default(),
            primary: Primary {
                lock: LockState::default(),
                skew_us,
                epoch: 0,
                first_floor_us: 0,
            },
            old: Vec::new(),
            tokens: vec![None],
            is_in_order: true,
            grants: 0,
            failovers: 0,
            moves: 0,
        };
        first.primary.first_floor_us = first.primary.floor_us(limits, 0);
        first
    }

    fn grant(&mut self, limits: &Limits, at: At, is_fresh: bool) {
        self.grants += 1;
        let ticks = self.ticks;
        let primary = match at {
            At::Primary => &mut self.primary,
            At::Old(index) => &mut self.old[index].0,
        };
        let env = Env {
            now_us: primary.now_us(ticks),
            has_subscriber: &|_| false,
        };
        let floor_us = if is_fresh {
            primary.floor_us(limits, ticks)
        } else {
            primary.first_floor_us
        };
        let lead_us = primary.lead_us(limits);
        let owner_id = OwnerId::from_number(u128::from(self.grants));
        let acquire = AcquireCommand {
            owner_id,
            ttl_ms: TTL_MS,
            floor_us,
            not_after_ms: ServerMs::from_micros(u64::MAX),
            label: "",
            entry: None,
            lead_us,
            kind: Kind::Exclusive,
            purpose: Purpose::Acquire,
            earlier: &[],
            max_queue: None,
        };
        let (reply, _) = primary.lock.acquire(&acquire, &env);
        let AcquireReply::Held { token, .. } = reply else {
            panic!("the lock is free: {reply:?}");
        };
        let release = ReleaseCommand {
            owner_id,
            floor_us,
            grace_ms: 0,
            min_hold_ms: 0,
            done_ms: 0,
            lead_us,
            label: "waiter",
            kind: Kind::Exclusive,
            entries: &[],
        };
        let _free = primary.lock.release(&release, &env);
        let (epoch, token) = (usize::from(primary.epoch), u64::from(token));
        let earlier = self.tokens[..epoch].iter().flatten();
        let later = self.tokens[epoch + 1..].iter().flatten();
        let mut in_order = earlier.map(|(_, high)| *high).all(|high| high < token)
            && later.map(|(low, _)| *low).all(|low| token < low);
        let of_epoch = &mut self.tokens[epoch];
        match of_epoch {
            None => *of_epoch = Some((token, token)),
            Some((_, high)) => {
                in_order &= *high < token;
                *high = token;
            }
        }
        self.is_in_order &= in_order;
    }

    fn promote(&mut self, limits: &Limits, lock: LockState, skew_us: i64) -> Primary {
        let epoch = self.primary.epoch + 1;
        self.tokens.push(None);
        let mut new = Primary {
            lock,
            skew_us,
            epoch,
            first_floor_us: 0,
        };
        new.first_floor_us = new.floor_us(limits, self.ticks);
        std::mem::replace(&mut self.primary, new)
    }

    fn apply(&mut self, limits: &Limits, step: Step) {
        match step {
            Step::Tick => {
                self.ticks += 1;
                self.old.retain(|(_, left)| *left > 0);
                self.old.iter_mut().for_each(|(_, left)| *left -= 1);
            }
            Step::Grant(at, is_fresh) => self.grant(limits, at, is_fresh),
            Step::Replicate => self.copy = self.primary.lock.clone(),
            Step::Failover(skew_us) => {
                self.failovers += 1;
                let old = self.promote(limits, self.copy.clone(), skew_us);
                self.old.push((old, OLD_PRIMARY_LIVES));
            }
            Step::MoveSlot(skew_us) => {
                self.moves += 1;
                let lock = moved(&self.primary.lock, skew_us - self.primary.skew_us);
                let _refuses = self.promote(limits, lock.clone(), skew_us);
                self.copy = lock;
            }
        }
    }
}

/// A slot moves with the time that is left to each key, and the clocks differ.
fn moved(lock: &LockState, difference_us: i64) -> LockState {
    let mut lock = lock.clone();
    assert!(lock.key.is_none() && lock.queue.is_none(), "{lock:?}");
    if let Some(Expiring {
        expires_ms: Some(end),
        ..
    }) = &mut lock.counter
    {
        let millis = (difference_us / 1_000).unsigned_abs();
        *end = match difference_us {
            0.. => end.plus(millis),
            _ => ServerMs::new(end.since(ServerMs::new(millis))),
        };
    }
    lock
}

impl Model for Limits {
    type State = Deployment;
    type Action = Step;

    fn init_states(&self) -> Vec<Deployment> {
        [-self.skew_us, self.skew_us]
            .map(|skew_us| Deployment::first(self, skew_us))
            .to_vec()
    }

    fn actions(&self, state: &Deployment, actions: &mut Vec<Step>) {
        let clocks = [-self.skew_us, self.skew_us];
        if state.ticks < self.ticks {
            actions.push(Step::Tick);
        }
        if state.grants < self.grants {
            let old = (0..state.old.len()).map(At::Old);
            for at in old.chain([At::Primary]) {
                actions.extend([Step::Grant(at, false), Step::Grant(at, true)]);
            }
        }
        if state.copy != state.primary.lock {
            actions.push(Step::Replicate);
        }
        if state.failovers < self.failovers {
            actions.extend(clocks.map(Step::Failover));
        }
        if state.moves < self.moves {
            actions.extend(clocks.map(Step::MoveSlot));
        }
    }

    fn next_state(&self, state: &Deployment, step: Step) -> Option<Deployment> {
        let mut next = state.clone();
        next.apply(self, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(ORDER, |_, state: &Deployment| {
            state.is_in_order
        })]
    }
}

/// Returns the steps that break the order, if there are any, and the number of states.
fn explore(limits: Limits) -> (Option<Vec<Step>>, usize) {
    let checker = limits.checker().threads(1).spawn_bfs().join();
    let broken = checker.discovery(ORDER);
    (broken.map(Path::into_actions), checker.unique_state_count())
}

#[test]
fn tokens_grow_across_failovers_and_moves() {
    let (broken, states) = explore(PROMISED);
    assert_eq!(broken, None);
    assert!(states > 10_000, "{states}");
}

/// Twice the skew and the time of an old primary are 60.2 s.
#[test]
fn bound_on_clocks_and_old_primaries_is_exact() {
    let (broken, _) = explore(Limits {
        skew_us: 10_100_000,
        ..PROMISED
    });
    let steps = broken.expect("an old primary overtakes the new one");
    let ticks = steps.iter().filter(|step| **step == Step::Tick).count();
    assert_eq!(ticks, usize::from(OLD_PRIMARY_LIVES), "{steps:?}");
}

#[test]
fn tokens_need_the_lead_of_an_epoch() {
    let without = Limits {
        lead_us: 0,
        ..PROMISED
    };
    assert!(explore(without).0.is_some());
}

/// A replica that lacks the last steps of the counter would go on behind them.
#[test]
fn tokens_need_the_lead_in_the_floor_too() {
    let without = Limits {
        floor_has_lead: false,
        ..PROMISED
    };
    assert!(explore(without).0.is_some());
}
