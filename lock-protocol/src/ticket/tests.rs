use super::*;

const OWNER: u128 = 0x6f1c_7f9e_5a0b_4c53_9d55_2f1f_6f3f_7d10;

fn ticket(prefix: &str, name: &str) -> LockTicket {
    LockTicket::new(
        LockKey::new(prefix, &LockName::from(name)).unwrap(),
        OwnerId::from_number(OWNER),
        FencingToken::new(1_767_225_600_000_001),
        UNIX_EPOCH + Duration::from_secs(1_767_225_600),
        Duration::from_secs(60),
    )
}

#[test]
fn text_of_a_ticket_gives_the_ticket_back() {
    for (prefix, name) in [("lock:", "order:42"), ("", "ä"), ("p", "{user1}:cart")] {
        let ticket = ticket(prefix, name);
        let text = ticket.to_string();
        let again: LockTicket = text.parse().unwrap();
        assert_eq!(again, ticket);
        assert_eq!(again.to_string(), text);
        assert_eq!((again.name(), again.owner_id()), (name, ticket.owner_id()));
        assert_eq!(again.key(), format!("{prefix}{name}"));
        let end = UNIX_EPOCH + Duration::from_secs(1_767_225_660);
        assert_eq!(again.expires_at(), end);
    }
    let longest = ticket(&"p".repeat(MAX_PREFIX), &"n".repeat(MAX_NAME)).to_string();
    assert!(longest.len() <= 2_250, "{}", longest.len());
    assert!(longest.parse::<LockTicket>().is_ok());
}

#[test]
fn text_that_is_changed_or_cut_is_no_ticket() {
    let text = ticket("lock:", "order:42").to_string();
    for end in 0..text.len() {
        assert_eq!(
            text[..end].parse::<LockTicket>(),
            Err(InvalidTicket::Malformed)
        );
    }
    for other in [
        format!("{text}0"),
        format!("{text}00"),
        format!(" {text}"),
        text.to_uppercase(),
        text.replace("lt1.", "lt1:"),
        format!("{VERSION}{}", "0".repeat(10_000)),
        // The ids of a key without an owner.
        text.replace(&format!("{OWNER:032x}"), &"0".repeat(32)),
        text.replace(&format!("{OWNER:032x}"), &"f".repeat(32)),
        // A prefix with a brace, and an empty name.
        ticket("l", "k")
            .to_string()
            .replace("0100016c6b", "0100017b6b"),
        ticket("l", "k")
            .to_string()
            .replace("0100016c6b", "0100006c"),
    ] {
        assert_eq!(
            other.parse::<LockTicket>(),
            Err(InvalidTicket::Malformed),
            "{other}"
        );
    }
    let newer = text.replace("lt1.", "lt2.");
    assert_eq!(newer.parse::<LockTicket>(), Err(InvalidTicket::Version));
}

#[test]
fn debug_and_errors_do_not_show_the_secret() {
    let ticket = ticket("lock:", "order:42");
    let secret = format!("{OWNER:032x}");
    assert!(ticket.to_string().contains(&secret));
    let shown = format!("{ticket:?} {ticket:#?}");
    assert!(shown.contains("order:42"));
    let error = format!("{ticket}0").parse::<LockTicket>().unwrap_err();
    let shown = format!("{shown} {error} {error:?} {error:#?}");
    assert!(
        !shown.contains(&secret[..8]) && !shown.contains(&secret[24..]),
        "{shown}"
    );
}

#[cfg(feature = "serde")]
#[test]
fn serialized_ticket_is_its_text() {
    let ticket = ticket("lock:", "order:42");
    let json = serde_json::to_string(&ticket).unwrap();
    assert_eq!(json, format!("\"{ticket}\""));
    assert_eq!(serde_json::from_str::<LockTicket>(&json).unwrap(), ticket);
    let error = serde_json::from_str::<LockTicket>("\"lt1.00\"").unwrap_err();
    assert!(error.to_string().contains("no lock ticket"), "{error}");
}
