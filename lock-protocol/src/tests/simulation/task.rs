//! The callers of a process: what they do, one acquisition after another.

use std::time::Duration;

use lock_testing::{Call, Kind, Nanos, nanos};

use super::link::{Addressee, Purpose};
use super::section::Section;
use super::{MS, Simulation};
use crate::acquisition::{AcquireConfig, AcquireOrigin, LeaseKind, Patience, QueueLimit};
use crate::backoff::Jitter;
use crate::cleanup::AwaitedRelease;
use crate::clock::Moment;
use crate::kind::Kind as LockKind;
use crate::lease::LeaseConfig;
use crate::local_queue::QueuePlace;
use crate::owner_id::OwnerId;
use crate::renew::Renew;
use crate::tests::virtual_client::{Caller, Lapse, MessageLane};
use crate::ttl::Ttl;

/// The longest interval between polls behind another client's lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The commands of a task that may be in flight at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallLane {
    Acquire,
    Renew,
    Release,
}

impl CallLane {
    pub(super) const ALL: [Self; 3] = [Self::Acquire, Self::Renew, Self::Release];

    pub(super) fn of(lane: MessageLane) -> Self {
        match lane {
            MessageLane::Acquire => Self::Acquire,
            MessageLane::Renew => Self::Renew,
            MessageLane::Release => Self::Release,
        }
    }

    pub(super) fn lane(self) -> MessageLane {
        match self {
            Self::Acquire => MessageLane::Acquire,
            Self::Renew => MessageLane::Renew,
            Self::Release => MessageLane::Release,
        }
    }
}

/// A command whose reply is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedCall {
    pub(super) call: u64,
    /// `None` when there was no connection.
    pub(super) link: Option<usize>,
    pub(super) sent: Moment,
}

/// One acquisition, as its caller wants it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) config: AcquireConfig,
    /// When the caller drops the future.
    pub(super) drop_at: Nanos,
    pub(super) min_hold: Option<Duration>,
}

/// What a task does now.
#[derive(Debug)]
pub(super) enum Work {
    Resting {
        until: Nanos,
    },
    /// Waits for a connection before its first command.
    Connecting {
        plan: Box<Plan>,
        until: Nanos,
    },
    Acquiring {
        began: Nanos,
        drop_at: Nanos,
        min_hold: Option<Duration>,
    },
    Holding(Box<Section>),
    Releasing(Box<Releasing>),
    Stopped,
}

/// A release whose caller awaits it.
#[derive(Debug)]
pub(super) struct Releasing {
    pub(super) release: AwaitedRelease<Lapse>,
    /// Until when the reply is awaited, or the pause lasts.
    pub(super) until: Moment,
    pub(super) is_pause: bool,
    pub(super) drop_at: Nanos,
}

#[derive(Debug)]
pub(super) struct CallerTask {
    pub(super) caller: Caller,
    pub(super) work: Work,
    pub(super) key: usize,
    /// Whether it gets notifications.
    pub(super) is_waiter: bool,
    pub(super) place: Option<QueuePlace>,
    /// The number of its acquisition within the process.
    pub(super) acquisition: u64,
    pub(super) calls: [Option<AwaitedCall>; 3],
    /// The number of the last timer, and its time.
    pub(super) timer: u32,
    pub(super) due: Nanos,
}

impl CallerTask {
    pub(super) fn new(begins: Nanos) -> Self {
        Self {
            caller: Caller::Idle,
            work: Work::Resting { until: begins },
            key: 0,
            is_waiter: false,
            place: None,
            acquisition: 0,
            calls: [None; 3],
            timer: 0,
            due: Nanos::MAX,
        }
    }
}

impl Simulation {
    /// Begins an acquisition, or waits for a connection first.
    pub(super) fn begin(&mut self, index: usize, task: usize) {
        if self.is_ending {
            self.processes[index].tasks[task].work = Work::Stopped;
            return;
        }
        let key = self.random.below(self.keys.len());
        let plan = Box::new(self.plan_acquisition(index, key));
        let process = &mut self.processes[index];
        process.acquisitions += 1;
        let of = &mut process.tasks[task];
        of.key = key;
        of.acquisition = process.acquisitions;
        of.is_waiter = matches!(plan.config.patience, Patience::Wait { .. });
        let outage_wait = plan.config.outage_wait.unwrap_or_default();
        let limit = match plan.config.patience {
            Patience::Wait { deadline, .. } => deadline.plus(outage_wait),
            Patience::OneAttempt { started, until } => until
                .max(started.plus(Duration::from_millis(250)))
                .max(started.plus(outage_wait)),
        };
        let limit = process.clock.when(limit).saturating_sub(self.now);
        let until = process
            .clock
            .when(plan.config.connects_until(process.clock.at(self.now)));
        let until = until.min(plan.drop_at);
        of.work = Work::Connecting { plan, until };
        let event = self.record(index, task, Call::Acquire, Kind::Invoke);
        event.limit = Some(limit);
        let link = self.processes[index].link(Purpose::Callers);
        if link.is_some_and(|id| self.links[id].first().is_some()) {
            self.begin_acquire(index, task);
        }
    }

    /// Starts the acquisition of a task that has a connection.
    pub(super) fn begin_acquire(&mut self, index: usize, task: usize) {
        let of = &mut self.processes[index].tasks[task];
        let Work::Connecting { plan, .. } = std::mem::replace(&mut of.work, Work::Stopped) else {
            return;
        };
        let Plan {
            mut config,
            drop_at,
            min_hold,
        } = *plan;
        let (Patience::Wait { started, .. } | Patience::OneAttempt { started, .. }) =
            config.patience;
        config.on_connected(started, self.processes[index].clock.at(self.now));
        let of = &mut self.processes[index].tasks[task];
        of.caller = Caller::Idle;
        of.work = Work::Acquiring {
            began: self.now,
            drop_at,
            min_hold,
        };
        let jitter = Jitter::seeded(self.random.number());
        self.step(index, task, |step| step.start(config, jitter));
    }

    fn plan_acquisition(&mut self, index: usize, key: usize) -> Plan {
        let random = &mut self.random;
        let process = &self.processes[index];
        let ttl = Duration::from_millis(*random.pick(&self.config.ttls));
        let renew = match random.below(100) {
            0..70 => Renew::Auto,
            70..85 => Renew::Never,
            _ => Renew::Every(ttl / 4),
        };
        // As the builder demands: longer than the ttl, and not for a lock that is never renewed.
        let has_limit = random.chance(5) && renew != Renew::Never;
        let max_hold = has_limit.then(|| ttl + random.millis(1, 4_000));
        let started = process.clock.at(self.now);
        let timeout = process.manager.command_timeout;
        let tries = random.chance(self.config.tries);
        let patience = if tries {
            Patience::OneAttempt {
                started,
                until: started.plus(timeout),
            }
        } else {
            let wait = match random.below(10) {
                0 => random.millis(1, 100),
                1..8 => random.millis(100, 3_000),
                _ => random.millis(3_000, 15_000),
            };
            Patience::Wait {
                started,
                deadline: started.plus(wait),
                max_queue: if random.chance(10) {
                    QueueLimit::new(*random.pick(&[0, 1, 3]))
                } else {
                    QueueLimit::NONE
                },
            }
        };
        let drop_after = match random.below(100) {
            0..5 => nanos(random.millis(0, 10)),
            5..10 => nanos(random.millis(0, 300)),
            10..15 => nanos(random.millis(0, 4_000)),
            _ => Nanos::MAX / 8,
        };
        Plan {
            config: AcquireConfig {
                key: self.keys[key].clone(),
                lease_config: LeaseConfig {
                    ttl: Ttl::new(ttl).expect("the ttl is in range"),
                    renew,
                    max_hold,
                    margin: Duration::ZERO,
                    kind: LockKind::Exclusive,
                },
                label: self.label.clone(),
                patience,
                outage_wait: random.chance(15).then(|| random.millis(0, 8_000)),
                origin: AcquireOrigin::New,
                lease_kind: LeaseKind::Renewed,
                command_timeout: timeout,
                retry_interval: RETRY_INTERVAL,
            },
            drop_at: self.now + drop_after,
            min_hold: random.chance(5).then(|| random.millis(1, 600)),
        }
    }

    /// Ends the turn of a task, and lets it rest.
    pub(super) fn rest(&mut self, index: usize, task: usize) {
        let rest = MS + self.random.number() % (2 * self.config.rest);
        let of = &mut self.processes[index].tasks[task];
        of.caller = Caller::Idle;
        of.calls = [None; 3];
        of.work = if self.is_ending {
            Work::Stopped
        } else {
            Work::Resting {
                until: self.now + rest,
            }
        };
        self.plan(index, task);
    }

    pub(super) fn new_owner_id(random: &mut test_support::Random) -> OwnerId {
        let (high, low) = (random.number(), random.number());
        OwnerId::from_number(u128::from(high) << 64 | u128::from(low))
    }

    /// Fails a call that could not be sent.
    pub(super) fn on_unsent(&mut self, index: usize, addressee: Addressee, call: u64) {
        use crate::acquisition::FailureClass::Unreachable;
        if self.processes[index].is_alive {
            self.on_failure(index, addressee, call, Unreachable);
        }
    }
}
