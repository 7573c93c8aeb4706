//! What a node of a cluster replies when it does not serve a key.

/// Why a node did not run a command, and where the key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// Another node owns the slot.
    Moved(Destination),
    /// The slot moves, and this key is at another node already.
    Ask(Destination),
    /// The slot moves, and some of the keys are missing here.
    TryAgain,
    /// The cluster does not serve the slot.
    Down,
}

/// The node that a reply names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub slot: u16,
    /// Empty for the host that replied.
    pub host: String,
    pub port: u16,
}

impl Redirect {
    /// Reads the code and the text of an error.
    pub fn parse(code: &str, text: &str) -> Option<Self> {
        match code {
            "MOVED" => Destination::parse(text).map(Self::Moved),
            "ASK" => Destination::parse(text).map(Self::Ask),
            "TRYAGAIN" => Some(Self::TryAgain),
            "CLUSTERDOWN" => Some(Self::Down),
            _ => None,
        }
    }
}

impl Destination {
    /// Reads `6075 127.0.0.1:23001`. An IPv6 address has no brackets.
    fn parse(text: &str) -> Option<Self> {
        let (slot, address) = text.trim().split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        Some(Self {
            slot: slot.parse().ok()?,
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_is_read_from_the_texts_of_the_server() {
        let at = |slot, host: &str, port| Destination {
            slot,
            host: host.into(),
            port,
        };
        for (code, text, redirect) in [
            (
                "MOVED",
                "6075 127.0.0.1:23001",
                Some(Redirect::Moved(at(6075, "127.0.0.1", 23001))),
            ),
            ("MOVED", "1 :6379", Some(Redirect::Moved(at(1, "", 6379)))),
            (
                "ASK",
                "1327 ::1:6379",
                Some(Redirect::Ask(at(1327, "::1", 6379))),
            ),
            ("MOVED", "6075", None),
            ("MOVED", "x h:1", None),
            ("ASK", "1 h:99999", None),
            (
                "TRYAGAIN",
                "Multiple keys request during rehashing of slot",
                Some(Redirect::TryAgain),
            ),
            ("CLUSTERDOWN", "Hash slot not served", Some(Redirect::Down)),
            ("ERR", "MOVED 1 h:1", None),
        ] {
            assert_eq!(Redirect::parse(code, text), redirect, "{code} {text}");
        }
    }
}
