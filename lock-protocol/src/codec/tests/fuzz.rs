//! Every operation of every dialect with replies that no server should send. `./scripts/fuzz` runs them for longer.

use std::mem::discriminant;

use test_support::fuzz;

use super::*;
use crate::fencing_token::FencingToken;
use crate::inspection::{InspectDetail, ScanRequest};
use crate::lease::Lease;
use crate::lock_state::{ForceMode, ForceRequest, ForeignValues};
use crate::op::{Raise, RaiseTo, WaitFor};
use crate::resp::FrameScan;

/// How many exchanges an operation may want, before another time limit ends it.
const EXCHANGES: usize = 6;

/// How many kinds of operations there are.
const KINDS: u8 = 12;

fn dialects() -> Vec<Dialect> {
    let locks = [RedissonLock::Plain, RedissonLock::Fenced];
    let redisson = locks.map(|lock| Dialect::Redisson { lock });
    let plain = [
        Dialect::Native,
        Dialect::SetnxExpire,
        Dialect::LuaSetnxExpire,
        Dialect::DeadlineGetset,
        SET_NX_PX,
        WATCH_MULTI,
        AUTO,
        CONDITIONAL,
    ];
    plain.into_iter().chain(redisson).collect()
}

/// Replies that one of the commands has.
fn examples() -> Vec<String> {
    let id = format!("lk1:{OWNER} 12 99 web");
    let replies = [
        bulk("held 3 7 12 2000"),
        bulk(&format!("queued 3 7 1 900 {id}")),
        bulk("busy 3 7 900 lks:3:r 12 99 web"),
        bulk("late 3 7"),
        bulk("more 3 7"),
        bulk("gone 3 7 other"),
        bulk("foreign 3 7 hash"),
        bulk("released 3 7 more"),
        bulk("handed"),
        ["+OK\r\n", ":2000\r\n", &bulk(&format!("{OWNER} me")), TIME].concat(),
        ["_\r\n", ":900\r\n", &bulk("another"), TIME].concat(),
        [":1\r\n", ":900\r\n", &bulk("1763700000000"), TIME].concat(),
        ["+OK\r\n", "+QUEUED\r\n", "*2\r\n:1\r\n:1\r\n", TIME].concat(),
        "-WRONGTYPE Operation against a key\r\n+hash\r\n".to_owned(),
        "-NOSCRIPT No matching script\r\n".to_owned(),
        "-ERR unknown command 'DELEX'\r\n".to_owned(),
        array(&["busy", "7", "900", "another"]),
        array(&["acquired", "7", "900"]),
        array(&["held", "5000", "2", "900", &id, "entry a", "entry b"]),
        array(&[
            "shared", "5000", "1", "900", "lks:r", "7", "1", "member", "80", "entry",
        ]),
        array(&["foreign", "5000", "0", "hash", "ab"]),
        array(&["free", "5000", "0"]),
        array(&["forced", "5000", "12", "900", &id]),
        "*2\r\n$1\r\n7\r\n*1\r\n$6\r\nlock:a\r\n".to_owned(),
        "*2\r\n:1\r\n:2\r\n".to_owned(),
    ];
    let in_each = |(number, reply): (usize, &String)| {
        let which = char::from(u8::try_from(number * 7 % 128).unwrap());
        format!("{which}{reply}")
    };
    replies.iter().enumerate().map(in_each).collect()
}

/// Gives the replies of each exchange to an operation, as a connection does: each is one frame. Returns what became
/// of it.
fn play(bench: &Bench, op: &mut Op<'_>, mut bytes: &[u8]) -> String {
    let mut story = String::new();
    for _ in 0..EXCHANGES {
        let commands = match bench.exchange(op) {
            Ok(commands) => Replies::new(&commands).count(),
            Err(Step::Done(done)) => return story + &told(&done),
            Err(_) => return story + "asks",
        };
        let mut end = 0;
        for _ in 0..commands {
            match FrameScan::default().scan(&bytes[end..], op.largest_reply()) {
                Ok(Some(len)) => end += len,
                _ => return story + "cut",
            }
        }
        let (replies, rest) = bytes.split_at(end);
        bytes = rest;
        let mut notes = Notes::new(at(105));
        let mut replies = Replies::new(replies);
        let codec = bench.codecs.of(op);
        match codec.read(op, &bench.link(), &mut replies, &mut notes) {
            Progress::Next => story += "next ",
            Progress::Done(done) => return story + &told(&done),
        }
    }
    story
}

fn told(done: &Result<Outcome, Refusal>) -> String {
    match done {
        Ok(Outcome::Acquired(outcome)) => {
            if let AcquireOutcome::Held {
                sent, remaining, ..
            } = outcome
            {
                let mut lease = Lease::confirmed(lease(), *sent, *remaining);
                let _times = (
                    lease.ends(),
                    lease.next_deadline(),
                    lease.remaining(at(110)),
                );
                let _action = lease.next_action(at(110));
                lease.renewed(*sent, *remaining, at(111));
            }
            format!("acquired {:?}", discriminant(outcome))
        }
        Ok(Outcome::Renewed(outcome)) => format!("renewed {:?}", discriminant(outcome)),
        Ok(outcome) => format!("{:?}", discriminant(outcome)),
        Err(refusal) => format!("refused {:?}", refusal.kind),
    }
}

#[test]
fn replies_of_any_form_are_an_outcome_or_a_refusal() {
    let dialects = dialects();
    let words = [
        OWNER,
        "more",
        "busy",
        "held",
        "shared",
        "foreign",
        "lks:3:r 1 2 a",
        TIME,
    ];
    fuzz("operations", &examples(), &words, |input| {
        let (choice, bytes) = input.split_first().unwrap_or((&0, &[]));
        let which = choice / u8::try_from(dialects.len()).unwrap() % KINDS;
        let dialect = match which {
            // What a slot that moves, a quorum and a confirmation need.
            5..=8 => Dialect::Native,
            _ => dialects[usize::from(*choice) % dialects.len()],
        };
        let bench = Bench {
            channel: Some(choice & 1 == 0),
            lane: if dialect == WATCH_MULTI && which > 1 {
                Lane::Transactions
            } else {
                Lane::Shared
            },
            ..Bench::new()
        };
        let (renewal, release) = (renewal(dialect), release(dialect));
        let raise = |to| Raise {
            renewal: renewal.clone(),
            to,
        };
        let at_least = raise(RaiseTo::AtLeast(FencingToken::new(7)));
        let wait = WaitFor {
            replicas: 1,
            disk: which == 7,
            within: Duration::from_secs(1),
        };
        let scan = ScanRequest {
            prefix: "lock:".into(),
            pattern: "*".to_owned(),
            dialect,
            limit: 10,
            at: None,
        };
        let force = ForceRequest {
            key: key(dialect),
            mode: ForceMode::Now,
            label: "revoked by ops".to_owned(),
            token: None,
            seen: None,
            foreign: ForeignValues::Keep,
            longest: Duration::from_secs(60),
        };
        let key = key(dialect);
        let mut first = sent(dialect, None);
        let mut waiting = sent(dialect, Some(at(60_000)));
        let kind = match which {
            0 => OpKind::Acquire(&mut first),
            1 => OpKind::Acquire(&mut waiting),
            2 => OpKind::Renew(&renewal, Expiry::WhereNeeded),
            3 => OpKind::Renew(&renewal, Expiry::Always),
            4 => OpKind::Release(&release),
            5 => OpKind::FreeKey(&release),
            6 => OpKind::Raise(&at_least),
            7 | 8 => OpKind::Wait(&wait),
            9 => OpKind::Inspect(&key, InspectDetail::Digest),
            10 => OpKind::Scan(&scan),
            _ => OpKind::Force(&force),
        };
        let story = play(&bench, &mut Op::new(kind), bytes);
        let may_be_present = (first.may_be_present(), waiting.may_be_present());
        // What a cancel would send has to be possible, too.
        let _cancel = (first.release_request(), waiting.release_request());
        (dialect.to_string(), which, story, may_be_present)
    });
}
