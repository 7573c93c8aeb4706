//! What a holder does under the lock: it reads, thinks, writes, renews, and ends in one of many ways.

use lock_testing::{Call, Kind, Nanos, Validity, nanos};

use super::link::Purpose;
use super::sabotage::Sabotage;
use super::task::{CallLane, Work};
use super::timers::NEVER;
use super::{MS, Simulation};
use crate::fencing_token::FencingToken;
use crate::tests::virtual_client::{Caller, Ended};

/// A critical section.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) token: u64,
    pub(super) min_hold: Option<std::time::Duration>,
    updates: usize,
    think: Nanos,
    /// Whether it goes on after the notification of a loss.
    is_stubborn: bool,
    renewal: ExplicitRenewal,
    is_lost: bool,
    stage: Stage,
    /// The latest recorded end of the lease.
    recorded_until: Nanos,
}

/// Whether the caller renews between its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExplicitRenewal {
    Unwanted,
    Wanted,
    /// Its reply is awaited.
    Recorded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Until this time. With the value that it has read.
    Thinking { until: Nanos, read: Option<u64> },
    /// The write is on its way to the resource.
    Writing,
}

impl Section {
    /// Returns whether an explicit renewal has ended, which was recorded.
    fn takes_renewal(&mut self) -> bool {
        let is_recorded = self.renewal == ExplicitRenewal::Recorded;
        if is_recorded {
            self.renewal = ExplicitRenewal::Wanted;
        }
        is_recorded
    }

    pub(super) fn due(&self) -> Nanos {
        match self.stage {
            Stage::Thinking { until, .. } => until,
            Stage::Writing => NEVER,
        }
    }
}

impl Simulation {
    pub(super) fn on_acquired(&mut self, index: usize, task: usize, token: FencingToken) {
        let token = u64::from(token);
        let of = &self.processes[index].tasks[task];
        let Work::Acquiring {
            began, min_hold, ..
        } = of.work
        else {
            return;
        };
        let ttl = of.caller.holding().map_or(0, |holding| {
            nanos(holding.lease.lease_config().ttl.as_duration())
        });
        let (key, owner_id) = (of.key, of.caller.owner_id());
        if let Some(owner_id) = owner_id {
            self.on_noticed(key, owner_id);
        }
        let waited = self.now - began;
        self.figures.longest_wait = self.figures.longest_wait.max(waited);
        let random = &mut self.random;
        let (updates, think) = match random.below(10) {
            0..6 => (random.below(3), random.number() % (40 * MS)),
            6..9 => (1 + random.below(2), random.number() % (ttl / 2)),
            // Longer than the lease.
            _ => (1, ttl + random.number() % (2 * ttl)),
        };
        let section = Section {
            token,
            min_hold,
            updates,
            think,
            is_stubborn: random.chance(25),
            renewal: if random.chance(10) {
                ExplicitRenewal::Wanted
            } else {
                ExplicitRenewal::Unwanted
            },
            is_lost: false,
            stage: Stage::Thinking {
                until: self.now + think,
                read: None,
            },
            recorded_until: 0,
        };
        self.processes[index].tasks[task].work = Work::Holding(Box::new(section));
        let until = self.lease_end(index, task);
        if let Some(section) = self.section(index, task) {
            section.recorded_until = until;
        }
        let event = self.record(index, task, Call::Acquire, Kind::Ok);
        event.valid_until = Some(Validity::Until(until));
        event.token = Some(token);
        self.next_update(index, task);
    }

    /// Returns the end of the lease in true time.
    fn lease_end(&self, index: usize, task: usize) -> Nanos {
        let process = &self.processes[index];
        let holding = process.tasks[task].caller.holding();
        let deadline = holding.and_then(|holding| holding.lease.deadline());
        deadline.map_or(self.now, |deadline| process.clock.when(deadline))
    }

    fn section(&mut self, index: usize, task: usize) -> Option<&mut Section> {
        match &mut self.processes[index].tasks.get_mut(task)?.work {
            Work::Holding(section) => Some(section),
            _ => None,
        }
    }

    /// Records until when the lock is valid, if that has changed.
    pub(super) fn record_extension(&mut self, index: usize, task: usize) {
        let until = self.lease_end(index, task);
        let Some(section) = self.section(index, task) else {
            return;
        };
        if until > section.recorded_until {
            section.recorded_until = until;
            let token = section.token;
            let event = self.record(index, task, Call::Acquire, Kind::Seen);
            event.valid_until = Some(Validity::Until(until));
            event.token = Some(token);
        }
    }

    fn next_update(&mut self, index: usize, task: usize) {
        let now = self.now;
        let Some(section) = self.section(index, task) else {
            return;
        };
        let think = section.think;
        section.stage = Stage::Thinking {
            until: now + think,
            read: None,
        };
        if section.updates == 0 {
            return;
        }
        section.updates -= 1;
        self.record(index, task, Call::Write, Kind::Invoke);
        let of = &self.processes[index].tasks[task];
        let (key, acquisition) = (of.key, of.acquisition);
        let Some(section) = self.section(index, task) else {
            return;
        };
        let token = section.token;
        let Some(value) = self.access(index, acquisition, key, token, None) else {
            self.record(index, task, Call::Write, Kind::Fail);
            self.end_section(index, task);
            return;
        };
        if let Some(section) = self.section(index, task) {
            section.stage = Stage::Thinking {
                until: now + think,
                read: Some(value),
            };
        }
    }

    /// The reply of the resource arrives at the process.
    pub(super) fn on_written(&mut self, write: usize, is_accepted: bool) {
        let write = self.writes[write];
        let (index, task) = (write.process, write.task);
        let of = self.processes[index].tasks.get(task);
        let until = self.now;
        let is_same = of.is_some_and(|of| of.acquisition == write.acquisition);
        let Some(section) = self.section(index, task) else {
            return;
        };
        if !is_same || section.stage != Stage::Writing {
            return;
        }
        let kind = if is_accepted { Kind::Ok } else { Kind::Fail };
        let renews = section.renewal == ExplicitRenewal::Wanted;
        let ends = !is_accepted || section.updates == 0;
        section.stage = Stage::Thinking { until, read: None };
        self.record(index, task, Call::Write, kind);
        if ends {
            return self.end_section(index, task);
        }
        if renews {
            self.renew_explicitly(index, task);
        }
        self.next_update(index, task);
        self.plan(index, task);
    }

    fn renew_explicitly(&mut self, index: usize, task: usize) {
        let mut is_sent = false;
        // Recorded before the command is sent.
        let caller = &self.processes[index].tasks[task].caller;
        if caller
            .holding()
            .is_none_or(|holding| holding.renewing.is_some())
        {
            return;
        }
        self.record(index, task, Call::Renew, Kind::Invoke);
        self.use_link(index, Purpose::Worker);
        self.step_with(index, task, |step| is_sent = step.renew_now());
        match self.section(index, task) {
            Some(section) if is_sent => section.renewal = ExplicitRenewal::Recorded,
            _ => {
                self.record(index, task, Call::Renew, Kind::Fail);
            }
        }
    }

    pub(super) fn on_renewed(&mut self, index: usize, task: usize) {
        let Some(section) = self.section(index, task) else {
            return;
        };
        if section.takes_renewal() {
            let kind = if section.is_lost {
                Kind::Fail
            } else {
                Kind::Ok
            };
            self.record(index, task, Call::Renew, kind);
        }
    }

    pub(super) fn on_renewal_failed(&mut self, index: usize, task: usize) {
        let Some(section) = self.section(index, task) else {
            return;
        };
        if section.takes_renewal() {
            self.record(index, task, Call::Renew, Kind::Info);
        }
    }

    pub(super) fn on_holding_due(&mut self, index: usize, task: usize) {
        let process = &self.processes[index];
        let now = process.clock.at(self.now);
        let Caller::Holding(holding) = &process.tasks[task].caller else {
            return;
        };
        if holding.renewing.is_some_and(|(_, until)| until <= now) {
            let call = self.processes[index].tasks[task].calls[CallLane::Renew as usize].take();
            if let Some(call) = call {
                self.on_silence(index, call.link, call.sent);
            }
            self.use_link(index, Purpose::Worker);
            self.step_with(index, task, |step| step.on_no_renewal_reply());
            self.on_renewal_failed(index, task);
        }
        self.use_link(index, Purpose::Worker);
        let is_renewing = |caller: &Caller| {
            let holding = caller.holding();
            holding.is_some_and(|holding| holding.renewing.is_some())
        };
        if self.section(index, task).is_some()
            && !is_renewing(&self.processes[index].tasks[task].caller)
        {
            self.step_with(index, task, |step| {
                step.renew();
            });
        }
        let now = self.now;
        let Some(section) = self.section(index, task) else {
            return;
        };
        let Stage::Thinking { until, read } = section.stage else {
            return;
        };
        if until > now {
            return;
        }
        let Some(value) = read else {
            return self.end_section(index, task);
        };
        section.stage = Stage::Writing;
        let token = section.token;
        self.send_write(index, task, token, value + 1);
    }

    /// Notes the loss of a lock, at its end or when the server refuses a renewal.
    pub(super) fn check_loss(&mut self, index: usize, task: usize) {
        if self.sabotage == Some(Sabotage::SilentLoss) {
            return;
        }
        let Some(of) = self.processes[index].tasks.get(task) else {
            return;
        };
        let now = self.processes[index].clock.at(self.now);
        let holding = of.caller.holding();
        if holding.is_none_or(|holding| !holding.lease.is_lost(now)) {
            return;
        }
        let until = self.lease_end(index, task);
        let now = self.now;
        let Some(section) = self.section(index, task) else {
            return;
        };
        if std::mem::replace(&mut section.is_lost, true) {
            return;
        }
        // A younger confirmation may say that the lease ended earlier than the holder knew.
        let until = until.max(section.recorded_until).min(now);
        let (token, goes_on) = (section.token, section.is_stubborn);
        let event = self.record(index, task, Call::Lost, Kind::Ok);
        event.token = Some(token);
        event.valid_until = Some(Validity::Until(until));
        self.figures.losses += 1;
        if !goes_on {
            self.end_section(index, task);
        }
    }

    pub(super) fn end_section(&mut self, index: usize, task: usize) {
        let is_dropped = self.random.chance(25);
        self.end_section_by(index, task, is_dropped);
    }

    /// Ends the section: drops its guard, or releases it.
    pub(super) fn end_section_by(&mut self, index: usize, task: usize, is_dropped: bool) {
        let Some(section) = self.section(index, task) else {
            return;
        };
        let is_writing = section.stage == Stage::Writing
            || matches!(section.stage, Stage::Thinking { read: Some(_), .. });
        let is_renewing = section.renewal == ExplicitRenewal::Recorded;
        if is_writing {
            self.record(index, task, Call::Write, Kind::Dropped);
        }
        if is_renewing {
            self.record(index, task, Call::Renew, Kind::Dropped);
        }
        self.record(index, task, Call::Release, Kind::Invoke);
        if is_dropped {
            self.drop_guard(index, task);
        } else {
            self.release_guard(index, task);
        }
    }

    pub(super) fn on_not_acquired(&mut self, index: usize, task: usize, ended: Ended) {
        let kind = match ended {
            Ended::Contended => Kind::Fail,
            Ended::Refused => {
                self.figures.refused += 1;
                Kind::Fail
            }
            Ended::TimedOut => {
                self.figures.timed_out += 1;
                Kind::Fail
            }
            Ended::Failed => Kind::Info,
            Ended::Dropped => {
                self.figures.on_cancel();
                Kind::Dropped
            }
        };
        let key = self.processes[index].tasks[task].key;
        self.check_idle_now(key);
        self.record(index, task, Call::Acquire, kind);
        self.rest(index, task);
    }
}
