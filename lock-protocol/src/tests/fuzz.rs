//! Parsers with bytes from hostile servers and clients. `./scripts/fuzz` runs them for longer.

use std::fmt::Display;

use test_support::fuzz;

use crate::clock::Moment;
use crate::clock_sync::ClockSync;
use crate::codec::MAX_ERROR_TEXT;
use crate::duration_text;
use crate::fencing_token::FencingToken;
use crate::glob;
use crate::identity::{Hello, Info, Role, time_of};
use crate::key::{LockKey, LockName};
use crate::kind::{Group, Kind};
use crate::mailbox::Notification;
use crate::op::Refusal;
use crate::owner_id::{OwnerId, ShortId};
use crate::redirect::Redirect;
use crate::resp::{FrameScan, LOCK_REPLY, Malformed, Replies, Reply};
use crate::revocation::parse_revoked;
use crate::route::slot_of;
use crate::ticket::LockTicket;
use crate::wire::{
    EntryKind, GroupValue, OwnerValue, PlainOwner, QueueEntry, WireNotification, escaped,
    in_channel, label_tag, tidy, tidy_label,
};

const REPLIES: [&str; 17] = [
    "+OK\r\n",
    "-ERR Error running script (call to f_0a): @user_script:1: -READONLY You can't write\r\n",
    "-MOVED 6075 10.0.0.1:7001\r\n",
    "-ASK 1327 ::1:6379\r\n",
    "!21\r\nLOADING it is loading\r\n",
    ":-12\r\n",
    "_\r\n",
    ",1.5\r\n",
    "#t\r\n",
    "(123456789012345678901234567890\r\n",
    "$5\r\na\r\nbc\r\n",
    "$-1\r\n",
    "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
    "%3\r\n+role\r\n+master\r\n+mode\r\n+cluster\r\n+modules\r\n*0\r\n",
    "=7\r\ntxt:abc\r\n",
    "|1\r\n+ttl\r\n:3\r\n*2\r\n$10\r\n1764330000\r\n$6\r\n123456\r\n",
    ">3\r\n$7\r\nmessage\r\n$5\r\nlk1:c\r\n$2\r\nhi\r\n",
];

/// Cuts bytes that arrive in pieces into frames. Returns their lengths, and whether what follows was refused. Which of two
/// errors is met first depends on the pieces.
fn cut(bytes: &[u8], piece: usize, largest: usize) -> (Vec<usize>, bool) {
    let (mut scan, mut begin, mut end) = (FrameScan::default(), 0, piece.min(bytes.len()));
    let mut frames = Vec::new();
    loop {
        match scan.scan(&bytes[begin..end], largest) {
            Ok(Some(len)) => {
                assert!(len > 0 && len <= largest, "{len}");
                frames.push(len);
                begin += len;
            }
            Ok(None) if end == bytes.len() => return (frames, false),
            Ok(None) => end = bytes.len().min(end + piece),
            Err(Malformed::NotTheProtocol | Malformed::TooLarge { .. }) => return (frames, true),
        }
        if begin == end && end == bytes.len() {
            return (frames, false);
        }
        if begin == end {
            end = bytes.len().min(end + piece);
        }
    }
}

/// Reads everything that a reply can be asked for. Returns its shape.
fn walk(reply: Reply<'_>, shape: &mut Vec<u8>, depth: usize) {
    assert!(depth <= crate::resp::MAX_DEPTH);
    let (text, status, word) = (reply.text(), reply.status(), reply.word());
    let (integer, error) = (reply.integer(), reply.error());
    assert!(word.is_none() || text.is_some() || status.is_some());
    if let Some(error) = error {
        let (code, detail, text) = (error.code(), error.detail(), error.text());
        assert!(text.ends_with(&*detail), "{text:?} {detail:?}");
        assert!(text.contains(code));
        let refusal = Refusal::of(error);
        let _class = (refusal.kind.class(), refusal.is_unknown_command());
        shape.push(match refusal.redirect.as_deref() {
            None => 0,
            Some(Redirect::Moved(_)) => 1,
            Some(Redirect::Ask(_)) => 2,
            Some(_) => 3,
        });
    }
    shape.push(u8::from(text.is_some()) | u8::from(status.is_some()) << 1);
    shape.push(u8::from(integer.is_some()) | u8::from(reply.is_null()) << 1);
    if let Some(role) = Role::of_reply(reply) {
        shape.push(u8::from(role == Role::Primary));
    }
    let hello = Hello::read(reply);
    shape.push(u8::from(hello.role.is_some()) | u8::from(hello.is_in_cluster.is_some()) << 1);
    shape.push(u8::from(time_of(reply).is_some()));
    let Some(items) = reply.items() else { return };
    let mut read = 0;
    for item in items {
        read += item.bytes().len();
        assert!(read <= reply.bytes().len());
        walk(item, shape, depth + 1);
    }
}

#[test]
fn frames_are_the_same_in_pieces_of_any_size() {
    fuzz("frames", &REPLIES, &REPLIES, |input| {
        let (choice, bytes) = input.split_first().unwrap_or((&0, &[]));
        let largest = if choice & 1 == 0 { LOCK_REPLY } else { 100 };
        let whole = cut(bytes, bytes.len().max(1), largest);
        let piece = 1 + usize::from(choice >> 1) % 40;
        assert_eq!(cut(bytes, piece, largest), whole);
        (whole.0.len(), whole.1)
    });
}

#[test]
fn replies_are_read_without_a_panic() {
    fuzz("replies", &REPLIES, &REPLIES, |input| {
        let (frames, _) = cut(input, input.len().max(1), LOCK_REPLY);
        let mut shape = Vec::new();
        let mut at = 0;
        for len in frames {
            let mut replies = Replies::new(&input[at..at + len]);
            if let Some(reply) = replies.next() {
                walk(reply, &mut shape, 0);
            }
            assert!(replies.next().is_none(), "one frame is one reply");
            at += len;
        }
        shape.truncate(40);
        shape
    });
}

#[test]
fn info_is_read_without_a_panic() {
    let examples = [
        "# Server\r\nredis_version:7.0.15\r\nrun_id:6f1c7f9e5a0b4c539d552f1f6f3f7d10\r\nrole:master\r\n",
        "redis_version:7.2.4\nvalkey_version:8.0.1\nrole:slave\nuptime_in_seconds:7\n",
        "cluster_current_epoch:6\r\ncluster_my_epoch:2\r\ncluster_state:ok\r\n",
    ];
    let words = [
        "run_id:",
        "role:",
        "active-replica",
        "sentinel",
        "valkey_version:",
    ];
    fuzz("info", &examples, &words, |input| {
        let text = String::from_utf8_lossy(input);
        let info = Info::new(&text);
        let numbers = (info.current_epoch(), info.my_epoch());
        let version = info.version();
        assert!(version.is_none_or(|it| it.len() <= text.len() + 10));
        (
            info.role().map(|role| role == Role::Primary),
            info.run_id().is_some(),
            (numbers.0.is_some(), numbers.1.is_some()),
        )
    });
}

/// Returns whether the text is one, and checks that what was read is printed as something that is read alike.
fn is_read<T: Display + PartialEq>(text: &str, parse: impl Fn(&str) -> Option<T>) -> bool {
    let Some(read) = parse(text) else {
        return false;
    };
    let printed = read.to_string();
    let again = parse(&printed);
    assert!(
        again.is_some_and(|again| again == read),
        "{text:?} became {printed:?}"
    );
    true
}

#[test]
fn texts_on_the_server_are_read_as_they_are_printed() {
    let id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    let examples = [
        format!("lk1:{id} 12 99 web 1 #4bf92f3577b34da6"),
        "lks:r 12 99 web-1".to_owned(),
        "lks:4 12 99 web-1".to_owned(),
        format!("{id} web-1:42"),
        format!("{id} 2 web-1"),
        format!("-{id} 2 web-1"),
        format!("{id} s4x2 2000 99 lk1:c label"),
        format!("{id} pr 2000 99 lk1:c label"),
        format!("g {id} 12 1764330000000000 2000"),
        "h 6f1c7f9e 1764330000000000 2000".to_owned(),
        "lks:3:r 12 99 web-1".to_owned(),
    ];
    fuzz("texts", &examples, &[id, "lks:", "r", "4x2"], |input| {
        let Ok(text) = str::from_utf8(input) else {
            return [false; 10];
        };
        let _read = (GroupValue::parse_counted(text), parse_revoked(text));
        if let Some(message) = WireNotification::parse(text) {
            for (at, received) in [(0, 0), (1, 70_000), (50_000, 50_003), (u64::MAX >> 21, 9)] {
                let clock_sync = ClockSync {
                    sent: Moment::from_millis(at),
                    server_us: 1_764_330_000_000_000,
                    run_id: 7,
                };
                let received = Moment::from_millis(received);
                let read = Notification::from_wire(&message, Some(clock_sync), 7, received);
                if let Notification::Grant(grant) = read {
                    // Not before it was granted, and never for longer than the lease.
                    let longest = received.plus(grant.lease);
                    assert!(grant.until.is_none_or(|until| until <= longest), "{text}");
                }
            }
        }
        let _tag = label_tag(text);
        [
            is_read(text, OwnerValue::parse),
            is_read(text, PlainOwner::parse),
            is_read(text, GroupValue::parse),
            is_read(text, QueueEntry::parse),
            is_read(text, WireNotification::parse),
            is_read(text, |text| Some(EntryKind::parse(text))),
            is_read(text, OwnerId::parse),
            is_read(text, |text| text.parse::<FencingToken>().ok()),
            Kind::parse(text).is_some(),
            Group::parse(text).is_some() || ShortId::parse(text).is_some(),
        ]
    });
}

#[test]
fn foreign_text_becomes_harmless() {
    let examples = ["web-1\u{1b}[31mred", "a\u{202e}b\u{2028}c", "é\n\r\0", "👩‍🚀"];
    let is_harmless = |text: &str| {
        let mut letters = text.chars();
        !letters.any(|it| it.is_control() || matches!(it, '\u{2028}'..='\u{202e}' | '\u{200f}'))
    };
    fuzz(
        "foreign text",
        &examples,
        &["\u{9b}", "\u{2066}"],
        |input| {
            let text = String::from_utf8_lossy(input);
            for limit in [0, 1, 40, MAX_ERROR_TEXT] {
                let tidied = tidy(&text, limit);
                assert!(tidied.len() <= limit && is_harmless(&tidied), "{tidied:?}");
                assert_eq!(tidy(&tidied, limit), tidied);
            }
            let label = tidy_label(&text);
            let shown = escaped(&text);
            assert!(is_harmless(&label) && is_harmless(&shown), "{shown:?}");
            let channel = in_channel(&text);
            assert!(channel.bytes().all(|byte| byte.is_ascii_graphic()));
            assert!(glob::matches(&glob::escape(&text), &text), "{text:?}");
            // The second half is the pattern.
            let middle = text.char_indices().nth(text.chars().count() / 2);
            let (one, other) = text.split_at(middle.map_or(0, |(at, _)| at));
            let matched = glob::matches(other, one);
            (
                label.len() == text.len(),
                matched,
                shown.len() == text.len(),
            )
        },
    );
}

#[test]
fn keys_of_a_lock_are_in_one_slot() {
    let examples = ["lock:order:42", "{user1}:cart", "x{a:b c}y", "{a}:q", "a:f"];
    fuzz("keys", &examples, &["{", "}", ":q", ":h"], |input| {
        let text = String::from_utf8_lossy(input);
        let (prefix, name) = text.split_at(text.find('|').unwrap_or(0));
        // The settings refuse such a prefix.
        if prefix.contains(['{', '}']) {
            return (false, false);
        }
        let Ok(key) = LockKey::new(prefix, &LockName::from(name)) else {
            return (false, false);
        };
        let slot = slot_of(key.as_str().as_bytes());
        let all = key.all();
        for (at, one) in all.iter().enumerate() {
            assert_eq!(slot_of(one.as_bytes()), slot, "{one}");
            assert!(!all[at + 1..].contains(one), "{all:?}");
        }
        (true, key.as_str().contains('{'))
    });
}

#[test]
fn durations_are_read_without_a_panic() {
    let examples = ["1h30m", "90s", "500ms", "1h2m3s4ms"];
    fuzz("durations", &examples, &["h", "ms", "-"], |input| {
        let text = String::from_utf8_lossy(input);
        duration_text::parse(&text).map_err(|error| error.len() / 64)
    });
}

#[test]
fn tickets_are_read_without_a_panic() {
    let owner = "6f1c7f9e5a0b4c539d552f1f6f3f7d10";
    let example = format!(
        "lt1.{owner}{:016x}{:016x}0500086c6f636b3a6f726465723a3432",
        7, 8
    );
    fuzz(
        "tickets",
        &[&*example, "lt2.00"],
        &["00", "7b", "lt1."],
        |input| {
            let text = String::from_utf8_lossy(input);
            let ticket = text.parse::<LockTicket>();
            if let Ok(ticket) = &ticket {
                assert_eq!(ticket.to_string(), text, "one ticket has one text");
                assert!(!format!("{ticket:?}").contains(&text[4..36]));
            }
            ticket.map(|ticket| ticket.key().len() / 64)
        },
    );
}
