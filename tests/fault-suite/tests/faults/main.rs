//! The fault suite: that its judge sees what is wrong and only that, that its faults are hard
//! enough to break what is not fenced, and a short run of it.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fault_suite::checks::{Check, Register, Violation, check, lost_updates};
use fault_suite::event::{Call, Event, Kind, Line, Nanos, Stall, now};
use fault_suite::history::{
    Access, Accessed, Assumption, DROPPED, Fault, History, Sample, Stood, WAITS,
};
use fault_suite::nemesis;
use fault_suite::runner::{self, Options};
use fault_suite::spoken;
use fault_suite::stage::{Flavour, Sampler, Stage, left_behind};
use fault_suite::worker::Workload;
use lock_core::{Dialect, ReleaseMethod};
use test_support::Random;
use test_support::RedisServer;

const WORKER: &str = env!("CARGO_BIN_EXE_fault-worker");

const KEY: &str = "a";

const fn ms(millis: u64) -> Nanos {
    millis * 1_000_000
}

/// A record written by hand. Times are in milliseconds.
#[derive(Default)]
struct Written {
    history: History,
    holds: u64,
}

/// A hold that goes well unless something of it is changed.
struct Held {
    worker: u32,
    token: Option<u64>,
    asked: u64,
    ok: u64,
    until: u64,
    released: Option<u64>,
    lost: Option<u64>,
}

impl Written {
    fn new() -> Self {
        let mut written = Self::default();
        written.history.ended = ms(60_000);
        written
    }

    fn step(&mut self, at: u64, worker: u32, call: Call, kind: Kind) -> &mut Event {
        self.history.events.push(Event {
            at: ms(at),
            worker,
            task: 0,
            hold: self.holds,
            call,
            kind,
            key: KEY.to_owned(),
            token: None,
            until: None,
            within: None,
            note: None,
        });
        self.history.events.last_mut().unwrap()
    }

    fn hold(&mut self, held: &Held) {
        self.holds += 1;
        let worker = held.worker;
        self.step(held.asked, worker, Call::Acquire, Kind::Invoke);
        let ok = self.step(held.ok, worker, Call::Acquire, Kind::Ok);
        ok.token = held.token;
        ok.until = Some(ms(held.until));
        if let Some(released) = held.released {
            self.step(released, worker, Call::Release, Kind::Invoke);
            self.step(released + 1, worker, Call::Release, Kind::Ok);
        }
        if let Some(lost) = held.lost {
            self.step(lost, worker, Call::Lost, Kind::Ok);
        }
    }

    /// One who waits for up to a second.
    fn wait(&mut self, worker: u32, from: u64, to: u64) -> &mut Event {
        self.holds += 1;
        let asked = self.step(from, worker, Call::Acquire, Kind::Invoke);
        asked.within = Some(ms(1_000));
        asked.note = Some(WAITS.to_owned());
        self.step(to, worker, Call::Acquire, Kind::Fail)
    }

    fn fault(&mut self, from: u64, to: u64, assumption: Assumption) {
        self.history.faults.push(Fault {
            name: "something".to_owned(),
            from: ms(from),
            to: ms(to),
            assumption,
            is_load: false,
            slots: Vec::new(),
        });
    }

    fn stall(&mut self, worker: u32, from: u64, to: u64) {
        self.history.stalls.push(Stall {
            worker,
            from: ms(from),
            to: ms(to),
        });
    }

    fn access(&mut self, token: u64, it: Accessed) {
        let at = ms(u64::try_from(self.history.accesses.len()).unwrap());
        self.history.accesses.push(Access {
            at,
            key: KEY.to_owned(),
            worker: 1,
            hold: 1,
            token: Some(token),
            it,
        });
    }

    fn write(&mut self, token: u64, value: u64) {
        let it = Accessed::Write {
            fenced: value,
            unfenced: value,
        };
        self.access(token, it);
    }

    /// The server said that the key is free, all the time.
    fn free(&mut self, from: u64, to: u64) {
        for at in (from..to).step_by(40) {
            self.history.samples.push(Sample {
                from: ms(at),
                to: ms(at + 1),
                key: KEY.to_owned(),
                stood: Stood::Free,
            });
        }
    }

    fn found(mut self) -> Vec<Violation> {
        self.history.sort();
        check(&self.history)
    }

    #[track_caller]
    fn breaks_nothing(self) {
        assert_eq!(self.found(), []);
    }

    #[track_caller]
    fn breaks(self, expected: Check) -> Violation {
        let mut found = self.found();
        assert_eq!(found.len(), 1, "{found:#?}");
        let violation = found.remove(0);
        assert_eq!(violation.check, expected);
        violation
    }

    #[track_caller]
    fn breaks_inside(self, expected: Check) {
        assert_eq!(self.breaks(expected).assumption, Assumption::Inside);
    }
}

/// By worker 1, from 100 to 400 ms, of a lease until 1000 ms.
fn first() -> Held {
    Held {
        worker: 1,
        token: Some(10),
        asked: 90,
        ok: 100,
        until: 1_000,
        released: Some(400),
        lost: None,
    }
}

/// By worker 2, after that one.
fn second() -> Held {
    Held {
        worker: 2,
        token: Some(11),
        asked: 95,
        ok: 402,
        until: 1_400,
        released: Some(500),
        lost: None,
    }
}

fn both(change: impl FnOnce(&mut Held, &mut Held)) -> Written {
    let (mut first, mut second) = (first(), second());
    change(&mut first, &mut second);
    let mut written = Written::new();
    written.hold(&first);
    written.hold(&second);
    written
}

#[test]
fn one_after_the_other_breaks_nothing() {
    both(|_, _| {}).breaks_nothing();
}

#[test]
fn two_holders_at_once_are_found() {
    both(|_, second| second.ok = 399).breaks_inside(Check::Exclusion);
    // The first forgot to release, and its lease was not over.
    both(|first, second| {
        first.released = None;
        first.lost = Some(1_000);
        second.ok = 999;
        second.released = Some(1_010);
    })
    .breaks_inside(Check::Exclusion);
}

/// A holder that was renewed holds for longer than what it was told first.
#[test]
fn a_renewed_lease_counts() {
    let mut written = Written::new();
    written.hold(&Held {
        released: Some(1_600),
        ..first()
    });
    written.step(900, 1, Call::Acquire, Kind::Seen).until = Some(ms(1_900));
    written.hold(&Held {
        ok: 1_500,
        until: 2_400,
        released: Some(2_000),
        ..second()
    });
    written.breaks_inside(Check::Exclusion);
}

/// One whose lease ended while it was paused does not know it, and holds nothing.
#[test]
fn a_holder_whose_lease_is_over_is_no_holder() {
    both(|first, second| {
        first.released = Some(3_000);
        second.ok = 1_001;
        second.until = 2_000;
        second.released = Some(1_900);
        first.lost = Some(1_100);
    })
    .breaks_nothing();
}

#[test]
fn an_overlap_where_keys_are_lost_is_nobody_s_promise() {
    let overlap = || both(|_, second| second.ok = 399);
    let mut written = overlap();
    written.fault(300, 350, Assumption::Outside);
    assert_eq!(
        written.breaks(Check::Exclusion).assumption,
        Assumption::Outside
    );
    let mut written = overlap();
    written.fault(300, 350, Assumption::Inside);
    written.breaks_inside(Check::Exclusion);
    // The fault was over before the first was granted.
    let mut written = overlap();
    written.fault(50, 99, Assumption::Outside);
    written.breaks_inside(Check::Exclusion);
    // And here it began only afterwards.
    let mut written = overlap();
    written.fault(450, 500, Assumption::Outside);
    written.breaks_inside(Check::Exclusion);
}

#[test]
fn a_token_given_twice_is_found() {
    both(|_, second| second.token = Some(10)).breaks_inside(Check::Tokens);
}

#[test]
fn a_token_that_goes_back_is_found_also_where_keys_are_lost() {
    let mut written = both(|_, second| {
        second.asked = 401;
        second.token = Some(9);
    });
    written.fault(300, 350, Assumption::Outside);
    written.breaks_inside(Check::Tokens);
}

/// The second was asked for before the first was granted, but it was valid after it.
#[test]
fn tokens_follow_the_order_of_the_holds() {
    both(|_, second| second.token = Some(9)).breaks_inside(Check::Tokens);
    // Where the second was never valid nothing follows from when it was heard of.
    both(|_, second| {
        second.token = Some(9);
        second.until = 402;
        second.released = Some(403);
    })
    .breaks_nothing();
}

#[test]
fn a_stale_write_that_is_accepted_is_found() {
    let mut written = Written::new();
    written.write(10, 1);
    written.access(11, Accessed::Read);
    written.access(10, Accessed::StaleWrite { unfenced: 2 });
    written.write(11, 2);
    written.breaks_nothing();

    let mut written = Written::new();
    written.write(10, 1);
    written.access(11, Accessed::Read);
    written.write(10, 2);
    written.breaks_inside(Check::Stale);
}

#[test]
fn a_lost_update_of_the_fenced_counter_is_found() {
    let mut written = Written::new();
    written.write(10, 1);
    written.write(11, 2);
    written.write(12, 2);
    written.write(13, 3);
    written.breaks_inside(Check::Counter);
}

#[test]
fn a_lost_update_of_the_unfenced_counter_is_counted() {
    let mut written = Written::new();
    written.write(10, 1);
    written.access(11, Accessed::Read);
    let it = Accessed::Write {
        fenced: 2,
        unfenced: 2,
    };
    written.access(11, it);
    written.access(10, Accessed::StaleWrite { unfenced: 2 });
    let lost = lost_updates(&written.history.accesses, Register::Unfenced);
    assert_eq!(lost.len(), 1);
    written.breaks_nothing();
}

#[test]
fn a_loss_that_is_told_late_or_never_is_found() {
    let lost_at = |lost| Held {
        released: None,
        lost,
        ..first()
    };
    let written = |held: &Held| {
        let mut written = Written::new();
        written.hold(held);
        written
    };
    written(&lost_at(Some(1_249))).breaks_nothing();
    written(&lost_at(Some(600))).breaks_nothing();
    written(&lost_at(Some(1_251))).breaks_inside(Check::Loss);
    written(&lost_at(None)).breaks_inside(Check::Loss);
    // Who gave it up meanwhile has no need to be told.
    let mut given_up = first();
    given_up.released = Some(1_200);
    written(&given_up).breaks_nothing();
}

#[test]
fn a_loss_where_nothing_was_broken_is_found() {
    let lost = || {
        let mut written = Written::new();
        written.free(0, 2_000);
        written.hold(&Held {
            released: None,
            lost: Some(900),
            ..first()
        });
        written
    };
    lost().breaks_inside(Check::Loss);
    // To ask for much is no excuse.
    let mut loaded = lost();
    loaded.fault(300, 800, Assumption::Inside);
    loaded.history.faults[0].is_load = true;
    loaded.breaks_inside(Check::Loss);

    let mut broken = lost();
    broken.fault(300, 800, Assumption::Inside);
    broken.breaks_nothing();
    let mut another = lost();
    another.fault(300, 800, Assumption::Inside);
    another.history.faults[0].slots = vec![2];
    another.breaks_inside(Check::Loss);
    let mut stalled = lost();
    stalled.stall(1, 300, 800);
    stalled.breaks_nothing();
    let mut silent = lost();
    silent.history.samples.retain(|sample| {
        let stands_still = ms(200)..ms(600);
        !stands_still.contains(&sample.from)
    });
    silent.breaks_nothing();
}

#[test]
fn a_process_that_did_not_run_cannot_be_told() {
    let mut written = Written::new();
    written.hold(&Held {
        released: None,
        lost: Some(3_000),
        ..first()
    });
    written.stall(1, 900, 2_990);
    written.breaks_nothing();

    let mut killed = Written::new();
    killed.hold(&Held {
        released: None,
        ..first()
    });
    killed.history.deaths.insert(1, ms(600));
    killed.breaks_nothing();

    let mut another = Written::new();
    another.hold(&Held {
        released: None,
        lost: Some(3_000),
        ..first()
    });
    another.stall(2, 900, 2_990);
    another.breaks_inside(Check::Loss);
}

#[test]
fn a_loss_is_for_ever() {
    let mut written = Written::new();
    written.hold(&Held {
        lost: Some(300),
        ..first()
    });
    written.step(350, 1, Call::Acquire, Kind::Seen).until = Some(ms(1_100));
    written.breaks_inside(Check::Loss);
}

#[test]
fn a_waiter_that_sleeps_while_the_lock_is_free_is_found() {
    let waiting = |free: u64| {
        let mut written = Written::new();
        let asked = written.wait(3, 1_000, 6_000).hold;
        let first = written.history.events.iter_mut();
        for event in first.filter(|event| event.hold == asked) {
            event.within = event.within.map(|_| ms(10_000));
        }
        written.free(1_500, 1_500 + free);
        written
    };
    waiting(1_200).breaks_nothing();
    waiting(1_400).breaks_inside(Check::Idle);
    // Somebody had it in between.
    let mut written = waiting(1_400);
    written.hold(&Held {
        asked: 2_000,
        ok: 2_100,
        until: 3_000,
        released: Some(2_110),
        ..first()
    });
    written.breaks_nothing();
    // It was cut off, and has to find its way back first.
    let mut written = waiting(1_400);
    written.fault(1_000, 1_600, Assumption::Inside);
    written.breaks_nothing();
    let mut written = waiting(1_400);
    written.stall(3, 2_000, 2_200);
    written.breaks_nothing();
}

#[test]
fn a_wait_that_takes_too_long_is_found() {
    let waited = |to| {
        let mut written = Written::new();
        written.wait(3, 1_000, to);
        written
    };
    waited(2_249).breaks_nothing();
    waited(2_251).breaks_inside(Check::Wait);
    let mut stalled = waited(3_000);
    stalled.stall(3, 1_100, 1_900);
    stalled.breaks_nothing();
    // A dropped one did not wait.
    let mut dropped = Written::new();
    let end = dropped.wait(3, 1_000, 3_000);
    end.note = Some(DROPPED.to_owned());
    end.kind = Kind::Info;
    dropped.breaks_nothing();
    // And one without an end waits still.
    let mut hanging = waited(2_000);
    hanging.history.events.pop();
    hanging.breaks_inside(Check::Wait);
    let mut hung = Written::new();
    hung.history.hung.push(3);
    hung.breaks_inside(Check::Wait);
}

#[test]
fn a_key_that_stays_is_found() {
    let mut written = Written::new();
    written.history.survivors.push("lock:a".to_owned());
    written.breaks_inside(Check::Survivor);
}

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};

/// Two holds as [`both`] has them, in a dialect without tokens.
fn without_tokens(change: impl FnOnce(&mut Held, &mut Held)) -> Written {
    let mut written = both(|first, second| {
        first.token = None;
        second.token = None;
        change(first, second);
    });
    written.history.dialect = SET_NX_PX;
    written
}

/// What a holder did to a resource that fences nothing.
fn touched(written: &mut Written, at: u64, hold: u64, it: Accessed) {
    written.history.accesses.push(Access {
        at: ms(at),
        key: KEY.to_owned(),
        worker: u32::try_from(hold).unwrap(),
        hold,
        token: None,
        it,
    });
}

const fn wrote(value: u64) -> Accessed {
    Accessed::Write {
        fenced: value,
        unfenced: value,
    }
}

#[test]
fn a_dialect_without_tokens_gives_none() {
    without_tokens(|_, _| {}).breaks_nothing();
    without_tokens(|first, _| first.token = Some(3)).breaks_inside(Check::Tokens);
    both(|first, _| first.token = None).breaks_nothing();
    // And one that has them gives them always.
    both(|first, second| {
        first.token = None;
        second.token = None;
    })
    .breaks_inside(Check::Tokens);
    without_tokens(|_, second| second.ok = 399).breaks_inside(Check::Exclusion);
    let able = SET_NX_PX.capabilities();
    let left_out = Check::ALL.iter().filter(|check| !check.applies(able));
    assert_eq!(left_out.collect::<Vec<_>>(), [&Check::Stale]);
}

#[test]
fn without_tokens_all_writes_of_valid_holders_count() {
    let mut written = without_tokens(|_, _| {});
    touched(&mut written, 150, 1, Accessed::Read);
    touched(&mut written, 200, 1, wrote(1));
    touched(&mut written, 420, 2, Accessed::Read);
    touched(&mut written, 450, 2, wrote(2));
    written.breaks_nothing();

    let mut written = without_tokens(|_, _| {});
    touched(&mut written, 150, 1, Accessed::Read);
    touched(&mut written, 160, 2, Accessed::Read);
    touched(&mut written, 200, 1, wrote(1));
    touched(&mut written, 450, 2, wrote(1));
    written.breaks_inside(Check::Counter);
}

/// Nothing could refuse it; but one that ran on has been told.
#[test]
fn without_tokens_a_late_write_is_excused_where_it_cannot_be_helped() {
    let late = |at| {
        let mut written = without_tokens(|first, second| {
            first.released = None;
            first.lost = Some(1_000);
            second.ok = 1_001;
            second.until = 9_000;
            second.released = Some(8_000);
        });
        touched(&mut written, 900, 1, Accessed::Read);
        touched(&mut written, 1_010, 2, Accessed::Read);
        touched(&mut written, 1_020, 2, wrote(1));
        touched(&mut written, at, 1, wrote(1));
        written
    };
    let outside = |written: Written| {
        let violation = written.breaks(Check::Counter);
        assert_eq!(violation.assumption, Assumption::Outside);
    };
    // On its way, as the lease ended.
    outside(late(1_240));
    late(1_260).breaks_inside(Check::Counter);
    let mut stopped = late(3_000);
    stopped.stall(1, 950, 2_990);
    outside(stopped);
    let mut another = late(3_000);
    another.stall(2, 950, 2_990);
    another.breaks_inside(Check::Counter);
    // It was there first, and the next one, who had read before, wrote over it.
    let mut written = late(1_240);
    touched(&mut written, 1_250, 2, Accessed::Read);
    touched(&mut written, 1_300, 2, wrote(2));
    outside(written);
    let mut overwritten = late(1_030);
    overwritten.history.accesses.swap(2, 3);
    overwritten.history.accesses[2].at = ms(1_015);
    overwritten.history.accesses[3].at = ms(1_020);
    outside(overwritten);
}

/// Nobody is told there, and everybody looks often.
#[test]
fn a_waiter_in_a_dialect_without_hand_over_looks_often() {
    let waiting = |free: u64| {
        let mut written = Written::new();
        written.history.dialect = SET_NX_PX;
        written.wait(3, 1_000, 1_900);
        written.free(1_100, 1_100 + free);
        written
    };
    waiting(300).breaks_nothing();
    waiting(400).breaks_inside(Check::Idle);
}

/// The one that dies between `SETNX` and the expiry leaves a key for ever; the next who asks mends
/// it, and is not counted among those who break something.
#[test]
fn a_key_without_expiry_is_the_scheme_s_as_long_as_it_is_mended() {
    let server = RedisServer::start();
    let leave = || server.cli(&["SET", "lock:k1", "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 w9"]);
    leave();
    let left = left_behind(&server, Dialect::SetnxExpire);
    assert_eq!(left.unexpiring, ["lock:k1"]);
    assert_eq!(left.survivors, [""; 0]);

    leave();
    let left = left_behind(&server, SET_NX_PX);
    assert_eq!(left.unexpiring, [""; 0]);
    assert!(left.survivors.contains(&"lock:k1".to_owned()), "{left:?}");
}

/// Nothing follows from an operation whose end nobody knows.
#[test]
fn an_ambiguous_operation_is_neither_done_nor_undone() {
    let mut written = Written::new();
    written.hold(&first());
    written.holds += 1;
    written.step(150, 2, Call::Acquire, Kind::Invoke);
    written.step(350, 2, Call::Acquire, Kind::Info);
    let operations = {
        written.history.sort();
        written.history.operations()
    };
    assert!(
        operations
            .iter()
            .any(|o| o.worker == 2 && o.kind == Kind::Info)
    );
    assert_eq!(written.history.holds().len(), 1);
    written.breaks_nothing();
}

#[test]
fn a_record_is_read_back_but_for_half_a_line() {
    let mut written = both(|_, _| {});
    written.step(700, 1, Call::Renew, Kind::Info).note = Some("no \"answer\"".to_owned());
    for event in &written.history.events {
        let line = event.to_line();
        assert_eq!(Line::parse(&line), Some(Line::Event(event.clone())));
        assert_eq!(Line::parse(&line[..line.len() - 3]), None);
    }
    let stall = Stall {
        worker: 3,
        from: 5,
        to: 9,
    };
    assert_eq!(Line::parse(&stall.to_line()), Some(Line::Stall(stall)));
}

/// What no lock can prevent, and a fenced resource does: a process is paused, loses its lock, and
/// writes when it goes on. Should the suite not see it here, it would see nothing.
#[test]
fn a_paused_holder_overwrites_what_is_not_fenced() {
    let worker = Path::new(WORKER);
    let stage = Stage::start(
        Flavour::Durable,
        Workload::Late,
        Dialect::Native,
        worker,
        Random::new(1),
    );
    let sampler = Sampler::start(&stage);
    let started = Instant::now();
    let mut slot = 0;
    while lost_updates(&stage.accesses(), Register::Unfenced).is_empty() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no update was lost, though holders were paused beyond their leases"
        );
        slot = (slot + 1) % 4;
        stage.stop(slot);
        sleep(Duration::from_millis(1_300));
        stage.cont(slot);
        sleep(Duration::from_millis(100));
    }
    let history = stage.finish(sampler, now());
    let refused = history.accesses.iter();
    let refused = refused.filter(|access| matches!(access.it, Accessed::StaleWrite { .. }));
    assert!(refused.count() > 0, "nobody was refused");
    // The lock itself kept what it promises.
    assert_eq!(check(&history), []);
}

#[test]
fn every_nemesis_has_a_name_of_its_own() {
    let mut names: Vec<&str> = nemesis::ALL.iter().map(|nemesis| nemesis.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), nemesis::ALL.len());
}

#[test]
fn every_dialect_has_a_name_and_a_ttl_and_nemeses() {
    for &dialect in Dialect::ALL {
        assert_eq!(spoken::named(spoken::name(dialect)), Some(dialect));
        let step = dialect.capabilities().ttl_step.as_nanos();
        assert!(spoken::longest_ttl(dialect).as_nanos().is_multiple_of(step));
        assert!(spoken::longest_ttl(dialect) > Duration::from_secs(1));
        for nemesis in nemesis::ALL {
            let promises = nemesis.flavour == Flavour::Durable;
            assert!(dialect == Dialect::Native || promises || !nemesis.fits(dialect));
        }
    }
    assert_eq!(spoken::foreign().len(), Dialect::ALL.len() - 1);
    assert_eq!(spoken::names().len(), Dialect::ALL.len());
}

/// A quarter of a minute of the suite, with faults of each kind that is within the promises.
#[test]
fn a_short_run_breaks_no_promise() {
    let nemeses = ["client-pause-long", "net-lost-reply", "connections-killed"];
    let report = runner::run(
        &Options {
            seconds: 15,
            seed: 1,
            nemeses: nemeses.map(ToOwned::to_owned).to_vec(),
            dialect: Dialect::Native,
            workload: None,
            worker: WORKER.into(),
            keep: None,
        },
        |_| {},
    );
    println!("{report}");
    assert!(report.is_good(), "\n{report}");
    for name in nemeses {
        assert!(report.overlapped(name) > 0, "{name} hit nothing");
    }
}
