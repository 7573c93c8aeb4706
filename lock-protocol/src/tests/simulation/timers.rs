//! The timers of the tasks and of the background workers.

use lock_testing::{Call, Kind, Nanos};

use super::process::ClientProcess;
use super::sabotage::Sabotage;
use super::task::{CallLane, Work};
use super::{MS, Simulation, Timed};
use crate::acquisition::FailureClass;
use crate::tests::virtual_client::{Awaited, Caller};

/// The end of a timer that is never due.
pub(super) const NEVER: Nanos = Nanos::MAX / 8;

impl ClientProcess {
    fn wakeup(&self, caller: &Caller) -> Nanos {
        let next = caller.next_wakeup();
        next.map_or(NEVER, |moment| self.clock.when(moment))
    }

    fn due(&self, task: usize, sabotage: Option<Sabotage>) -> Nanos {
        let of = &self.tasks[task];
        match &of.work {
            Work::Resting { until } | Work::Connecting { until, .. } => *until,
            Work::Acquiring { drop_at, began, .. } => {
                let is_deaf = sabotage == Some(Sabotage::DeafWaiters)
                    && matches!(
                        of.caller.acquiring().map(|acquiring| &acquiring.awaited),
                        Some(Awaited::Notification { .. })
                    );
                let next = if is_deaf {
                    began + 16_000 * MS
                } else {
                    self.wakeup(&of.caller)
                };
                next.min(*drop_at)
            }
            Work::Holding(section) => section.due().min(self.wakeup(&of.caller)),
            Work::Releasing(releasing) => self.clock.when(releasing.until).min(releasing.drop_at),
            Work::Stopped => NEVER,
        }
    }
}

impl Simulation {
    /// Sets the timer of a task.
    pub(super) fn plan(&mut self, index: usize, task: usize) {
        let process = &self.processes[index];
        let due = process.due(task, self.sabotage);
        if process.tasks[task].due == due {
            return;
        }
        let mut lateness = self.random.number() % (MS + MS / 4);
        let of = &mut self.processes[index].tasks[task];
        if let (Some(Sabotage::LateTimers), Work::Acquiring { .. }) = (self.sabotage, &of.work) {
            lateness += 600 * MS;
        }
        of.due = due;
        of.timer = of.timer.wrapping_add(1);
        let timer = of.timer;
        if due < NEVER {
            let at = due.max(self.now) + lateness;
            let process = index;
            self.push(
                at,
                Timed::Wake {
                    process,
                    task,
                    timer,
                },
            );
        }
    }

    pub(super) fn on_wake(&mut self, index: usize, task: usize, timer: u32) {
        let now = self.now;
        let Some(of) = self.processes[index].tasks.get_mut(task) else {
            return;
        };
        if of.timer != timer {
            return;
        }
        of.due = NEVER;
        match &of.work {
            Work::Resting { .. } => self.begin(index, task),
            Work::Connecting { plan, .. } => {
                let is_dropped = plan.drop_at <= now;
                let kind = if is_dropped {
                    Kind::Dropped
                } else {
                    Kind::Fail
                };
                self.record(index, task, Call::Acquire, kind);
                self.rest(index, task);
            }
            Work::Acquiring { drop_at, .. } if *drop_at <= now => {
                self.step(index, task, |step| step.drop_future());
            }
            Work::Acquiring { .. } => self.on_acquiring_due(index, task),
            Work::Holding(_) => self.on_holding_due(index, task),
            Work::Releasing(_) => self.on_releasing_due(index, task),
            Work::Stopped => {}
        }
        self.plan(index, task);
    }

    fn on_acquiring_due(&mut self, index: usize, task: usize) {
        let process = &self.processes[index];
        let now = process.clock.at(self.now);
        let Some(acquiring) = process.tasks[task].caller.acquiring() else {
            return;
        };
        if acquiring.awaited.until() > now {
            return;
        }
        if !acquiring.awaited.is_reply() {
            self.step(index, task, |step| step.on_pause_end());
            return;
        }
        let lane = match acquiring.awaited {
            Awaited::Cancel { .. } => CallLane::Release,
            _ => CallLane::Acquire,
        };
        let call = self.processes[index].tasks[task].calls[lane as usize].take();
        if let Some(call) = call {
            self.on_silence(index, call.link, call.sent);
        }
        self.figures.timeouts += 1;
        self.step(index, task, |step| step.on_no_reply(FailureClass::TimedOut));
    }

    /// Sets the timer of the background worker for its releases.
    pub(super) fn plan_worker(&mut self, index: usize) {
        let process = &self.processes[index];
        let now = process.clock.at(self.now);
        let next = process.manager.next_cleanup(now);
        let due = next.map_or(NEVER, |moment| process.clock.when(moment));
        if process.worker_due == due {
            return;
        }
        let process = &mut self.processes[index];
        process.worker_due = due;
        process.worker_timer = process.worker_timer.wrapping_add(1);
        let timer = process.worker_timer;
        if due < NEVER {
            let at = due.max(self.now) + self.random.number() % (MS / 4);
            self.push(
                at,
                Timed::WorkerWake {
                    process: index,
                    timer,
                },
            );
        }
    }

    pub(super) fn on_worker_wake(&mut self, index: usize, timer: u32) {
        let process = &mut self.processes[index];
        if process.worker_timer == timer {
            process.worker_due = NEVER;
            self.run_worker(index);
        }
    }
}
