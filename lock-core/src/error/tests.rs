use std::error::Error;
use std::time::Duration;

use super::holder::rounded;
use super::*;
use lock_protocol::acquisition::ObservedHolder;
use lock_protocol::dialect::{Dialect, InvalidDialectReason};
use lock_protocol::key::LockName;
use lock_protocol::kind::{InvalidKindReason, Kind};
use lock_protocol::loss::LossReason;

fn holder() -> Holder {
    Holder {
        label: "web-1:42".into(),
        held_for: Some(Duration::from_secs(90)),
        is_foreign: false,
        ..Holder::foreign(Some(Duration::from_secs(3)))
    }
}

#[test]
fn error_is_small_cloneable_and_send() {
    fn assert_bounds<T: Clone + Send + Sync + 'static>() {}
    assert_bounds::<LockError>();
    assert!(size_of::<LockError>() <= 80, "{}", size_of::<LockError>());
}

#[test]
fn error_text_has_the_key_and_the_holder() {
    let error = LockError::Timeout {
        key: "lock:a".into(),
        waited: Duration::from_secs(5),
        holder: Some(Box::new(holder())),
        requested: Kind::Exclusive,
        position: Some(2),
    };
    assert_eq!(
        error.to_string(),
        "lock `lock:a` was not free within 5s: `web-1:42` has held it for 90s (3s left unless renewed), \
         waiters ahead: 2; try later, or set a longer `wait`"
    );
    let error = LockError::QueueFull {
        key: "lock:a".into(),
        position: 9,
        holder: Some(Box::new(holder())),
        requested: Kind::Exclusive,
        pace: None,
    };
    assert_eq!(
        error.to_string(),
        "lock `lock:a` is busy, and its queue is full: `web-1:42` has held it for 90s (3s left unless renewed), \
         waiters ahead: 9; try later, or raise `max_queue`"
    );
    assert!(error.is_contended() && error.holder().is_some());
    let error = LockError::Contended {
        key: "lock:a".into(),
        holder: None,
        requested: Kind::Exclusive,
    };
    assert_eq!(
        error.to_string(),
        "lock `lock:a` is busy; try later, or set a longer `wait`"
    );
    assert!(error.is_contended() && error.holder().is_none());
}

#[test]
fn error_text_has_the_tag_of_the_holder() {
    let holder = |label: &str| {
        let owner = format!("6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 {label}");
        Holder::new(ObservedHolder::from_value(&owner, None, None).unwrap())
    };
    let text = |holder: &Holder| super::holder::about(Some(holder), Kind::Exclusive, None);
    let tagged = holder("web-1:42 #4bf92f");
    assert_eq!(
        (&*tagged.label, tagged.tag.as_deref()),
        ("web-1:42", Some("4bf92f"))
    );
    assert_eq!(text(&tagged), ": `web-1:42 #4bf92f` holds it");
    // A label that looks like the text for a client of another library.
    let odd = holder("a client of another library #1");
    assert_eq!(text(&odd), ": `a client of another library #1` holds it");
    // The reason of a revocation is not a tag.
    let revoked = "00000000-0000-0000-0000-000000000000 revoked by ops: see #12";
    let revoked = Holder::new(ObservedHolder::from_value(revoked, None, None).unwrap());
    assert!(revoked.is_revoked() && revoked.tag.is_none());
    assert_eq!(
        text(&revoked),
        ": it was revoked by ops: see #12, and stays locked"
    );
}

/// A lock without a holder is not held, and is not renewed.
#[test]
fn error_text_of_a_lock_without_a_holder_says_what_keeps_it() {
    let text = |state, label: &str, remaining| {
        let holder = Holder {
            state,
            label: label.into(),
            remaining,
            ..holder()
        };
        super::holder::about(Some(&holder), Kind::Exclusive, None)
    };
    let left = Some(Duration::from_secs(19));
    assert_eq!(
        text(HolderState::Kept, "web-1:42", left),
        ": `web-1:42` released it, and its `min_hold` keeps it locked for another 19s"
    );
    assert_eq!(
        text(HolderState::Kept, "web-1:42", None),
        ": `web-1:42` released it, and its `min_hold` keeps it locked"
    );
    assert_eq!(
        text(HolderState::Revoked, "revoked by ops: stuck", left),
        ": it was revoked by ops: stuck, and stays locked for another 19s"
    );
}

#[test]
fn error_text_counts_readers_and_permits() {
    let held = |kind, count| LockError::Contended {
        key: "lock:a".into(),
        holder: Some(Box::new(Holder {
            kind,
            count,
            ..holder()
        })),
        requested: kind,
    };
    let permits = Kind::Permits { of: 4, weight: 1 };
    for (error, expected) in [
        (held(Kind::Read, 3), "held for reading by 3"),
        (held(permits, 4), "all 4 permits are out"),
        (held(permits, 3), "3 of 4 permits are out"),
    ] {
        assert_eq!(
            error.to_string(),
            format!(
                "lock `lock:a` is busy: {expected}, first `web-1:42`, for 90s (3s left unless renewed); try \
                 later, or set a longer `wait`"
            )
        );
    }
}

#[test]
fn error_text_names_two_numbers_of_permits() {
    let wanted = Kind::Permits { of: 5, weight: 1 };
    let held = Holder {
        kind: Kind::Permits { of: 4, weight: 1 },
        ..holder()
    };
    let about = |requested| super::holder::about(Some(&held), requested, None);
    let text = about(wanted);
    assert_eq!(
        text,
        ": 1 of 4 permits are out, first `web-1:42`, for 90s (3s left unless renewed); this call asks for \
         permits out of 5, and all callers of a lock have to use one number"
    );
    assert_eq!(about(held.kind), about(Kind::Read));
    assert!(!about(held.kind).contains("this call"));
}

/// The text and the code of each invalid setting, and the variant that `{:?}` names.
#[test]
#[expect(clippy::too_many_lines, reason = "one row for each setting")]
fn invalid_settings_say_what_to_write() {
    let time = Duration::from_millis(1_500);
    let name = InvalidName::new(&LockName::from(""), InvalidNameReason::Empty);
    for (setting, variant, code, text) in [
        (
            InvalidSetting::Dialect {
                dialect: Dialect::SetnxExpire,
                reason: InvalidDialectReason::Confirmed,
            },
            "Dialect",
            "invalid_dialect",
            "invalid use of `Dialect::SetnxExpire`: `confirm` works with native locks only; use \
             `Dialect::Native`, or no `confirm`",
        ),
        (
            name.into(),
            "Name",
            "invalid_name",
            "invalid lock name ``: it is empty; give the lock a name",
        ),
        (
            InvalidSetting::Ttl {
                ttl: time,
                setting: None,
            },
            "Ttl",
            "invalid_ttl",
            "invalid ttl 1.5s: use at least 100 ms and at most 24 h",
        ),
        (
            InvalidSetting::Ttl {
                ttl: time,
                setting: Some("default_ttl"),
            },
            "Ttl",
            "invalid_ttl",
            "invalid setting `default_ttl` (`1.5s`): use at least 100 ms and at most 24 h",
        ),
        (
            InvalidSetting::Renewal { every: time },
            "Renewal",
            "invalid_renewal",
            "invalid renewal interval 1.5s: use at least 10 ms and at most half of the ttl",
        ),
        (
            InvalidSetting::MaxHold { longest: time },
            "MaxHold",
            "invalid_max_hold",
            "invalid `max_hold` 1.5s: use more than the ttl, without `Renew::Never`",
        ),
        (
            InvalidSetting::MinHold { shortest: time },
            "MinHold",
            "invalid_min_hold",
            "invalid `min_hold` 1.5s: use less than the ttl",
        ),
        (
            InvalidSetting::Wait { wait: time },
            "Wait",
            "invalid_wait",
            "invalid `wait` 1.5s: a leader waits until it is elected; remove `wait`",
        ),
        (
            InvalidSetting::OutageWait { outage_wait: time },
            "OutageWait",
            "invalid_outage_wait",
            "invalid `outage_wait` 1.5s: a leader waits until it is elected, also during outages; remove `outage_wait`",
        ),
        (
            InvalidSetting::Kind {
                kind: Kind::Permits { of: 4, weight: 9 },
                reason: InvalidKindReason::Weight,
            },
            "Kind",
            "invalid_kind",
            "invalid kind of lock (9 of 4 permits): use a weight of at least 1, at most 256, and at most the \
             number of permits",
        ),
        (
            InvalidSetting::Override {
                template: "order:{id}".into(),
                reason: InvalidOverrideReason::Empty,
            },
            "Override",
            "invalid_override",
            "invalid override for `order:{id}`: it sets no time; set `ttl`, `wait` or `max_hold`, or remove \
             the override",
        ),
        (
            InvalidSetting::Manager {
                setting: "prefix",
                value: "{a}".into(),
                advice: "use no braces".into(),
            },
            "Manager",
            "invalid_setting",
            "invalid setting `prefix` (`{a}`): use no braces",
        ),
    ] {
        assert_eq!(setting.to_string(), text);
        assert_eq!(format!("{setting:?}"), format!("{variant}: {text}"));
        let error = LockError::from(setting);
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{error:?}"), format!("Invalid({variant}): {text}"));
        assert_eq!(error.code(), code);
        assert!(error.source().is_none() && !error.is_retryable());
    }
}

#[test]
fn errors_of_tickets_say_what_to_do() {
    let error = LockError::from(InvalidSetting::from(InvalidTicketReason::OtherPrefix));
    let text = "invalid use of a lock ticket: the ticket is of a manager with another `prefix`; resume it with the \
                prefix that made it";
    assert_eq!(error.to_string(), text);
    assert_eq!(format!("{error:?}"), format!("Invalid(Ticket): {text}"));
    assert_eq!(error.code(), "invalid_ticket");
    let error = LockError::TicketEnded {
        key: "lock:job".into(),
        reason: LossReason::Replaced,
    };
    let text = "the ticket for lock `lock:job` can no longer be resumed: its key has another owner; acquire the lock \
                anew, and check whether another process has resumed the ticket";
    assert_eq!(error.to_string(), text);
    assert_eq!(format!("{error:?}"), format!("TicketEnded: {text}"));
    assert_eq!(
        (error.code(), error.key()),
        ("ticket_ended", Some("lock:job"))
    );
    assert!(!error.is_retryable() && !error.is_contended() && !error.is_lost());
}

/// The code is the name of the kind in snake case.
#[test]
fn code_of_a_backend_error_is_its_kind() {
    let snake = |name: &str| {
        let words = name.chars().flat_map(|letter| {
            let underscore = letter.is_uppercase().then_some('_');
            underscore.into_iter().chain(letter.to_lowercase())
        });
        words.collect::<String>().trim_start_matches('_').to_owned()
    };
    for kind in [
        BackendErrorKind::InvalidUrl,
        BackendErrorKind::TimedOut,
        BackendErrorKind::Tls,
        BackendErrorKind::ReleaseUnconfirmed,
        BackendErrorKind::Other,
    ] {
        assert_eq!(kind.as_str(), snake(&format!("{kind:?}")));
        assert_eq!(LockError::backend(kind, "down").code(), kind.as_str());
    }
}

#[test]
fn durations_in_error_texts_are_rounded() {
    for (time, expected) in [
        (Duration::ZERO, "0ms"),
        (Duration::from_nanos(51_890_774), "52ms"),
        (Duration::from_nanos(1), "1ms"),
        (Duration::from_secs(1), "1s"),
        (Duration::from_millis(1_290), "1.2s"),
        (Duration::from_millis(29_998), "29s"),
        (Duration::from_secs(119), "119s"),
        (Duration::from_secs(121), "2m"),
        (Duration::from_secs(86_399), "23h"),
        (Duration::MAX, "more than a year"),
    ] {
        assert_eq!(rounded(time), expected);
    }
}

#[test]
fn contended_retryable_and_lost_errors_are_distinct() {
    let down = LockError::backend(BackendErrorKind::Unreachable, "no connection");
    let refused = LockError::backend(BackendErrorKind::Authentication, "refused");
    assert!(!down.is_contended() && down.is_retryable());
    assert!(!refused.is_retryable());
    let lost = LockError::Lost {
        key: "lock:a".into(),
        reason: LossReason::Expired,
    };
    assert!(lost.is_lost() && !lost.is_contended() && !lost.is_retryable());
    assert_eq!(lost.key(), Some("lock:a"));
}

#[test]
fn error_text_does_not_repeat_the_cause() {
    let cause = std::io::Error::other("wires cut");
    let error = LockError::caused(
        BackendErrorKind::Unreachable,
        "cannot reach the server",
        cause,
    );
    assert!(!error.to_string().contains("wires cut"));
    assert_eq!(error.source().unwrap().to_string(), "wires cut");
    assert!(error.to_string().contains("check that the server runs"));
}

#[test]
fn lost_error_names_the_reason() {
    let text = |reason| {
        let key = "lock:a".into();
        LockError::Lost { key, reason }.to_string()
    };
    assert_eq!(
        text(LossReason::MaxHold),
        "lock `lock:a` was lost while it was held: its longest hold ended; check the work that was done \
         under it"
    );
    let revoked = LossReason::revoked("ops@host".into(), Some("stuck import".into()));
    assert!(text(revoked).contains("was held: revoked by ops@host: stuck import; check"));
}

/// The form in which `main` prints an error.
#[test]
fn debug_text_is_one_line_with_the_causes() {
    let cause = std::io::Error::other("wires\ncut");
    let down = LockError::caused(
        BackendErrorKind::Unreachable,
        "cannot reach the server",
        cause,
    );
    assert_eq!(
        format!("{down:?}"),
        format!("Backend(Unreachable): {down} (caused by: wires\\u{{a}}cut)")
    );
    let LockError::Backend(backend) = &down else {
        panic!("{down}");
    };
    assert_eq!(
        format!("{backend:?}"),
        format!("Unreachable: {down} (caused by: wires\\u{{a}}cut)")
    );
    let timeout = LockError::Timeout {
        key: "lock:a".into(),
        waited: Duration::from_secs(5),
        holder: None,
        requested: Kind::Exclusive,
        position: None,
    };
    assert_eq!(
        format!("{timeout:?}"),
        "Timeout: lock `lock:a` was not free within 5s; try later, or set a longer `wait`"
    );
    assert!(format!("{:?}", LockError::Forked).starts_with("Forked: the process was forked"));
    let incomplete = ShutdownIncomplete { open: 2, held: 1 };
    assert_eq!(
        format!("{incomplete:?}"),
        format!("ShutdownIncomplete: {incomplete}")
    );
}

#[test]
fn alternate_debug_text_has_all_fields() {
    let contended = LockError::Contended {
        key: "lock:a".into(),
        holder: None,
        requested: Kind::Exclusive,
    };
    assert_eq!(
        format!("{contended:#?}"),
        "Contended {\n    key: \"lock:a\",\n    holder: None,\n    requested: Exclusive,\n}"
    );
    assert_eq!(format!("{:#?}", LockError::Forked), "Forked");
    let down = LockError::backend(BackendErrorKind::Unreachable, "no connection");
    let text = format!("{down:#?}");
    assert!(text.starts_with("Backend(\n    BackendError {\n        kind: Unreachable,"));
    let min_hold = InvalidSetting::MinHold {
        shortest: Duration::from_secs(1),
    };
    assert_eq!(
        format!("{:#?}", LockError::from(min_hold)),
        "Invalid(\n    MinHold {\n        shortest: 1s,\n    },\n)"
    );
    let incomplete = ShutdownIncomplete { open: 2, held: 1 };
    assert_eq!(
        format!("{incomplete:#?}"),
        "ShutdownIncomplete {\n    open: 2,\n    held: 1,\n}"
    );
}
