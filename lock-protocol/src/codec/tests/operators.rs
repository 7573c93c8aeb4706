//! What operators do.

use super::*;
use crate::fencing_token::FencingToken;
use crate::inspection::{
    FoundText, InspectDetail, InspectReply, KeyContent, ScanPart, ScanPlace, ScanRequest, SeenKey,
};
use crate::lock_state::{
    ForceGrant, ForceMode, ForceReply, ForceRequest, ForceVerdict, ForeignValues,
};

const REDISSON: Dialect = Dialect::Redisson {
    lock: RedissonLock::Fenced,
};

fn inspected(outcome: Result<Outcome, Refusal>) -> InspectReply {
    match outcome {
        Ok(Outcome::Inspected(found)) => *found,
        other => panic!("not inspected: {other:?}"),
    }
}

fn scanned(outcome: Result<Outcome, Refusal>) -> ScanPart {
    match outcome {
        Ok(Outcome::Scanned(part)) => *part,
        other => panic!("not scanned: {other:?}"),
    }
}

/// A request for what is left of an earlier part.
fn scan(dialect: Dialect, next: Option<u64>, pending: &[&str]) -> ScanRequest {
    let pending = pending.iter().map(ToString::to_string).collect();
    ScanRequest {
        prefix: "lock:".into(),
        pattern: "*".to_owned(),
        dialect,
        limit: 10,
        at: Some(ScanPlace::Cursor { next, pending }),
    }
}

fn text(remaining_ms: Option<u64>, value: &str) -> KeyContent {
    KeyContent::Text(FoundText::new(remaining_ms, value.into()))
}

/// An array in which texts of digits are texts, too.
fn texts(parts: &[&str]) -> String {
    let elements: String = parts.iter().map(|part| bulk(part)).collect();
    format!("*{}\r\n{elements}", parts.len())
}

#[test]
fn inspection_reads_the_key_and_its_queue() {
    let bench = Bench::new();
    let key = key(Dialect::Native);
    let inspect = |detail, reply: &str| {
        let word = match detail {
            InspectDetail::Short => "",
            InspectDetail::Digest => "digest",
        };
        let sent = format!("EVALSHA HASH 3 k {{k}}:q {{k}}:h 100 {word} 512");
        inspected(bench.run(OpKind::Inspect(&key, detail), &[(&sent, reply)]))
    };
    let short = InspectDetail::Short;
    let free = inspect(short, &array(&["free", "5000", "0"]));
    assert_eq!((free.content, free.total), (KeyContent::Free, 0));
    assert_eq!(free.time.server_ms, ServerMs::new(5));
    let held = inspect(
        short,
        &array(&["held", "5000", "2", "900", "value x", "entry a", "entry b"]),
    );
    assert_eq!((held.content, held.total), (text(Some(900), "value x"), 2));
    assert_eq!(held.entries, ["entry a", "entry b"]);
    let endless = inspect(short, &array(&["held", "5000", "0", "-1", "v"]));
    assert_eq!(endless.content, text(None, "v"));
    let shared = inspect(
        short,
        &array(&[
            "shared", "5000", "1", "900", "lks:r", "7", "1", "member", "80", "entry",
        ]),
    );
    assert_eq!(
        (shared.members.total, shared.entries.len()),
        (7, 1),
        "{shared:?}"
    );
    assert_eq!(shared.members.first[0].remaining_ms, Some(80));
    let foreign = inspect(
        InspectDetail::Digest,
        &array(&["foreign", "5000", "0", "hash", "ab"]),
    );
    let (kind, digest) = ("hash".to_owned(), "ab".to_owned());
    assert_eq!(foreign.content, KeyContent::OtherType { kind, digest });
}

#[test]
fn inspection_of_redisson_reads_the_hash() {
    let bench = Bench::new();
    let key = key(REDISSON);
    let inspect = |reply: &str| {
        let kind = OpKind::Inspect(&key, InspectDetail::Digest);
        inspected(bench.run(kind, &[("EVALSHA HASH 1 k", reply)])).content
    };
    assert_eq!(inspect(&array(&["free", "5000"])), KeyContent::Free);
    let held = inspect(&array(&["held", "5000", "900", "id:1"]));
    assert_eq!(held, text(Some(900), "id:1"));
    let foreign = inspect(&array(&["foreign", "5000", "read-write lock"]));
    assert!(matches!(foreign, KeyContent::OtherType { kind, .. } if kind == "read-write lock"));
}

#[test]
fn unreadable_replies_to_operators_are_errors() {
    let bench = Bench::new();
    let key = key(Dialect::Native);
    let sent = "EVALSHA HASH 3 k {k}:q {k}:h 100  512";
    for reply in [
        array(&["what", "5000", "0"]),
        array(&["held", "5000"]),
        array(&["held", "5000", "0", "x", "v"]),
        bulk("free"),
        "*0\r\n".to_owned(),
    ] {
        let read = bench.run(
            OpKind::Inspect(&key, InspectDetail::Short),
            &[(sent, &reply)],
        );
        assert_eq!(read.unwrap_err().kind, RefusalKind::Unreadable, "{reply}");
    }
}

#[test]
fn locks_are_read_in_one_exchange() {
    let bench = Bench::new();
    let sent = "TIME\nGET lock:a\nPTTL lock:a\nZCARD {lock:a}:q\nGET lock:b\nPTTL lock:b\nZCARD {lock:b}:q";
    let wrong = "-WRONGTYPE Operation\r\n";
    let replies = [
        TIME,
        &bulk("v"),
        ":900\r\n",
        ":2\r\n",
        wrong,
        ":-1\r\n",
        wrong,
    ]
    .concat();
    let two = scan(Dialect::Native, None, &["a", "b"]);
    let part = scanned(bench.run(OpKind::Scan(&two), &[(sent, &replies)]));
    let [lock] = &part.locks[..] else {
        panic!("another client has replaced the second: {part:?}");
    };
    assert_eq!((lock.name.as_str(), lock.key.as_str()), ("a", "lock:a"));
    let found = &lock.found;
    assert_eq!((&found.content, found.total), (&text(Some(900), "v"), 2));
    assert_eq!((part.scanned, part.next), (0, None));

    // It has expired between the two commands.
    let gone = [TIME, &bulk("v"), ":-2\r\n", ":0\r\n"].concat();
    let one = scan(Dialect::Native, None, &["a"]);
    let sent = "TIME\nGET lock:a\nPTTL lock:a\nZCARD {lock:a}:q";
    let part = scanned(bench.run(OpKind::Scan(&one), &[(sent, &gone)]));
    assert!(part.locks.is_empty(), "{part:?}");

    let refused = [TIME, "-NOPERM no\r\n", ":-2\r\n", ":0\r\n"].concat();
    let read = bench.run(OpKind::Scan(&one), &[(sent, &refused)]);
    assert_eq!(read.unwrap_err().kind, RefusalKind::Permission);
}

#[test]
fn holders_of_shared_locks_are_counted_in_another_exchange() {
    let bench = Bench::new();
    let sent = "TIME\nGET lock:a\nPTTL lock:a\nZCARD {lock:a}:q\nGET lock:b\nPTTL lock:b\nZCARD {lock:b}:q";
    let shared = bulk("lks:r 7");
    let replies = [
        TIME,
        &bulk("v"),
        ":9\r\n",
        ":0\r\n",
        &shared,
        ":9\r\n",
        ":0\r\n",
    ]
    .concat();
    let exchanges = [(sent, &*replies), ("ZCARD {lock:b}:h", ":3\r\n")];
    let request = scan(Dialect::Native, None, &["a", "b"]);
    let part = scanned(bench.run(OpKind::Scan(&request), &exchanges));
    let totals = part.locks.iter().map(|lock| lock.found.members.total);
    assert_eq!(totals.collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn locks_of_redisson_are_read_by_their_script() {
    let bench = Bench::new();
    let replies = array(&["held", "5000", "900", "id:1"]) + &array(&["free", "5000"]);
    let sent = "EVALSHA HASH 1 lock:a\nEVALSHA HASH 1 lock:b";
    let request = scan(REDISSON, None, &["a", "b"]);
    let part = scanned(bench.run(OpKind::Scan(&request), &[(sent, &replies)]));
    let [lock] = &part.locks[..] else {
        panic!("the second is free: {part:?}");
    };
    assert_eq!(lock.found.content, text(Some(900), "id:1"));
}

#[test]
fn scan_finds_names() {
    let bench = Bench::new();
    let request = ScanRequest {
        at: None,
        ..scan(Dialect::Native, None, &[])
    };
    assert!(request.finds());
    let find = "SCAN 0 MATCH lock:* COUNT 500 TYPE string";
    let keys = texts(&["lock:a", "other", "lock:b", "lock:7"]);
    let found = format!("*2\r\n{}{keys}", bulk("17"));
    let part = scanned(bench.run(OpKind::Scan(&request), &[(find, &found)]));
    assert_eq!((part.locks.len(), part.scanned), (0, 500));
    assert_eq!(
        part.next,
        scan(Dialect::Native, Some(17), &["a", "b", "7"]).at
    );
}

/// What no lock can be costs no command, so that a scan ends however many such keys there are.
#[test]
fn part_reads_as_many_locks_as_are_wanted_of_the_names_that_were_found() {
    let bench = Bench::new();
    let found = scan(Dialect::Native, Some(17), &["", "{t}:f", "", "a", "b", "c"]);
    let request = ScanRequest { limit: 2, ..found };
    assert!(!request.finds());
    let read = "TIME\nGET lock:a\nPTTL lock:a\nZCARD {lock:a}:q\nGET lock:b\nPTTL lock:b\nZCARD {lock:b}:q";
    let one = [&bulk("v"), ":9\r\n", ":0\r\n"].concat();
    let replies = [TIME, &one, &one].concat();
    let invalid = request.key(&LockName::from("{t}:f")).is_none();
    assert!(invalid, "that of a counter is no name of a lock");
    let part = scanned(bench.run(OpKind::Scan(&request), &[(read, &replies)]));
    assert_eq!((part.locks.len(), part.scanned), (2, 0));
    assert_eq!(part.next, scan(Dialect::Native, Some(17), &["c"]).at);
}

#[test]
fn scan_ends_with_the_cursor() {
    let bench = Bench::new();
    let request = scan(REDISSON, Some(17), &[]);
    let find = "SCAN 17 MATCH lock:* COUNT 500 TYPE hash";
    let last = format!("*2\r\n{}*0\r\n", bulk("0"));
    let part = scanned(bench.run(OpKind::Scan(&request), &[(find, &last)]));
    assert!(part.locks.is_empty() && part.next.is_none(), "{part:?}");
    // No lock has an empty name.
    let ended = scan(REDISSON, None, &[""]);
    let part = scanned(bench.run(OpKind::Scan(&ended), &[]));
    assert!(part.locks.is_empty() && part.next.is_none(), "{part:?}");
    for odd in ["*0\r\n", "*2\r\n:1\r\n:2\r\n", "+OK\r\n"] {
        let read = bench.run(OpKind::Scan(&request), &[(find, odd)]);
        assert_eq!(read.unwrap_err().kind, RefusalKind::Unreadable);
    }
}

fn force(dialect: Dialect, mode: ForceMode, foreign: ForeignValues) -> ForceRequest {
    ForceRequest {
        key: key(dialect),
        mode,
        label: "revoked by ops".to_owned(),
        token: None,
        seen: None,
        foreign,
        longest: Duration::from_secs(60),
    }
}

fn forced(outcome: Result<Outcome, Refusal>) -> (ServerMs, ForceReply) {
    match outcome {
        Ok(Outcome::Forced(time, reply)) => (time.server_ms, *reply),
        other => panic!("not forced: {other:?}"),
    }
}

const KEYS: &str = "EVALSHA HASH 5 k {k}:q {k}:f {k}:g {k}:h";

#[test]
fn revocation_is_one_command() {
    let bench = Bench::new();
    let request = ForceRequest {
        token: Some(FencingToken::new(7)),
        seen: Some(SeenKey::Text(b"value".to_vec())),
        ..force(Dialect::Native, ForceMode::Revoke, ForeignValues::Keep)
    };
    let sent = format!("{KEYS} revoke 1000 0 revoked by ops 7  string value");
    let reply = array(&["revoked", "5000", "string", "900", "value"]);
    let (time, reply) = forced(bench.run(OpKind::Force(&request), &[(&sent, &reply)]));
    assert_eq!(time, ServerMs::new(5));
    assert_eq!(reply.verdict, ForceVerdict::Revoked { locked_ms: 900 });
    assert_eq!(reply.content, text(Some(900), "value"));
}

#[test]
fn foreign_value_is_removed_by_its_digest() {
    let bench = Bench::new();
    let request = force(Dialect::Native, ForceMode::Now, ForeignValues::Remove);
    let sent = |digest: &str| format!("{KEYS} now 1000 0 revoked by ops  {digest} ");
    let foreign = array(&["foreign", "5000", "hash", "-1", "", "ab"]);
    let freed = array(&["freed", "6000", "hash", "-1", "", "none"]);
    let exchanges = [(&*sent("?"), &*foreign), (&*sent("ab"), &*freed)];
    let (time, reply) = forced(bench.run(OpKind::Force(&request), &exchanges));
    assert_eq!(time, ServerMs::new(6));
    assert_eq!(reply.verdict, ForceVerdict::Freed(ForceGrant::None));

    // It has changed between the two commands, and is not touched.
    let exchanges = [(&*sent("?"), &*foreign), (&*sent("ab"), &*foreign)];
    let (_, reply) = forced(bench.run(OpKind::Force(&request), &exchanges));
    let digest = "ab".to_owned();
    assert_eq!(reply.verdict, ForceVerdict::Foreign { digest });

    // The operator has seen another one.
    let (kind, digest) = ("hash".to_owned(), "cd".to_owned());
    let seen = ForceRequest {
        seen: Some(SeenKey::OtherType { kind, digest }),
        ..request
    };
    let sent = format!("{KEYS} now 1000 0 revoked by ops  cd hash");
    let (_, reply) = forced(bench.run(OpKind::Force(&seen), &[(&sent, &foreign)]));
    assert_eq!(reply.verdict, ForceVerdict::Changed);
}

#[test]
fn queue_of_dead_waiters_is_served_after_the_release() {
    let bench = Bench::new();
    let request = ForceRequest {
        token: Some(FencingToken::new(7)),
        ..force(Dialect::Native, ForceMode::Now, ForeignValues::Keep)
    };
    let first = format!("{KEYS} now 1000 0 revoked by ops 7  ");
    let rest = format!("{KEYS} grant 1000 0 revoked by ops   ");
    let more = array(&["freed", "5000", "string", "900", "value", "more"]);
    let again = array(&["freed", "6000", "none", "-2", "", "more"]);
    let granted = array(&["freed", "7000", "none", "-2", "", "waiter"]);
    let exchanges = [(&*first, &*more), (&*rest, &*again), (&*rest, &*granted)];
    let (time, reply) = forced(bench.run(OpKind::Force(&request), &exchanges));
    // What was taken is what the first command found.
    assert_eq!(
        (time, reply.content),
        (ServerMs::new(5), text(Some(900), "value"))
    );
    assert_eq!(reply.verdict, ForceVerdict::Freed(ForceGrant::Waiter));
}

/// The key is free, whatever becomes of its queue.
#[test]
fn release_whose_queue_cannot_be_served_is_no_error() {
    let bench = Bench::new();
    let request = force(Dialect::Native, ForceMode::Now, ForeignValues::Keep);
    let first = format!("{KEYS} now 1000 0 revoked by ops   ");
    let rest = format!("{KEYS} grant 1000 0 revoked by ops   ");
    let more = array(&["freed", "5000", "string", "900", "value", "more"]);
    let exchanges = [(&*first, &*more), (&*rest, "-LOADING\r\n")];
    let (_, reply) = forced(bench.run(OpKind::Force(&request), &exchanges));
    assert_eq!(reply.verdict, ForceVerdict::Freed(ForceGrant::More));
}

#[test]
fn release_of_redisson_publishes_itself() {
    let mut bench = Bench::new();
    let request = force(REDISSON, ForceMode::Revoke, ForeignValues::Keep);
    let reply = array(&["revoked", "5000", "lock", "900", "id:1"]);
    let keys = "EVALSHA HASH 2 k redisson_lock_token:{k}";
    let args = "revoke NOBODY revoked by ops    redisson_lock__channel:{k}";
    let sent = format!("{keys} {args} PUBLISH");
    let (_, reply_read) = forced(bench.run(OpKind::Force(&request), &[(&sent, &reply)]));
    assert_eq!(reply_read.content, text(Some(900), "id:1"));
    bench.codecs.operators.is_sharded = true;
    let sent = format!("{keys} {args} SPUBLISH PUBLISH");
    forced(bench.run(OpKind::Force(&request), &[(&sent, &reply)]));
}
