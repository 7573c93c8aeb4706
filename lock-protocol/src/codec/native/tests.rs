use std::time::Duration;

use super::*;
use crate::acquisition::{AcquireOutcome, FailureClass, QueueLimit};
use crate::cleanup::{Keep, ReleaseSubject};
use crate::clock::Moment;
use crate::clock_sync::NotAfter;
use crate::codec::Lane;
use crate::codec::abilities::Abilities;
use crate::key::{LockKey, LockName};
use crate::kind::Kind;
use crate::lease::LeaseConfig;
use crate::loss::LossReason;
use crate::op::{Raise, RefusalKind};
use crate::owner_id::OwnerId;
use crate::redirect::Redirect;
use crate::renew::Renew;
use crate::resp::ScriptsBy;
use crate::scripts::ScriptForm;
use crate::ttl::Ttl;

const OWNER: &str = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";

static ABILITIES: Abilities = Abilities::new();

fn link() -> LinkFacts<'static> {
    LinkFacts {
        origin: 7,
        process: 11,
        run_id: 11,
        changed_at: None,
        floor_us: 1_000,
        lead_us: 0,
        clock_difference: Duration::ZERO,
        abilities: &ABILITIES,
    }
}

fn native() -> Native {
    Native {
        grace_ms: 2,
        is_sharded: false,
    }
}

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

fn facts<'a>(link: &'a LinkFacts<'a>, now_ms: u64, channel: Channel<'a>) -> ExchangeFacts<'a> {
    ExchangeFacts {
        link,
        now: at(now_ms),
        not_after: NotAfter {
            server_ms: ServerMs::new(50_000 + now_ms),
            not_after_ms: ServerMs::new(51_000 + now_ms),
        },
        command_timeout: Duration::from_secs(1),
        channel,
        lane: Lane::Shared,
        is_first: true,
    }
}

fn key(name: &str) -> LockKey {
    LockKey::new("lock:", &LockName::from(name)).unwrap()
}

fn lease(kind: Kind) -> LeaseConfig {
    LeaseConfig {
        ttl: Ttl::new(Duration::from_secs(2)).unwrap(),
        renew: Renew::Auto,
        max_hold: None,
        margin: Duration::ZERO,
        kind,
    }
}

fn sent(name: &str, kind: Kind, waits_until: Option<Moment>) -> SentAcquires {
    let owner_id = OwnerId::parse(OWNER).unwrap();
    SentAcquires::new(owner_id, key(name), lease(kind), "me".into(), waits_until)
}

fn renewal(kind: Kind) -> Renewal {
    Renewal {
        key: key("a"),
        owner_id: OwnerId::parse(OWNER).unwrap(),
        ttl: Duration::from_secs(2),
        lease_config: lease(kind),
        label: "me".into(),
        confirmed_at: at(10),
    }
}

fn release() -> ReleaseRequest {
    ReleaseRequest {
        key: key("a"),
        owner_id: OwnerId::parse(OWNER).unwrap(),
        ttl: Ttl::new(Duration::from_secs(2)).unwrap(),
        entries: Vec::new(),
        origin: None,
        unconfirmed: None,
        keep: Keep::Nothing,
        subject: ReleaseSubject::Guard,
        kind: Kind::Exclusive,
        label: "me".into(),
    }
}

/// Returns the arguments of the commands in some bytes, with a script's name in place of its hash.
fn words(bytes: &[u8]) -> String {
    let names = [
        ("acquire", ACQUIRE.of(false)),
        ("acquire-sharded", ACQUIRE.of(true)),
        ("acquire_all", ACQUIRE_ALL.of(false)),
        ("release", RELEASE.of(false)),
        ("release-sharded", RELEASE.of(true)),
        ("renew", &RENEW),
        ("raise", &RAISE),
        ("drop", &DROP),
    ];
    let commands = Replies::new(bytes).map(|command| {
        let args = command.items().unwrap().map(|arg| {
            let arg = str::from_utf8(arg.text().unwrap()).unwrap();
            let of_script = names.iter().find(|(_, script)| {
                arg == script.hash(ScriptForm::Flagged) || arg == script.text(ScriptForm::Flagged)
            });
            match of_script {
                Some((name, _)) => (*name).to_owned(),
                None if arg.is_empty() => "''".to_owned(),
                None => arg.replace(OWNER, "OWNER"),
            }
        });
        args.collect::<Vec<_>>().join(" ")
    });
    commands.collect::<Vec<_>>().join("\n")
}

fn encode(codec: &Native, op: &Op<'_>, link: &LinkFacts<'_>, scripts: ScriptsBy) -> Vec<u8> {
    let mut out = Vec::new();
    let mut buffer = CommandBuf::with_scripts(&mut out, ScriptForm::Flagged, scripts);
    codec.encode(op, link, &mut buffer);
    out
}

/// Decides and encodes one operation.
fn written(codec: &Native, kind: OpKind<'_>, link: &LinkFacts) -> String {
    let channel = "c".into();
    let mut op = Op::new(kind);
    let step = codec.next(&mut op, &facts(link, 100, Channel::Up(&channel)));
    assert!(matches!(step, Step::Send { commands: 1 }));
    words(&encode(codec, &op, link, ScriptsBy::Hash))
}

/// Decides one operation, and reads this reply to it.
fn read(kind: OpKind<'_>, link: &LinkFacts<'_>, reply: &str) -> (Result<Outcome, Refusal>, Notes) {
    let mut op = Op::new(kind);
    native().next(&mut op, &facts(link, 100, Channel::Unknown));
    let mut notes = Notes::new(at(105));
    let mut replies = Replies::new(reply.as_bytes());
    let Progress::Done(outcome) = native().read(&mut op, link, &mut replies, &mut notes) else {
        panic!("one exchange is enough");
    };
    (outcome, notes)
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn acquire_leaves_out_the_arguments_that_have_their_defaults() {
    let keys = "5 lock:a {lock:a}:q {lock:a}:f {lock:a}:g {lock:a}:h";
    let mut single = sent("a", Kind::Exclusive, None);
    let text = written(&native(), OpKind::Acquire(&mut single), &link());
    let first = "OWNER 2000 1000 51100 me";
    assert_eq!(text, format!("EVALSHA acquire {keys} {first}"));

    let mut waiting = sent("a", Kind::Exclusive, Some(at(5_000)));
    let text = written(&native(), OpKind::Acquire(&mut waiting), &link());
    let entry = waiting.entry().unwrap().to_string().replace(OWNER, "OWNER");
    assert!(entry.contains(" c me"), "{entry}");
    assert_eq!(text, format!("EVALSHA acquire {keys} {first} {entry}"));

    let ahead = LinkFacts {
        lead_us: 60,
        ..link()
    };
    let mut single = sent("a", Kind::Exclusive, None);
    let text = written(&native(), OpKind::Acquire(&mut single), &ahead);
    assert_eq!(text, format!("EVALSHA acquire {keys} {first} '' 60 ''"));

    let mut reader = sent("a", Kind::Read, None);
    let text = written(&native(), OpKind::Acquire(&mut reader), &link());
    assert_eq!(text, format!("EVALSHA acquire {keys} {first} '' 0 r"));

    let sharded = Native {
        is_sharded: true,
        ..native()
    };
    let mut single = sent("a", Kind::Exclusive, None);
    let text = written(&sharded, OpKind::Acquire(&mut single), &link());
    assert_eq!(text, format!("EVALSHA acquire-sharded {keys} {first}"));
}

#[test]
fn downgrade_and_earlier_entries_are_arguments() {
    let mut held = release();
    held.entries = vec![crate::wire::QueueEntry::parse(&format!("{OWNER} s 2000 1 c me")).unwrap()];
    let mut downgrade = SentAcquires::downgrade(held, lease(Kind::Exclusive));
    let text = written(&native(), OpKind::Acquire(&mut downgrade), &link());
    assert!(text.ends_with("me OWNER s 2000 1 c me 0 >r"), "{text}");

    let mut waiting = sent("a", Kind::Exclusive, Some(at(5_000)));
    let mut op = Op::new(OpKind::Acquire(&mut waiting));
    for channel in ["old", "new"] {
        let channel = channel.into();
        native().next(&mut op, &facts(&link(), 100, Channel::Up(&channel)));
    }
    let text = words(&encode(&native(), &op, &link(), ScriptsBy::Hash));
    let (new, old) = (
        text.find(" new me 0").unwrap(),
        text.rfind(" old me").unwrap(),
    );
    assert!(new < old && text.ends_with(" old me"), "{text}");
    waiting.max_queue = QueueLimit::new(7);
    let mut op = Op::new(OpKind::Acquire(&mut waiting));
    let channel = "new".into();
    native().next(&mut op, &facts(&link(), 100, Channel::Up(&channel)));
    let text = words(&encode(&native(), &op, &link(), ScriptsBy::Hash));
    let (limit, old) = (
        text.find(" max 7 ").unwrap(),
        text.rfind(" old me").unwrap(),
    );
    assert!(limit < old, "{text}");
}

#[test]
fn releases_and_renewals_write_what_their_scripts_need() {
    let keys = "5 lock:a {lock:a}:q {lock:a}:f {lock:a}:g {lock:a}:h";
    let ahead = LinkFacts {
        lead_us: 60,
        ..link()
    };
    let plain = release();
    for (link, rest) in [(&link(), ""), (&ahead, " 60")] {
        let text = written(&native(), OpKind::Release(&plain), link);
        assert_eq!(text, format!("EVALSHA release {keys} OWNER 1000 2{rest}"));
    }
    let kept = ReleaseRequest {
        keep: Keep::Until(at(600)),
        ..release()
    };
    let text = written(&native(), OpKind::Release(&kept), &link());
    assert_eq!(
        text,
        format!("EVALSHA release {keys} OWNER 1000 2 0 500 me ''")
    );
    let text = written(&native(), OpKind::FreeKey(&kept), &link());
    assert_eq!(text, "EVALSHA drop 1 lock:a OWNER 500");

    let (exclusive, reader) = (renewal(Kind::Exclusive), renewal(Kind::Read));
    for (renewal, expiry, expected) in [
        (&exclusive, Expiry::WhereNeeded, "1 lock:a OWNER 2000"),
        (&exclusive, Expiry::Always, "1 lock:a OWNER 2000 write"),
        (
            &reader,
            Expiry::WhereNeeded,
            "2 lock:a {lock:a}:h OWNER 2000 '' me r",
        ),
        (
            &reader,
            Expiry::Always,
            "2 lock:a {lock:a}:h OWNER 2000 write me r",
        ),
    ] {
        let text = written(&native(), OpKind::Renew(renewal, expiry), &link());
        assert_eq!(text, format!("EVALSHA renew {expected}"));
    }
    let token = FencingToken::new(9);
    for (to, rest) in [
        (RaiseTo::AtLeast(token), ""),
        (RaiseTo::Exactly(token), " exact"),
    ] {
        let renewal = exclusive.clone();
        let raise = Raise { renewal, to };
        let text = written(&native(), OpKind::Raise(&raise), &link());
        assert_eq!(
            text,
            format!("EVALSHA raise 2 lock:a {{lock:a}}:f OWNER 9{rest}")
        );
    }
    for (disk, expected) in [(false, "WAIT 2 30"), (true, "WAITAOF 1 2 30")] {
        let wait = WaitFor {
            replicas: 2,
            disk,
            within: Duration::from_millis(30),
        };
        assert_eq!(written(&native(), OpKind::Wait(&wait), &link()), expected);
    }
}

/// A command that is sent again with its script's text carries the same time limit.
#[test]
fn second_copy_is_the_same_at_any_time() {
    let kept = ReleaseRequest {
        keep: Keep::Until(at(600)),
        ..release()
    };
    let renewal = renewal(Kind::Read);
    let wait = WaitFor {
        replicas: 1,
        disk: false,
        within: Duration::from_secs(1),
    };
    let mut acquire = sent("a", Kind::Exclusive, Some(at(5_000)));
    let channel = "c".into();
    for kind in [
        OpKind::Acquire(&mut acquire),
        OpKind::Release(&kept),
        OpKind::FreeKey(&kept),
        OpKind::Renew(&renewal, Expiry::WhereNeeded),
        OpKind::Wait(&wait),
    ] {
        let mut op = Op::new(kind);
        native().next(&mut op, &facts(&link(), 100, Channel::Up(&channel)));
        let by_hash = encode(&native(), &op, &link(), ScriptsBy::Hash);
        // Nothing tells `encode` that five seconds have passed.
        let later = LinkFacts {
            changed_at: Some(at(5_100)),
            ..link()
        };
        let by_text = encode(&native(), &op, &later, ScriptsBy::Text);
        assert_eq!(words(&by_hash).replace("EVALSHA", "EVAL"), words(&by_text));
    }
}

#[test]
fn waiting_acquire_asks_for_its_channel_before_it_is_recorded() {
    let mut waiting = sent("a", Kind::Exclusive, Some(at(5_000)));
    let before = waiting.clone();
    let mut op = Op::new(OpKind::Acquire(&mut waiting));
    let step = native().next(&mut op, &facts(&link(), 100, Channel::Unknown));
    assert!(matches!((step, &op.state), (Step::Subscribe, OpState::New)));
    let OpKind::Acquire(sent) = &op.kind else {
        unreachable!()
    };
    assert_eq!(**sent, before);
    let channel = "whole".into();
    native().next(&mut op, &facts(&link(), 100, Channel::Down(&channel)));
    assert_eq!(waiting.entry().unwrap().mode, Mode::Polling);
}

#[test]
fn replies_to_an_acquire_become_outcomes() {
    let mut acquire = sent("a", Kind::Exclusive, None);
    let (outcome, notes) = read(
        OpKind::Acquire(&mut acquire),
        &link(),
        &bulk("held 3 7 12 1500"),
    );
    let Ok(Outcome::Acquired(AcquireOutcome::Held {
        token,
        sent: sent_at,
        remaining,
    })) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!((token, sent_at), (Some(FencingToken::new(12)), at(100)));
    assert_eq!(remaining, Duration::from_millis(1_500));
    assert_eq!(notes.server_us, Some(3_000_007));

    let mut acquire = sent("a", Kind::Exclusive, None);
    let error = "-READONLY You can't write against a read only replica.\r\n";
    let (outcome, _) = read(OpKind::Acquire(&mut acquire), &link(), error);
    assert_eq!(outcome.unwrap_err().kind, RefusalKind::NotPrimary);
    let mut acquire = sent("a", Kind::Exclusive, None);
    let (outcome, _) = read(OpKind::Acquire(&mut acquire), &link(), ":1\r\n");
    assert_eq!(outcome.unwrap_err().kind, RefusalKind::Unreadable);
}

#[test]
fn lease_from_before_a_server_change_is_lost_for_that_reason() {
    let renewal = renewal(Kind::Exclusive);
    let changed = LinkFacts {
        changed_at: Some(at(50)),
        ..link()
    };
    for (link, reason) in [
        (link(), LossReason::Removed),
        (changed, LossReason::ServerChanged),
    ] {
        let kind = OpKind::Renew(&renewal, Expiry::WhereNeeded);
        let (outcome, _) = read(kind, &link, &bulk("gone 3 7"));
        let Ok(Outcome::Renewed(RenewOutcome::NotOwner(found))) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(found, reason);
    }
}

#[test]
fn waits_are_read_by_their_form() {
    let mut wait = WaitFor {
        replicas: 1,
        disk: false,
        within: Duration::from_secs(1),
    };
    let (outcome, _) = read(OpKind::Wait(&wait), &link(), ":2\r\n");
    assert!(matches!(
        outcome,
        Ok(Outcome::Acknowledged {
            by_disk: true,
            replicas: 2
        })
    ));
    wait.disk = true;
    let (outcome, _) = read(OpKind::Wait(&wait), &link(), "*2\r\n:0\r\n:1\r\n");
    assert!(matches!(
        outcome,
        Ok(Outcome::Acknowledged {
            by_disk: false,
            replicas: 1
        })
    ));
    for odd in [":1\r\n", "*1\r\n:1\r\n", "*2\r\n:1\r\n:-1\r\n", "_\r\n"] {
        let (outcome, _) = read(OpKind::Wait(&wait), &link(), odd);
        assert_eq!(
            outcome.unwrap_err().kind,
            RefusalKind::Unreadable,
            "{odd:?}"
        );
    }
}

/// Which locks of a set have a result, and whether they are held.
type Held = Result<Vec<(usize, bool)>, Refusal>;

/// Decides a set of three single attempts, and reads the reply. Returns the results by name, and what is left of each.
fn read_set(reply: &str) -> (Held, Vec<SentAcquires>) {
    let mut all: Vec<_> = ["a", "b", "c"]
        .map(|name| sent(name, Kind::Exclusive, None))
        .into();
    let mut ops: Vec<_> = all
        .iter_mut()
        .map(|sent| Op::new(OpKind::Acquire(sent)))
        .collect();
    let mut ops: Vec<_> = ops.iter_mut().collect();
    native().next_set(&mut ops, &facts(&link(), 100, Channel::Unknown));
    let mut notes = Notes::new(at(105));
    let mut replies = Replies::new(reply.as_bytes());
    let results = native().read_set(&mut ops, &link(), &mut replies, &mut notes);
    let is_held = |result| matches!(result, Ok(Outcome::Acquired(AcquireOutcome::Held { .. })));
    let results = results.map(|all| all.into_iter().map(|(at, it)| (at, is_held(it))).collect());
    (results, all)
}

#[test]
fn set_is_one_command_with_the_arguments_of_each_lock() {
    let mut all: Vec<_> = ["a", "b"]
        .map(|name| sent(name, Kind::Exclusive, None))
        .into();
    let mut ops: Vec<_> = all
        .iter_mut()
        .map(|sent| Op::new(OpKind::Acquire(sent)))
        .collect();
    let mut ops: Vec<_> = ops.iter_mut().collect();
    native().next_set(&mut ops, &facts(&link(), 100, Channel::Unknown));
    let mut out = Vec::new();
    native().encode_set(
        &ops,
        SetMode::AllOrNone,
        &link(),
        &mut CommandBuf::new(&mut out),
    );
    let of_one = "8 OWNER 2000 1000 51100 me '' 0 ''";
    let keys = |name: &str| {
        format!(
            "lock:{name} {{lock:{name}}}:q {{lock:{name}}}:f {{lock:{name}}}:g {{lock:{name}}}:h"
        )
    };
    let expected = format!(
        "EVALSHA acquire_all 10 {} {} 5 51100 all {of_one} {of_one}",
        keys("a"),
        keys("b")
    );
    assert_eq!(words(&out), expected);
}

#[test]
fn reply_to_a_set_says_what_is_left_of_each_lock() {
    let held = bulk("held 3 7 12 1500");
    let array = |parts: &[&str]| format!("*{}\r\n{}", parts.len(), parts.concat());
    // What a cancel has to undo: nothing of a lock that was not run, or was undone.
    let is_clean = |sent: &SentAcquires| !sent.may_be_present();

    let (results, all) = read_set(&array(&[&held, &held, &held]));
    assert_eq!(results.unwrap(), [(0, true), (1, true), (2, true)]);
    assert!(!all.iter().any(is_clean));

    let busy = bulk("busy 3 7 900 x");
    let (results, all) = read_set(&array(&[&held, &busy]));
    assert_eq!(results.unwrap(), [(0, true), (1, false)]);
    assert_eq!(
        all.iter().map(is_clean).collect::<Vec<_>>(),
        [false, true, true]
    );

    let (results, all) = read_set(&array(&[&bulk("undone"), &bulk("2"), &busy]));
    assert_eq!(results.unwrap(), [(1, false)]);
    assert!(all.iter().all(is_clean));

    let (results, all) = read_set(&array(&[&bulk("kept"), &bulk("2"), &busy]));
    assert_eq!(results.unwrap(), [(1, false)]);
    assert_eq!(
        all.iter().map(is_clean).collect::<Vec<_>>(),
        [false, true, false]
    );

    let error = bulk("error NOPERM No permissions to access a key");
    let (results, _) = read_set(&array(&[&held, &error]));
    assert_eq!(results.unwrap(), [(0, true), (1, false)]);

    for odd in [
        ":1\r\n".to_owned(),
        array(&[&bulk("undone"), &bulk("0"), &busy]),
    ] {
        let (results, all) = read_set(&odd);
        assert_eq!(
            results.unwrap_err().kind,
            RefusalKind::Unreadable,
            "{odd:?}"
        );
        assert!(!all.iter().any(is_clean));
    }
}

#[test]
fn refusals_are_classified_by_what_the_server_says() {
    for (line, kind, class) in [
        (
            "OOM command not allowed",
            RefusalKind::OutOfMemory,
            FailureClass::OutOfMemory,
        ),
        ("LOADING", RefusalKind::Loading, FailureClass::Retry),
        (
            "NOPERM no",
            RefusalKind::Permission,
            FailureClass::Forbidden,
        ),
        (
            "ERR The user executing the script can't run this command or subcommand",
            RefusalKind::Permission,
            FailureClass::Forbidden,
        ),
        (
            "ERR max number of clients reached",
            RefusalKind::TooManyClients,
            FailureClass::Retry,
        ),
        (
            "WRONGTYPE Operation",
            RefusalKind::WrongType,
            FailureClass::ForeignKey,
        ),
        (
            "ERR value is not an integer or out of range",
            RefusalKind::WrongType,
            FailureClass::ForeignKey,
        ),
        (
            "ERR syntax error",
            RefusalKind::UnknownCommand,
            FailureClass::Fatal,
        ),
        (
            "ERR max requests limit exceeded. Limit: 10000",
            RefusalKind::Other,
            FailureClass::Unknown,
        ),
        (
            "NOPROTO unsupported protocol version",
            RefusalKind::UnknownCommand,
            FailureClass::Fatal,
        ),
        (
            "ERR invalid password",
            RefusalKind::Authentication,
            FailureClass::Fatal,
        ),
        (
            "the plan does not allow it",
            RefusalKind::Other,
            FailureClass::Unknown,
        ),
        // Before Redis 7.
        (
            "ERR Error running script (call to f_0a): @user_script:9: -OOM command not allowed",
            RefusalKind::OutOfMemory,
            FailureClass::OutOfMemory,
        ),
        (
            "ERR Error running script (call to f_0a): @user_script:9: -MASTERDOWN Link with MASTER is down",
            RefusalKind::NotPrimary,
            FailureClass::Retry,
        ),
    ] {
        let refusal = Refusal::of(ServerError::parse(line.as_bytes()));
        assert_eq!(
            (refusal.kind, refusal.kind.class()),
            (kind, class),
            "{line}"
        );
        assert_eq!(&*refusal.text, line);
    }
    let moved = Refusal::of(ServerError::parse(b"MOVED 6075 127.0.0.1:23001"));
    assert!(matches!(moved.redirect.as_deref(), Some(Redirect::Moved(to)) if to.slot == 6075));
}

#[expect(clippy::unnecessary_wraps, reason = "a reply may have no text")]
fn bytes(text: &str) -> Option<&[u8]> {
    Some(text.as_bytes())
}

#[test]
fn acquire_replies_are_read() {
    let (held, server_us) = parse_acquire(bytes("held 3 7 12 30000")).unwrap();
    assert_eq!(server_us, 3_000_007);
    let token = FencingToken::new(12);
    let remaining_ms = 30_000;
    assert_eq!(
        held,
        AcquireReply::Held {
            token,
            remaining_ms
        }
    );
    let busy = |remaining_ms, value: &str| {
        let value = value.into();
        AcquireReply::Busy {
            holder: RawHolder {
                remaining_ms,
                value,
            },
        }
    };
    for (reply, expected) in [
        ("busy 3 7 -1 abc", busy(None, "abc")),
        ("busy 3 7 5 a b  c ", busy(Some(5), "a b  c ")),
        ("busy 3 7 0 ", busy(Some(0), "")),
        (
            "full 3 7 12 5 abc",
            AcquireReply::Full {
                rank: 12,
                holder: RawHolder {
                    remaining_ms: Some(5),
                    value: "abc".into(),
                },
            },
        ),
        ("more 3 7", AcquireReply::More),
        ("late 3 7", AcquireReply::Late),
        ("gone 3 7", AcquireReply::NotOwner),
        (
            "foreign 3 7 list",
            AcquireReply::Foreign {
                found: "list".into(),
            },
        ),
    ] {
        assert_eq!(parse_acquire(bytes(reply)).unwrap().0, expected, "{reply}");
    }
}

#[test]
fn release_reply_may_say_more_and_have_no_time() {
    let verdict = Verdict::Free;
    for (reply, more, server_us) in [
        ("released", false, None),
        ("released 3 7", false, Some(3_000_007)),
        ("released 3 7 more", true, Some(3_000_007)),
    ] {
        let expected = (ReleaseReply { verdict, more }, server_us);
        assert_eq!(parse_release(bytes(reply)).unwrap(), expected, "{reply}");
    }
    for odd in ["released 3 7 less", "released more", "released 3"] {
        assert!(parse_release(bytes(odd)).is_err(), "{odd}");
    }
}

#[test]
fn value_that_is_not_text_is_shown() {
    let reply = Some(&b"busy 3 7 5 \xffa"[..]);
    let AcquireReply::Busy { holder } = parse_acquire(reply).unwrap().0 else {
        panic!("not busy");
    };
    assert_eq!(holder.value, "\u{fffd}a");
}

#[test]
fn unexpected_replies_are_errors() {
    let texts = [
        "",
        "held",
        "held 3 7 x 1",
        "held 3 7 1",
        "full 3 7 x 1 a",
        "maybe 3 7",
        "held a 7 1 1",
    ];
    for odd in texts.map(bytes).into_iter().chain([None]) {
        assert!(parse_acquire(odd).is_err(), "{odd:?}");
        assert!(parse_release(odd).is_err(), "{odd:?}");
        assert!(parse_renewal(odd).is_err(), "{odd:?}");
    }
}
