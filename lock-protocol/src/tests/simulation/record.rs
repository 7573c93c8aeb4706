//! The history of an episode.

use lock_testing::{Call, Event, Kind};

use super::Simulation;
use super::process::number;

impl Simulation {
    /// Records an event of a task. The caller may add to it.
    pub(super) fn record(
        &mut self,
        index: usize,
        task: usize,
        call: Call,
        kind: Kind,
    ) -> &mut Event {
        let of = &self.processes[index].tasks[task];
        let (key, acquisition) = (of.key, of.acquisition);
        let name = self.names[key].clone();
        let mut event = Event::new(self.now, number(index), acquisition, name, call, kind);
        event.task = number(task);
        if kind == Kind::Invoke {
            self.figures.on_invoke(call);
            self.nemesis.on_operation(&mut self.figures);
        } else if kind != Kind::Seen {
            self.figures.on_end(call, kind);
        }
        for part in [
            self.now,
            acquisition,
            call as u64 * 16 + kind as u64,
            number(index).into(),
        ] {
            self.figures.digest(part);
        }
        self.tell_about(key, || event.to_string());
        self.history.events.push(event);
        self.history.events.last_mut().expect("it was added")
    }
}
