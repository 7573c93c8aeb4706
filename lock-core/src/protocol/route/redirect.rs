//! The text by which a node sends a call to another node.

use super::slot::HashSlot;

/// The node that a call is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: HashSlot,
    /// `None`: the same host as the node that gave the reply.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

/// A redirect in the words of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RedirectText {
    /// The other node owns the slot.
    Moved(Redirect),
    /// The slot is on its way to the other node. Only this call goes there, after `ASKING`.
    Ask(Redirect),
}

impl RedirectText {
    /// Reads `MOVED 6075 127.0.0.1:23001` or `ASK 6075 127.0.0.1:23001`.
    ///
    /// An IPv6 address has no brackets there, so the port begins after the last colon. A node whose
    /// preferred host name is not known gives `?`: that is no address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (code, slot, address) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let (host, port) = address.rsplit_once(':')?;
        if host == "?" {
            return None;
        }
        let redirect = Redirect {
            slot: HashSlot::new(number(slot)?)?,
            host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            port: number(port).filter(|port| *port != 0)?,
        };
        match code {
            "MOVED" => Some(Self::Moved(redirect)),
            "ASK" => Some(Self::Ask(redirect)),
            _ => None,
        }
    }
}

/// A number of digits only. `u16::from_str` also takes a plus sign.
fn number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn to(slot: u16, host: &str, port: u16) -> Redirect {
        Redirect {
            slot: HashSlot::new(slot).unwrap(),
            host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            port,
        }
    }

    #[test]
    fn parse_of_known_texts_gives_slot_and_address() {
        for (text, expected) in [
            (
                "MOVED 6075 127.0.0.1:23001",
                RedirectText::Moved(to(6075, "127.0.0.1", 23001)),
            ),
            (
                "ASK 1327 node-3.internal:7000",
                RedirectText::Ask(to(1327, "node-3.internal", 7000)),
            ),
            (
                "MOVED 16383 ::1:6379",
                RedirectText::Moved(to(16383, "::1", 6379)),
            ),
            ("MOVED 1 :6379", RedirectText::Moved(to(1, "", 6379))),
        ] {
            assert_eq!(RedirectText::parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn parse_of_malformed_texts_is_none() {
        for text in [
            "",
            "MOVED",
            "MOVED 1",
            "MOVED 1 host",
            "MOVED 1 host:",
            "MOVED 1 host:0",
            "MOVED 1 host:65536",
            "MOVED 1 host:+1",
            "MOVED 1 ?:6379",
            "MOVED 16384 host:1",
            "MOVED -1 host:1",
            "MOVED host:1 1",
            "MOVED 1 host:1 more",
            "moved 1 host:1",
            "TRYAGAIN Multiple keys request during rehashing of slot",
        ] {
            assert_eq!(RedirectText::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parse_of_any_redirect_returns_its_parts(
            slot in 0..16384_u16, host in "[a-z0-9.:-]{0,20}", port in 1..=u16::MAX,
        ) {
            let expected = to(slot, &host, port);
            let moved = RedirectText::parse(&format!("MOVED {slot} {host}:{port}"));
            prop_assert_eq!(moved, Some(RedirectText::Moved(expected.clone())));
            let ask = RedirectText::parse(&format!("ASK {slot} {host}:{port}"));
            prop_assert_eq!(ask, Some(RedirectText::Ask(expected)));
        }

        #[test]
        fn parse_of_any_text_does_not_panic(text in "(MOVED|ASK)?.{0,40}") {
            let _ = RedirectText::parse(&text);
        }
    }
}
