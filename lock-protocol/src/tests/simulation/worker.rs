//! The releases and cancels of the background workers.

use super::Simulation;
use super::link::Purpose;
use crate::acquisition::FailureClass;
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::Effect;

impl Simulation {
    pub(super) fn on_cleanup_failure(
        &mut self,
        index: usize,
        owner_id: OwnerId,
        class: FailureClass,
    ) {
        self.use_link(index, Purpose::Worker);
        let process = &mut self.processes[index];
        let now = process.clock.at(self.now);
        let mut effects = Vec::new();
        process
            .manager
            .on_no_release_reply(owner_id, class, now, &mut effects);
        self.is_failing = true;
        self.apply_worker(index, effects);
        self.is_failing = false;
    }

    pub(super) fn apply_worker(&mut self, index: usize, effects: Vec<Effect>) {
        for effect in effects {
            self.apply(index, None, effect);
        }
        self.plan_worker(index);
    }

    /// Sends what is due in the background, and repeats what got no reply.
    pub(super) fn run_worker(&mut self, index: usize) {
        let process = &self.processes[index];
        let now = process.clock.at(self.now);
        let late = process.manager.cleanups.iter();
        let late: Vec<_> = late
            .filter(|running| running.until.is_some_and(|until| until <= now))
            .map(|running| running.cleanup.request().owner_id)
            .collect();
        for owner_id in late {
            let calls = &mut self.processes[index].cleanup_calls;
            if let Some(at) = calls.iter().position(|call| call.owner_id == owner_id) {
                let known = calls.swap_remove(at);
                self.on_silence(index, known.link, known.sent);
            }
            self.on_cleanup_failure(index, owner_id, FailureClass::TimedOut);
        }
        self.use_link(index, Purpose::Worker);
        let mut effects = Vec::new();
        let manager = &mut self.processes[index].manager;
        manager.run_cleanups(now, &mut effects);
        self.apply_worker(index, effects);
    }
}
