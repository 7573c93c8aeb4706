//! Records written by hand.

use fault_suite::checks::{Check, Violation, check};
use fault_suite::history::{Assumption, Fault, History, KeyState, Sample, WAITS};
use lock_testing::{Access, AccessKind, Call, Event, Kind, Nanos, Stall};

pub(super) const KEY: &str = "a";

pub(super) const fn ms(millis: u64) -> Nanos {
    millis * 1_000_000
}

/// A record written by hand. Times are in milliseconds.
#[derive(Default)]
pub(super) struct RecordBuilder {
    pub(super) history: History,
    pub(super) holds: u64,
}

/// A held lock without a violation, unless a test changes a field.
pub(super) struct Held {
    pub(super) worker: u32,
    pub(super) token: Option<u64>,
    pub(super) requested: u64,
    pub(super) ok: u64,
    pub(super) until: u64,
    pub(super) released: Option<u64>,
    pub(super) lost: Option<u64>,
}

impl RecordBuilder {
    pub(super) fn new() -> Self {
        let mut record = Self::default();
        record.history.ended = Some(ms(60_000));
        record
    }

    pub(super) fn step(&mut self, at: u64, worker: u32, call: Call, kind: Kind) -> &mut Event {
        let event = Event::new(ms(at), worker, self.holds, KEY, call, kind);
        self.history.events.push(event);
        self.history.events.last_mut().unwrap()
    }

    pub(super) fn hold(&mut self, held: &Held) {
        self.holds += 1;
        let worker = held.worker;
        self.step(held.requested, worker, Call::Acquire, Kind::Invoke);
        let ok = self.step(held.ok, worker, Call::Acquire, Kind::Ok);
        ok.token = held.token;
        ok.valid_until = Some(ms(held.until).into());
        if let Some(released) = held.released {
            self.step(released, worker, Call::Release, Kind::Invoke);
            self.step(released + 1, worker, Call::Release, Kind::Ok);
        }
        if let Some(lost) = held.lost {
            self.step(lost, worker, Call::Lost, Kind::Ok);
        }
    }

    /// Adds a waiter that waits for up to a second.
    pub(super) fn wait(&mut self, worker: u32, from: u64, to: u64) -> &mut Event {
        self.holds += 1;
        let requested = self.step(from, worker, Call::Acquire, Kind::Invoke);
        requested.limit = Some(ms(1_000));
        requested.note = Some(WAITS.into());
        self.step(to, worker, Call::Acquire, Kind::Fail)
    }

    pub(super) fn fault(&mut self, from: u64, to: u64, assumption: Assumption) {
        self.history.faults.push(Fault {
            name: "something".to_owned(),
            from: ms(from),
            to: ms(to),
            assumption,
            is_load: false,
            slots: Vec::new(),
        });
    }

    pub(super) fn stall(&mut self, worker: u32, from: u64, to: u64) {
        let stall = Stall::new(worker, ms(from), ms(to));
        self.history.stalls.push(stall);
    }

    pub(super) fn access(&mut self, token: u64, kind: AccessKind) {
        let at = ms(u64::try_from(self.history.accesses.len()).unwrap());
        let access = Access::new(at, KEY, 1, 1, Some(token), kind);
        self.history.accesses.push(access);
    }

    pub(super) fn write(&mut self, token: u64, value: u64) {
        self.access(token, AccessKind::Write { value });
    }

    /// Adds samples in which the key is free for the whole period.
    pub(super) fn free(&mut self, from: u64, to: u64) {
        for at in (from..to).step_by(40) {
            self.history.samples.push(Sample {
                from: ms(at),
                to: ms(at + 1),
                key: KEY.to_owned(),
                state: KeyState::Free,
            });
        }
    }

    pub(super) fn found(mut self) -> Vec<Violation> {
        self.history.sort();
        check(&self.history)
    }

    #[track_caller]
    pub(super) fn breaks_nothing(self) {
        assert_eq!(self.found(), []);
    }

    #[track_caller]
    pub(super) fn breaks(self, expected: Check) -> Violation {
        let mut found = self.found();
        assert_eq!(found.len(), 1, "{found:#?}");
        let violation = found.remove(0);
        assert_eq!(violation.check, expected);
        violation
    }

    #[track_caller]
    pub(super) fn breaks_inside(self, expected: Check) {
        assert_eq!(self.breaks(expected).assumption, Assumption::Inside);
    }
}

/// Held by worker 1 from 100 to 400 ms, with a lease until 1000 ms.
pub(super) fn first() -> Held {
    Held {
        worker: 1,
        token: Some(10),
        requested: 90,
        ok: 100,
        until: 1_000,
        released: Some(400),
        lost: None,
    }
}

/// Held by worker 2, after the first one.
pub(super) fn second() -> Held {
    Held {
        worker: 2,
        token: Some(11),
        requested: 95,
        ok: 402,
        until: 1_400,
        released: Some(500),
        lost: None,
    }
}

pub(super) fn both(change: impl FnOnce(&mut Held, &mut Held)) -> RecordBuilder {
    let (mut first, mut second) = (first(), second());
    change(&mut first, &mut second);
    let mut record = RecordBuilder::new();
    record.hold(&first);
    record.hold(&second);
    record
}
