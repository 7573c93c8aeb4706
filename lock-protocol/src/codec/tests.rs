//! The dialects without a server: what each operation sends, and what it makes of the replies.

use super::abilities::DeleteCommand;
use super::deadline::{DeadlineGetset, SharedDeadlines};
use super::native::Native;
use super::operators::Operators;
use super::owner::Owner;
use super::redisson::Redisson;
use super::watch_multi::WatchMulti;
use super::*;
use crate::acquisition::AcquireOutcome;
use crate::cleanup::{Keep, ReleaseRequest, ReleaseSubject};
use crate::clock::ServerMs;
use crate::dialect::{CLOCK_TOLERANCE, RedissonLock};
use crate::key::LockName;
use crate::kind::Kind;
use crate::lease::LeaseConfig;
use crate::op::Expiry;
use crate::owner_id::OwnerId;
use crate::poll_schedule::HolderExpiry;
use crate::renew::Renew;
use crate::ttl::{Ttl, whole_millis};

mod fuzz;
mod operators;

const OWNER: &str = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";
/// The reply to `TIME`.
const TIME: &str = "*2\r\n$1\r\n3\r\n$1\r\n7\r\n";

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

/// A connection, and what carries operations over it.
struct Bench {
    codecs: Codecs,
    abilities: Abilities,
    clock_difference: Duration,
    channel: Option<bool>,
    lane: Lane,
}

impl Bench {
    fn new() -> Self {
        let owner = Owner { label: "me".into() };
        let watch_multi = WatchMulti {
            owner: owner.clone(),
        };
        Self {
            codecs: Codecs {
                native: Native {
                    grace_ms: 2,
                    is_sharded: false,
                },
                conditional: conditional::Conditional::new(watch_multi.clone()),
                deadline: DeadlineGetset {
                    written: SharedDeadlines::default(),
                },
                redisson: Redisson {
                    owner: owner.clone(),
                    is_sharded: false,
                },
                owner,
                watch_multi,
                operators: Operators { is_sharded: false },
            },
            abilities: Abilities::new(),
            clock_difference: Duration::ZERO,
            channel: None,
            lane: Lane::Shared,
        }
    }

    fn link(&self) -> LinkFacts<'_> {
        LinkFacts {
            origin: 7,
            process: 11,
            run_id: 11,
            changed_at: None,
            floor_us: 1_000,
            lead_us: 0,
            clock_difference: self.clock_difference,
            abilities: &self.abilities,
        }
    }

    /// Decides the next exchange. Returns its commands, one in each line.
    fn send(&self, op: &mut Op<'_>) -> Result<String, Step> {
        let out = self.exchange(op)?;
        let lines = Replies::new(&out).map(|command| {
            let words = command.items().unwrap().map(|word| {
                let word = str::from_utf8(word.text().unwrap()).unwrap();
                let is_hash = word.len() == 40 && word.bytes().all(|it| it.is_ascii_hexdigit());
                if is_hash {
                    return "HASH".to_owned();
                }
                word.replace(OWNER, "OWNER").replace(NOBODY, "NOBODY")
            });
            words.collect::<Vec<_>>().join(" ")
        });
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Decides the next exchange. Returns the bytes of its commands.
    fn exchange(&self, op: &mut Op<'_>) -> Result<Vec<u8>, Step> {
        let link = self.link();
        let name = "channel".into();
        let facts = ExchangeFacts {
            link: &link,
            now: at(100),
            not_after: NotAfter {
                server_ms: ServerMs::new(50_100),
                not_after_ms: ServerMs::new(51_100),
            },
            command_timeout: Duration::from_secs(1),
            channel: match self.channel {
                None => Channel::Unknown,
                Some(true) => Channel::Up(&name),
                Some(false) => Channel::Down(&name),
            },
            lane: self.lane,
            is_first: true,
        };
        let codec = self.codecs.of(op);
        let commands = match codec.next(op, &facts) {
            Step::Send { commands } => commands,
            step => return Err(step),
        };
        let mut out = Vec::new();
        codec.encode(op, &link, &mut CommandBuf::new(&mut out));
        assert_eq!(Replies::new(&out).count(), commands, "{op:?}");
        Ok(out)
    }

    fn read(&self, op: &mut Op<'_>, replies: &str) -> (Progress, Notes) {
        let mut notes = Notes::new(at(105));
        let mut bytes = Replies::new(replies.as_bytes());
        let codec = self.codecs.of(op);
        let progress = codec.read(op, &self.link(), &mut bytes, &mut notes);
        (progress, notes)
    }

    /// Runs an operation: each exchange has to be the expected one, and gets these replies.
    fn run(&self, kind: OpKind<'_>, exchanges: &[(&str, &str)]) -> Result<Outcome, Refusal> {
        let mut op = Op::new(kind);
        let mut outcome = None;
        for (commands, replies) in exchanges {
            assert!(outcome.is_none(), "{commands} comes after the end");
            assert_eq!(self.send(&mut op).unwrap(), *commands);
            if let (Progress::Done(done), _) = self.read(&mut op, replies) {
                outcome = Some(done);
            }
        }
        // What needs no further exchange has its outcome at once.
        outcome.unwrap_or_else(|| match self.send(&mut op) {
            Err(Step::Done(done)) => *done,
            other => panic!("no outcome after the last exchange: {other:?}"),
        })
    }
}

fn key(dialect: Dialect) -> LockKey {
    let key = LockKey::new("", &LockName::from("k")).unwrap();
    key.in_dialect(dialect)
}

fn lease() -> LeaseConfig {
    LeaseConfig {
        ttl: Ttl::new(Duration::from_secs(2)).unwrap(),
        renew: Renew::Auto,
        max_hold: None,
        margin: Duration::ZERO,
        kind: Kind::Exclusive,
    }
}

fn sent(dialect: Dialect, waits_until: Option<Moment>) -> SentAcquires {
    let owner_id = OwnerId::parse(OWNER).unwrap();
    SentAcquires::new(owner_id, key(dialect), lease(), "me".into(), waits_until)
}

fn renewal(dialect: Dialect) -> Renewal {
    Renewal {
        key: key(dialect),
        owner_id: OwnerId::parse(OWNER).unwrap(),
        ttl: Duration::from_secs(2),
        lease_config: lease(),
        label: "me".into(),
        confirmed_at: at(10),
    }
}

fn release(dialect: Dialect) -> ReleaseRequest {
    ReleaseRequest {
        key: key(dialect),
        owner_id: OwnerId::parse(OWNER).unwrap(),
        ttl: lease().ttl,
        entries: Vec::new(),
        origin: None,
        unconfirmed: None,
        keep: Keep::Nothing,
        subject: ReleaseSubject::Guard,
        kind: Kind::Exclusive,
        label: "me".into(),
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Returns the reply of a script of a dialect: texts and numbers.
fn array(parts: &[&str]) -> String {
    let element = |part: &&str| match part.parse::<i64>() {
        Ok(number) => format!(":{number}\r\n"),
        Err(_) => bulk(part),
    };
    let elements: String = parts.iter().map(element).collect();
    format!("*{}\r\n{elements}", parts.len())
}

fn held_for(outcome: &Result<Outcome, Refusal>) -> u128 {
    match outcome {
        Ok(Outcome::Acquired(AcquireOutcome::Held { remaining, .. })) => remaining.as_millis(),
        other => panic!("not held: {other:?}"),
    }
}

fn expiry(outcome: Result<Outcome, Refusal>) -> HolderExpiry {
    match outcome {
        Ok(Outcome::Acquired(AcquireOutcome::Busy { holder_expiry, .. })) => holder_expiry,
        other => panic!("not busy: {other:?}"),
    }
}

fn was_owner(outcome: &Result<Outcome, Refusal>) -> bool {
    match outcome {
        Ok(Outcome::Released(outcome)) => outcome.was_owner && outcome.run_id == 11,
        other => panic!("not released: {other:?}"),
    }
}

fn loss_of(outcome: Result<Outcome, Refusal>) -> Option<LossReason> {
    match outcome {
        Ok(Outcome::Renewed(RenewOutcome::NotOwner(reason))) => Some(reason),
        Ok(Outcome::Renewed(RenewOutcome::Held { .. })) => None,
        other => panic!("not renewed: {other:?}"),
    }
}

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};
const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::WatchMulti,
};
const AUTO: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Auto,
};
const CONDITIONAL: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Conditional,
};
const REDISSON: Dialect = Dialect::Redisson {
    lock: RedissonLock::Plain,
};

const SET: &str = "SET k OWNER me NX PX 2000\nPTTL k\nGETRANGE k 0 199\nTIME";
const SETNX: &str = "SETNX k OWNER me\nPTTL k\nGETRANGE k 0 199\nTIME";

#[test]
fn set_nx_px_is_held_by_a_status_or_by_its_own_value() {
    let bench = Bench::new();
    let acquire = |set: &str, pttl: &str, value: &str| {
        let replies = [set, pttl, &bulk(value), TIME].concat();
        bench.run(
            OpKind::Acquire(&mut sent(SET_NX_PX, None)),
            &[(SET, &replies)],
        )
    };
    let own = format!("{OWNER} me");
    assert_eq!(held_for(&acquire("+OK\r\n", ":2000\r\n", &own)), 2_000);
    // The reply to an earlier copy was lost.
    assert_eq!(held_for(&acquire("_\r\n", ":1500\r\n", &own)), 1_500);
    let busy = expiry(acquire("$-1\r\n", ":900\r\n", "another"));
    assert_eq!(busy, HolderExpiry::Polled { ends: at(1_005) });
    let gone = expiry(acquire("_\r\n", ":-2\r\n", ""));
    assert_eq!(gone, HolderExpiry::Polled { ends: at(105) });
    let odd = acquire(":7\r\n", ":900\r\n", "another").unwrap_err();
    assert_eq!(odd.kind, RefusalKind::Unreadable);
}

#[test]
fn reply_of_another_holder_leaves_nothing_to_cancel() {
    let bench = Bench::new();
    let script = array(&["busy", "7", "900", "another"]);
    let set = ["_\r\n", ":900\r\n", &bulk("another"), TIME].concat();
    for (dialect, reply) in [
        (SET_NX_PX, &set),
        (Dialect::LuaSetnxExpire, &script),
        (REDISSON, &script),
    ] {
        let mut acquire = sent(dialect, None);
        let mut op = Op::new(OpKind::Acquire(&mut acquire));
        bench.send(&mut op).unwrap();
        let (progress, _) = bench.read(&mut op, reply);
        assert!(matches!(progress, Progress::Done(Ok(_))), "{dialect}");
        assert!(!acquire.may_be_present(), "{dialect}");
        // Without a reply, a copy may still take effect.
        let mut acquire = sent(dialect, None);
        bench
            .send(&mut Op::new(OpKind::Acquire(&mut acquire)))
            .unwrap();
        assert!(acquire.may_be_present(), "{dialect}");
    }
}

#[test]
fn key_of_another_type_is_asked_for_its_type() {
    let bench = Bench::new();
    let wrong = "-WRONGTYPE Operation against a key\r\n";
    let replies = ["_\r\n", ":-1\r\n", wrong, TIME].concat();
    let acquire = |kind| {
        let exchanges = [(SET, &*replies), ("TYPE k", kind)];
        bench.run(OpKind::Acquire(&mut sent(SET_NX_PX, None)), &exchanges)
    };
    let refusal = acquire("+hash\r\n").unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Foreign(ForeignValue::Type));
    assert_eq!(&*refusal.text, "hash");
    // Another holder has deleted it in the meantime.
    let gone = expiry(acquire("+none\r\n"));
    assert_eq!(gone, HolderExpiry::Polled { ends: at(105) });
}

#[test]
fn setnx_sets_the_expiry_of_its_own_key() {
    let bench = Bench::new();
    let own = bulk(&format!("{OWNER} me"));
    let set = [":1\r\n", ":-1\r\n", &own, TIME].concat();
    let expire = "EVALSHA HASH 1 k OWNER me 2000";
    let acquire = |rest: &[(&str, &str)]| {
        let exchanges = [&[(SETNX, &*set)], rest].concat();
        bench.run(
            OpKind::Acquire(&mut sent(Dialect::SetnxExpire, None)),
            &exchanges,
        )
    };
    let held = array(&["held", "7"]);
    assert_eq!(held_for(&acquire(&[(expire, &held)])), 2_000);
    // This process had stopped, and another client has the lock by now.
    let gone = array(&["gone", "7"]);
    let lost = expiry(acquire(&[(expire, &gone)]));
    assert_eq!(lost, HolderExpiry::Polled { ends: at(105) });
    // Such a lock could not be released either, so it at least expires.
    let denied = "-NOPERM no permissions to run the 'evalsha' command\r\n";
    let refused = acquire(&[(expire, denied), ("PEXPIRE k 2000 NX", ":1\r\n")]);
    assert_eq!(refused.unwrap_err().kind, RefusalKind::Permission);
}

/// Before Redis 7, `PEXPIRE` has no `NX`.
#[test]
fn setnx_sets_the_expiry_of_its_own_key_in_a_transaction() {
    let mut bench = Bench::new();
    let own = bulk(&format!("{OWNER} me"));
    let denied = "-NOPERM no permissions to run the 'evalsha' command\r\n";
    let unknown = "-ERR wrong number of arguments for 'pexpire' command\r\n";
    for (watched, changes) in [
        (["+OK\r\n", &own].concat(), true),
        (["+OK\r\n", &bulk("another")].concat(), false),
        ([denied, &own].concat(), false),
    ] {
        bench.lane = Lane::Shared;
        let mut acquire = sent(Dialect::SetnxExpire, None);
        let mut op = Op::new(OpKind::Acquire(&mut acquire));
        for replies in [
            &*[":1\r\n", ":-1\r\n", &own, TIME].concat(),
            denied,
            unknown,
        ] {
            bench.send(&mut op).unwrap();
            assert!(matches!(bench.read(&mut op, replies).0, Progress::Next));
        }
        let elsewhere = bench.send(&mut op).unwrap_err();
        assert!(matches!(elsewhere, Step::Over(Lane::Transactions)));
        bench.lane = Lane::Transactions;
        assert_eq!(bench.send(&mut op).unwrap(), "WATCH k\nGETRANGE k 0 199");
        let (mut progress, _) = bench.read(&mut op, &watched);
        if changes {
            assert!(matches!(progress, Progress::Next));
            let change = "MULTI\nPEXPIRE k 2000\nEXEC";
            assert_eq!(bench.send(&mut op).unwrap(), change);
            let done = "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n";
            progress = bench.read(&mut op, done).0;
        }
        let Progress::Done(Err(refusal)) = progress else {
            panic!("{progress:?}");
        };
        assert_eq!(refusal.kind, RefusalKind::Permission);
    }
}

#[test]
fn setnx_repairs_a_key_without_an_expiry() {
    let bench = Bench::new();
    let replies = [":0\r\n", ":-1\r\n", &bulk("another"), TIME].concat();
    let mut acquire = sent(Dialect::SetnxExpire, None);
    let mut op = Op::new(OpKind::Acquire(&mut acquire));
    assert_eq!(bench.send(&mut op).unwrap(), SETNX);
    assert!(matches!(bench.read(&mut op, &replies).0, Progress::Next));
    assert_eq!(
        bench.send(&mut op).unwrap(),
        "EVALSHA HASH 1 k another 2000"
    );
    let (progress, notes) = bench.read(&mut op, &array(&["held", "7"]));
    assert_eq!(notes.event, Some(CodecEvent::ExpiryRepaired));
    let Progress::Done(outcome) = progress else {
        panic!("{progress:?}");
    };
    assert_eq!(expiry(outcome), HolderExpiry::Polled { ends: at(2_100) });
}

#[test]
fn script_of_setnx_and_expire_counts_in_seconds() {
    let bench = Bench::new();
    let command = "EVALSHA HASH 1 k OWNER me 2 51100";
    let acquire = |reply: &str| {
        let mut sent = sent(Dialect::LuaSetnxExpire, None);
        bench.run(OpKind::Acquire(&mut sent), &[(command, reply)])
    };
    assert_eq!(held_for(&acquire(&array(&["held", "7", "2000"]))), 2_000);
    let busy = expiry(acquire(&array(&["busy", "7", "900", "another"])));
    assert_eq!(busy, HolderExpiry::Polled { ends: at(1_005) });
    let late = acquire(&array(&["late", "7"]));
    assert!(matches!(late, Ok(Outcome::Acquired(AcquireOutcome::Late))));
    let foreign = acquire(&array(&["foreign", "7", "list"])).unwrap_err();
    assert_eq!(foreign.kind, RefusalKind::Foreign(ForeignValue::Type));
}

#[test]
fn owners_are_compared_at_renewal_and_release() {
    let bench = Bench::new();
    let renewal = renewal(SET_NX_PX);
    let renew = |reply: &str| {
        let exchanges = [("EVALSHA HASH 1 k OWNER me 2000", reply)];
        loss_of(bench.run(OpKind::Renew(&renewal, Expiry::WhereNeeded), &exchanges))
    };
    assert_eq!(renew(&array(&["held", "7"])), None);
    assert_eq!(renew(&array(&["gone", "7"])), Some(LossReason::Removed));
    assert_eq!(
        renew(&array(&["gone", "7", "x"])),
        Some(LossReason::Replaced)
    );
    let mut request = release(SET_NX_PX);
    request.keep = Keep::Until(at(600));
    let exchanges = [(
        "EVALSHA HASH 1 k OWNER me 500 NOBODY me",
        &*array(&["gone", "7"]),
    )];
    assert!(!was_owner(
        &bench.run(OpKind::Release(&request), &exchanges)
    ));
}

#[test]
fn transaction_begins_again_when_the_key_was_touched() {
    let mut bench = Bench::new();
    let request = release(WATCH_MULTI);
    let mut op = Op::new(OpKind::Release(&request));
    let elsewhere = bench.send(&mut op).unwrap_err();
    assert!(matches!(elsewhere, Step::Over(Lane::Transactions)));
    bench.lane = Lane::Transactions;
    let watch = "WATCH k\nGETRANGE k 0 200";
    let own = ["+OK\r\n", &bulk(&format!("{OWNER} me"))].concat();
    let change = "MULTI\nDEL k\nEXEC\nTIME";
    let touched = ["+OK\r\n+QUEUED\r\n_\r\n", TIME].concat();
    assert_eq!(bench.send(&mut op).unwrap(), watch);
    assert!(matches!(bench.read(&mut op, &own).0, Progress::Next));
    assert_eq!(bench.send(&mut op).unwrap(), change);
    let (progress, notes) = bench.read(&mut op, &touched);
    assert!(matches!(progress, Progress::Next));
    assert_eq!(notes.event, Some(CodecEvent::TransactionRepeated));
    let done = ["+OK\r\n+QUEUED\r\n*1\r\n:1\r\n", TIME].concat();
    let again = bench.run(OpKind::Release(&request), &[(watch, &own), (change, &done)]);
    assert!(was_owner(&again));
}

/// Redis 6.2 has no `PEXPIRE` with `LT`.
#[test]
fn transaction_keeps_the_key_no_longer_than_its_lease() {
    let mut bench = Bench::new();
    bench.lane = Lane::Transactions;
    let mut request = release(WATCH_MULTI);
    request.keep = Keep::Until(at(600));
    let watch = "WATCH k\nGETRANGE k 0 200\nPTTL k";
    for (left, kept) in [(2_000, 500), (300, 300), (0, 1), (-1, 500)] {
        let own = bulk(&format!("{OWNER} me"));
        let found = format!("+OK\r\n{own}:{left}\r\n");
        let change = format!("MULTI\nSET k NOBODY me PX {kept}\nEXEC\nTIME");
        let done = ["+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n", TIME].concat();
        let exchanges = [(watch, &*found), (&*change, &*done)];
        assert!(was_owner(&bench.run(OpKind::Release(&request), &exchanges)));
    }
    let found = ["+OK\r\n", &bulk(""), ":-2\r\n"].concat();
    let executed = ["+OK\r\n+QUEUED\r\n*1\r\n*0\r\n", TIME].concat();
    let exchanges = [(watch, &*found), ("MULTI\nTIME\nEXEC\nTIME", &*executed)];
    assert!(!was_owner(
        &bench.run(OpKind::Release(&request), &exchanges)
    ));
}

#[test]
fn transaction_changes_nothing_of_another_holder() {
    let mut bench = Bench::new();
    bench.lane = Lane::Transactions;
    let renewal = renewal(WATCH_MULTI);
    let watch = "WATCH k\nGETRANGE k 0 200";
    let nothing = "MULTI\nTIME\nEXEC\nTIME";
    let executed = ["+OK\r\n+QUEUED\r\n_\r\n", TIME].concat();
    for (value, reason) in [
        (bulk("another"), LossReason::Replaced),
        (bulk(""), LossReason::Removed),
        ("-WRONGTYPE a list\r\n".to_owned(), LossReason::Replaced),
    ] {
        let found = ["+OK\r\n", &value].concat();
        let exchanges = [(watch, &*found), (nothing, &*executed)];
        let outcome = bench.run(OpKind::Renew(&renewal, Expiry::WhereNeeded), &exchanges);
        assert_eq!(loss_of(outcome), Some(reason));
    }
    // The error of a queued command says more than that of EXEC.
    let own = ["+OK\r\n", &bulk(&format!("{OWNER} me"))].concat();
    let aborted = ["+OK\r\n-OOM no memory\r\n-EXECABORT discarded\r\n", TIME].concat();
    let change = "MULTI\nPEXPIRE k 2000\nEXEC\nTIME";
    let exchanges = [(watch, &*own), (change, &*aborted)];
    let refused = bench.run(OpKind::Renew(&renewal, Expiry::WhereNeeded), &exchanges);
    assert_eq!(refused.unwrap_err().kind, RefusalKind::OutOfMemory);
}

const ASK_COMMANDS: &str = "COMMAND INFO DELEX DELIFEQ";

#[test]
fn server_is_asked_once_for_its_commands() {
    let bench = Bench::new();
    let known = "*2\r\n*1\r\n$5\r\ndelex\r\n_\r\n";
    let (request, renewal) = (release(AUTO), renewal(AUTO));
    let deleted = [":1\r\n", TIME].concat();
    let delete = "DELEX k IFEQ OWNER me\nTIME";
    let exchanges = [(ASK_COMMANDS, known), (delete, &*deleted)];
    assert!(was_owner(&bench.run(OpKind::Release(&request), &exchanges)));
    assert_eq!(
        bench.abilities.owner_check(ReleaseMethod::Auto),
        Ok(abilities::OwnerCheck::Command(DeleteCommand::Delex))
    );
    let renew = "SET k OWNER me IFEQ OWNER me PX 2000\nTIME";
    let (held, lost) = (["+OK\r\n", TIME].concat(), ["_\r\n", TIME].concat());
    let kind = || OpKind::Renew(&renewal, Expiry::WhereNeeded);
    assert_eq!(loss_of(bench.run(kind(), &[(renew, &held)])), None);
    let why = [(renew, &*lost), ("GETRANGE k 0 199", "$1\r\nx\r\n")];
    assert_eq!(loss_of(bench.run(kind(), &why)), Some(LossReason::Replaced));
    // The key stays for the rest of its lease, and no longer.
    let mut kept = release(AUTO);
    kept.keep = Keep::Until(at(600));
    let (left, done) = ([":300\r\n", TIME].concat(), ["+OK\r\n", TIME].concat());
    let keep = "SET k NOBODY me IFEQ OWNER me PX 300\nTIME";
    let exchanges = [("PTTL k\nTIME", &*left), (keep, &*done)];
    assert!(was_owner(&bench.run(OpKind::Release(&kept), &exchanges)));
}

#[test]
fn refused_condition_is_replaced_by_a_script_or_a_transaction() {
    let refused = ["-ERR syntax error\r\n", TIME].concat();
    let delete = "DELEX k IFEQ OWNER me\nTIME";
    let no_script =
        "EVALSHA 0000000000000000000000000000000000000000 0".replace(&"0".repeat(40), "HASH");
    let request = release(AUTO);
    let bench = Bench::new();
    bench.abilities.know_commands(true, false);
    let by_script = array(&["held", "7"]);
    let exchanges = [
        (delete, &*refused),
        (&*no_script, "-NOSCRIPT No matching script.\r\n"),
        ("EVALSHA HASH 1 k OWNER me 0 NOBODY me", &*by_script),
    ];
    assert!(was_owner(&bench.run(OpKind::Release(&request), &exchanges)));
    // The connection remembers it.
    let exchanges = [("EVALSHA HASH 1 k OWNER me 0 NOBODY me", &*by_script)];
    assert!(was_owner(&bench.run(OpKind::Release(&request), &exchanges)));

    let mut bench = Bench::new();
    bench.abilities.know_commands(true, false);
    bench.abilities.know_scripts(false);
    let mut op = Op::new(OpKind::Release(&request));
    assert_eq!(bench.send(&mut op).unwrap(), delete);
    assert!(matches!(bench.read(&mut op, &refused).0, Progress::Next));
    let elsewhere = bench.send(&mut op).unwrap_err();
    assert!(matches!(elsewhere, Step::Over(Lane::Transactions)));
    assert!(!bench.codecs.conditional.joins_batches());
    // The other connection knows nothing of its server, and isn't asked.
    (bench.lane, bench.abilities) = (Lane::Transactions, Abilities::new());
    assert_eq!(bench.send(&mut op).unwrap(), "WATCH k\nGETRANGE k 0 200");
}

#[test]
fn method_that_needs_the_commands_refuses_a_server_without_them() {
    let bench = Bench::new();
    let none = "*2\r\n_\r\n_\r\n";
    let mut acquire = sent(CONDITIONAL, None);
    let mut op = Op::new(OpKind::Acquire(&mut acquire));
    assert_eq!(bench.send(&mut op).unwrap(), ASK_COMMANDS);
    assert!(matches!(bench.read(&mut op, none).0, Progress::Next));
    let Err(Step::Done(outcome)) = bench.send(&mut op) else {
        panic!("such a lock could not be released");
    };
    assert_eq!(outcome.unwrap_err().kind, RefusalKind::NoOwnerCommands);
    assert!(!acquire.was_sent());
    // A missing right is the error itself.
    let bench = Bench::new();
    let request = release(CONDITIONAL);
    let denied = "-NOPERM no permissions to run the 'command|info' command\r\n";
    let refused = bench.run(OpKind::Release(&request), &[(ASK_COMMANDS, denied)]);
    assert_eq!(refused.unwrap_err().kind, RefusalKind::Permission);
}

const DEADLINE: &str = "EVALSHA HASH 1 k 52101";

#[test]
fn deadline_is_renewed_in_turn_and_released_once() {
    let mut bench = Bench::new();
    let mut acquire = sent(Dialect::DeadlineGetset, None);
    let spare = whole_millis(CLOCK_TOLERANCE);
    let command = format!("{DEADLINE} {spare} 51100");
    let held = array(&["held", "50100000", "2001"]);
    assert_eq!(
        held_for(&bench.run(OpKind::Acquire(&mut acquire), &[(&command, &held)])),
        2_000
    );

    let renewal = renewal(Dialect::DeadlineGetset);
    let kind = || OpKind::Renew(&renewal, Expiry::WhereNeeded);
    let out_of_turn = bench.send(&mut Op::new(kind())).unwrap_err();
    assert!(matches!(out_of_turn, Step::Over(Lane::InTurn)));
    bench.lane = Lane::InTurn;
    // It names the deadlines that it may replace.
    let command = format!("{DEADLINE} {spare} 52101");
    let renewed = array(&["held", "50100000"]);
    assert_eq!(loss_of(bench.run(kind(), &[(&command, &renewed)])), None);

    let request = release(Dialect::DeadlineGetset);
    let command = format!("EVALSHA HASH 1 k 0 {spare} 52101");
    let mut lost = Op::new(OpKind::Release(&request));
    assert_eq!(bench.send(&mut lost).unwrap(), "TIME");
    assert!(matches!(bench.read(&mut lost, TIME).0, Progress::Next));
    assert_eq!(bench.send(&mut lost).unwrap(), command);
    // Its reply stays away, and the next holder may have written the same deadline.
    let mut again = Op::new(OpKind::Release(&request));
    assert_eq!(bench.send(&mut again).unwrap(), "TIME");
    assert!(matches!(bench.read(&mut again, TIME).0, Progress::Next));
    let Err(Step::Done(outcome)) = bench.send(&mut again) else {
        panic!("a release goes out once");
    };
    assert_eq!(outcome.unwrap_err().kind, RefusalKind::MustNotRepeat);
    // The server had not executed it.
    let (progress, _) = bench.read(&mut lost, "-LOADING the data\r\n");
    assert!(matches!(progress, Progress::Done(Err(_))));
    let gone = array(&["held", "7"]);
    let exchanges = [("TIME", TIME), (&*command, &*gone)];
    assert!(was_owner(&bench.run(OpKind::Release(&request), &exchanges)));
}

#[test]
fn deadlines_need_clocks_that_agree() {
    let mut bench = Bench::new();
    bench.clock_difference = CLOCK_TOLERANCE + Duration::from_millis(1);
    let mut acquire = sent(Dialect::DeadlineGetset, None);
    let Err(Step::Done(outcome)) = bench.send(&mut Op::new(OpKind::Acquire(&mut acquire))) else {
        panic!("the clocks differ");
    };
    assert_eq!(outcome.unwrap_err().kind, RefusalKind::ClocksDiffer);
    assert!(!acquire.was_sent());
}

const ACQUIRE: &str = "EVALSHA HASH 1 k OWNER me 2000 51100";

#[test]
fn waiter_in_redisson_tries_again_once_it_is_subscribed() {
    let busy = array(&["busy", "7", "900", "other:1"]);
    let attempt = |bench: &Bench, waiting: &mut SentAcquires| {
        let mut op = Op::new(OpKind::Acquire(waiting));
        assert_eq!(bench.send(&mut op).unwrap(), ACQUIRE);
        assert!(matches!(bench.read(&mut op, &busy).0, Progress::Next));
        op.state
    };
    let mut bench = Bench::new();
    let mut waiting = sent(REDISSON, Some(at(9_000)));
    let state = attempt(&bench, &mut waiting);
    let resume = |bench: &Bench, waiting: &mut SentAcquires, state: OpState| {
        let mut op = Op::new(OpKind::Acquire(waiting));
        op.state = state;
        let step = bench.send(&mut op);
        (step, op.state)
    };
    let (step, state) = resume(&bench, &mut waiting, state);
    assert!(matches!(step, Err(Step::Subscribe)));
    bench.channel = Some(true);
    let (step, state) = resume(&bench, &mut waiting, state);
    assert_eq!(step.unwrap(), ACQUIRE);
    let mut op = Op::new(OpKind::Acquire(&mut waiting));
    op.state = state;
    let (Progress::Done(outcome), _) = bench.read(&mut op, &busy) else {
        panic!("a second attempt is the last one");
    };
    assert_eq!(expiry(outcome), HolderExpiry::Notified { ends: at(1_005) });

    // Subscribed before: one attempt is enough. Without a subscription, the waiter polls.
    for (before, after, ends) in [
        (
            Some(true),
            Some(true),
            HolderExpiry::Notified { ends: at(1_005) },
        ),
        (None, Some(false), HolderExpiry::Polled { ends: at(1_005) }),
    ] {
        bench.channel = before;
        let mut waiting = sent(REDISSON, Some(at(9_000)));
        let state = attempt(&bench, &mut waiting);
        bench.channel = after;
        let (Err(Step::Done(outcome)), _) = resume(&bench, &mut waiting, state) else {
            panic!("no other attempt");
        };
        assert_eq!(expiry(*outcome), ends);
    }
}

#[test]
fn release_in_redisson_says_who_heard_it() {
    let bench = Bench::new();
    let request = release(REDISSON);
    let mut op = Op::new(OpKind::Release(&request));
    let command = "EVALSHA HASH 1 k OWNER me 0 NOBODY me redisson_lock__channel:{k} PUBLISH";
    assert_eq!(bench.send(&mut op).unwrap(), command);
    let reply = array(&["held", "7", "2", "PUBLISH: NOPERM no"]);
    let (progress, notes) = bench.read(&mut op, &reply);
    let Progress::Done(outcome) = progress else {
        panic!("{progress:?}");
    };
    assert!(was_owner(&outcome));
    let heard = CodecEvent::ReleaseHeard {
        receivers: 2,
        refused: Some("PUBLISH: NOPERM no".into()),
    };
    assert_eq!((notes.event, notes.server_us), (Some(heard), Some(7)));
}

/// No reply of a server makes a codec panic or take it for a lock.
#[test]
fn no_odd_reply_counts_as_good() {
    let odd = [
        "",
        "_\r\n",
        ":1\r\n",
        "+OK\r\n",
        "*0\r\n",
        "*1\r\n:1\r\n",
        "$0\r\n\r\n",
    ];
    for dialect in Dialect::all() {
        for reply in odd {
            let mut bench = Bench::new();
            bench.abilities.know_commands(true, true);
            bench.lane = match dialect {
                Dialect::DeadlineGetset => Lane::InTurn,
                _ => Lane::Transactions,
            };
            let mut acquire = sent(*dialect, None);
            let mut op = Op::new(OpKind::Acquire(&mut acquire));
            bench.send(&mut op).unwrap();
            let (progress, _) = bench.read(&mut op, reply);
            assert!(
                matches!(progress, Progress::Done(Err(_))),
                "{dialect} {reply:?}"
            );
            let renewal = renewal(*dialect);
            let mut op = Op::new(OpKind::Renew(&renewal, Expiry::WhereNeeded));
            bench.send(&mut op).unwrap();
            let (progress, _) = bench.read(&mut op, reply);
            let is_held = matches!(
                progress,
                Progress::Done(Ok(Outcome::Renewed(RenewOutcome::Held { .. })))
            );
            assert!(!is_held, "{dialect} {reply:?}");
        }
    }
}
