//! How a guard ends: dropped, or released by a caller that awaits the reply.

use lock_testing::{Call, Kind, nanos};

use super::Simulation;
use super::link::Purpose;
use super::task::{CallLane, Releasing, Work};
use super::timers::NEVER;
use crate::acquisition::FailureClass;
use crate::cleanup::{AwaitedRelease, AwaitedStep, Cleanup, Keep, ReleaseRequest, Validity};
use crate::tests::virtual_client::{Caller, Lapse, MessageLane, Reply, Request};

impl Simulation {
    /// Drops the guard. The background worker releases the lock.
    pub(super) fn drop_guard(&mut self, index: usize, task: usize) {
        let Work::Holding(section) = &self.processes[index].tasks[task].work else {
            return;
        };
        let min_hold = section.min_hold;
        self.processes[index].tasks[task].work = Work::Stopped;
        self.step(index, task, |step| {
            step.release(min_hold);
        });
        self.record(index, task, Call::Release, Kind::Dropped);
        self.rest(index, task);
    }

    /// Releases the lock, and awaits the reply.
    pub(super) fn release_guard(&mut self, index: usize, task: usize) {
        let process = &mut self.processes[index];
        let now = process.clock.at(self.now);
        let timeout = process.manager.command_timeout;
        let of = &mut process.tasks[task];
        let (Work::Holding(section), Caller::Holding(holding)) = (&of.work, &mut of.caller) else {
            return;
        };
        let validity = if holding.lease.is_lost(now) {
            Validity::Lost
        } else {
            Validity::Valid
        };
        holding.lease.release();
        let mut request = holding.request.clone();
        request.keep = section.min_hold.map_or(Keep::Nothing, |shortest| {
            Keep::Until(holding.since.plus(shortest))
        });
        of.calls[CallLane::Renew as usize] = None;
        of.caller = Caller::Idle;
        let cleanup = Cleanup::new(request, now, timeout);
        let mut release = AwaitedRelease::new(cleanup, now.plus(timeout), validity);
        let step = release.on_start(now);
        let drop_at = if self.random.chance(10) {
            self.now + nanos(self.random.millis(0, 40))
        } else {
            NEVER
        };
        of_mut(self, index, task).work = Work::Releasing(Box::new(Releasing {
            release,
            until: now,
            is_pause: false,
            drop_at,
        }));
        self.perform_release(index, task, &step);
    }

    fn perform_release(&mut self, index: usize, task: usize, step: &AwaitedStep<Lapse>) {
        let now = self.processes[index].clock.at(self.now);
        let floor_us = self.processes[index].manager.floor_us;
        let Work::Releasing(releasing) = &mut self.processes[index].tasks[task].work else {
            return;
        };
        match step {
            AwaitedStep::Send { limit } => {
                releasing.until = now.plus(*limit);
                releasing.is_pause = false;
                let request = releasing.release.request();
                let owner_id = request.owner_id;
                let request = Request::release(request, floor_us, now);
                self.send_command(index, Some(task), MessageLane::Release, owner_id, request);
                self.plan(index, task);
            }
            AwaitedStep::WaitUntil(until) => {
                releasing.until = *until;
                releasing.is_pause = true;
                self.plan(index, task);
            }
            AwaitedStep::Done(result) => {
                let request = releasing.release.request().clone();
                let is_finished = releasing.release.is_finished();
                if is_finished {
                    self.on_cleaned_up(request.owner_id);
                } else {
                    self.submit(index, request);
                }
                let kind = match result {
                    Ok(outcome) if outcome.was_owner => Kind::Ok,
                    Ok(_) => Kind::Fail,
                    Err(_) => Kind::Info,
                };
                self.record(index, task, Call::Release, kind);
                self.rest(index, task);
            }
        }
    }

    fn submit(&mut self, index: usize, request: ReleaseRequest) {
        let now = self.processes[index].clock.at(self.now);
        self.use_link(index, Purpose::Worker);
        self.processes[index].manager.submit(request, now);
        self.run_worker(index);
    }

    pub(super) fn on_release_reply(
        &mut self,
        index: usize,
        task: usize,
        reply: &Reply,
        server_us: u64,
    ) {
        let now = self.processes[index].clock.at(self.now);
        let run_id = self.processes[index].manager.first.run_id;
        if let Work::Releasing(releasing) = &mut self.processes[index].tasks[task].work {
            let outcome = reply.as_released(run_id, server_us);
            let step = releasing.release.on_reply(outcome, now);
            self.perform_release(index, task, &step);
        }
    }

    pub(super) fn on_release_failure(&mut self, index: usize, task: usize, class: FailureClass) {
        let now = self.processes[index].clock.at(self.now);
        if let Work::Releasing(releasing) = &mut self.processes[index].tasks[task].work {
            let step = releasing.release.on_failure(Lapse(class), now);
            self.perform_release(index, task, &step);
        }
    }

    pub(super) fn on_releasing_due(&mut self, index: usize, task: usize) {
        let of = &mut self.processes[index].tasks[task];
        let Work::Releasing(releasing) = &mut of.work else {
            return;
        };
        if releasing.drop_at <= self.now {
            let request = releasing.release.request().clone();
            of.calls[CallLane::Release as usize] = None;
            self.submit(index, request);
            self.record(index, task, Call::Release, Kind::Dropped);
            return self.rest(index, task);
        }
        if releasing.is_pause {
            let now = self.processes[index].clock.at(self.now);
            if let Work::Releasing(releasing) = &mut self.processes[index].tasks[task].work {
                let step = releasing.release.on_timeout(now);
                self.perform_release(index, task, &step);
            }
            return;
        }
        let call = of.calls[CallLane::Release as usize].take();
        if let Some(call) = call {
            self.on_silence(index, call.link, call.sent);
        }
        self.on_release_failure(index, task, FailureClass::TimedOut);
    }
}

fn of_mut(simulation: &mut Simulation, index: usize, task: usize) -> &mut super::task::CallerTask {
    &mut simulation.processes[index].tasks[task]
}
