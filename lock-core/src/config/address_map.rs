//! Where a client reaches the addresses that servers announce.
//!
//! Nodes of a cluster and Sentinels announce addresses of their own network. Behind NAT, or in containers with published
//! ports, a client needs others.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

#[cfg(feature = "redis")]
use crate::error::BackendErrorKind;
use crate::error::{InvalidSetting, LockError};
#[cfg(feature = "redis")]
use crate::telemetry::{PanicSource, Reporter};
use lock_protocol::wire::tidy;

/// A function that returns the address to use; `None` for the announced one.
type Translate = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

/// Translates announced addresses into those that this client reaches.
#[derive(Clone)]
pub(crate) enum AddressMap {
    /// `host:port` to `host:port`, or a host with all of its ports to another host.
    Pairs(BTreeMap<String, String>),
    /// The user's function.
    Function(Arc<Translate>),
}

impl AddressMap {
    /// Checks the addresses of all pairs.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let Self::Pairs(pairs) = self else {
            return Ok(());
        };
        let mut seen = HashSet::new();
        for (from, to) in pairs {
            let refused = |advice: &'static str| {
                LockError::Invalid(InvalidSetting::Manager {
                    setting: "address_map",
                    value: tidy(&format!("{from}={to}"), 80).into(),
                    advice: advice.into(),
                })
            };
            let Some(pair) = Pair::read(from, to) else {
                return Err(refused(
                    "write two addresses such as `10.0.0.2:6379` and `localhost:7001`, or two hosts; an IPv6 address \
                     with a port is in brackets",
                ));
            };
            if !seen.insert((pair.from.host, pair.from.port)) {
                return Err(refused(
                    "another pair begins with the same address: remove one of them",
                ));
            }
        }
        Ok(())
    }

    /// Returns the host and port to use for an announced address; `None` for the announced ones.
    #[cfg(feature = "redis")]
    pub(crate) fn reach(
        &self,
        host: &str,
        port: u16,
        reporter: &Reporter,
    ) -> Result<Option<(String, u16)>, LockError> {
        match self {
            Self::Pairs(pairs) => {
                let announced = canonical(host);
                let pairs = pairs.iter().filter_map(|(from, to)| Pair::read(from, to));
                let matching = pairs.filter(|pair| pair.applies_to(&announced, port));
                // A pair with a port says more than one without.
                let pair = matching.max_by_key(|pair| pair.from.port.is_some());
                Ok(pair.map(|pair| (pair.to.host, pair.to.port.unwrap_or(port))))
            }
            Self::Function(translate) => {
                let translated = || translate(host, port);
                let translated = reporter.guarded(PanicSource::AddressMap, translated);
                match translated {
                    Some(None) => Ok(None),
                    Some(Some((host, port))) if !host.is_empty() && port != 0 => {
                        Ok(Some((host, port)))
                    }
                    // The announced address may lead to a server that has nothing to do with these.
                    _ => Err(LockError::advised(
                        BackendErrorKind::Unreachable,
                        format!(
                            "the function of `address_map` gave no address for {host}, port {port}"
                        ),
                        "it must return a host and a port, or `None` for the announced ones, and must not panic",
                    )),
                }
            }
        }
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pairs(pairs) => pairs.fmt(f),
            Self::Function(_) => f.write_str("AddressMap(..)"),
        }
    }
}

/// One line of a map.
struct Pair {
    from: Side,
    to: Side,
}

struct Side {
    host: String,
    port: Option<u16>,
}

impl Pair {
    fn read(from: &str, to: &str) -> Option<Self> {
        let (from, to) = (Side::read(from)?, Side::read(to)?);
        // Several ports that lead to one would be several nodes in one.
        let is_clear = from.port.is_some() || to.port.is_none();
        // A server listens there on all its addresses, and nobody connects to it.
        let is_reachable = to.host != "0.0.0.0" && to.host != "::";
        (is_clear && is_reachable).then_some(Self { from, to })
    }

    #[cfg(feature = "redis")]
    fn applies_to(&self, host: &str, port: u16) -> bool {
        self.from.host == host && self.from.port.is_none_or(|it| it == port)
    }
}

impl Side {
    /// Reads `host`, `host:port`, `[address]`, `[address]:port`, or an IPv6 address without a port.
    fn read(text: &str) -> Option<Self> {
        if text.parse::<Ipv6Addr>().is_ok() {
            let host = canonical(text);
            return Some(Self { host, port: None });
        }
        let (host, rest) = if let Some(bracketed) = text.strip_prefix('[') {
            let (host, rest) = bracketed.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, rest)
        } else {
            let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            let is_of_name =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if host.is_empty() || !host.bytes().all(is_of_name) {
                return None;
            }
            (host, rest)
        };
        let port = match rest.strip_prefix(':') {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(port.parse().ok().filter(|port| *port != 0)?)
            }
            None if rest.is_empty() => None,
            _ => return None,
        };
        let host = canonical(host);
        Some(Self { host, port })
    }
}

/// Returns one text for all that a host may be written as: the letters of a name have no case, and an IPv6 address has
/// several forms.
fn canonical(host: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

/// Reads an address map as an environment variable has it: `announced=reachable`, with a comma between two pairs. For
/// configurations, and for the options of command lines.
/// [`ManagerConfig::address_map`](crate::config::ManagerConfig::address_map) takes the result.
///
/// # Errors
/// The message says what to write. A manager checks the addresses later.
pub fn parse_address_map(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut pairs = BTreeMap::new();
    for pair in text.split(',') {
        let Some((from, to)) = pair.split_once('=') else {
            return Err(
                "write `announced=reachable`, such as `10.0.0.2:6379=localhost:7001`, with a comma between two pairs"
                    .to_owned(),
            );
        };
        let (from, to) = (from.trim().to_owned(), to.trim().to_owned());
        if pairs.insert(from, to).is_some() {
            let pair = tidy(pair.trim(), 40);
            return Err(format!(
                "`{pair}` begins with the same address as another pair: remove one of them"
            ));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> AddressMap {
        let pairs = pairs
            .iter()
            .map(|(from, to)| ((*from).into(), (*to).into()));
        AddressMap::Pairs(pairs.collect())
    }

    #[cfg(feature = "redis")]
    #[test]
    fn announced_address_leads_to_its_pair() {
        let map = pairs(&[
            ("10.0.0.2:6379", "localhost:7001"),
            ("10.0.0.2", "outside"),
            ("Node.Example", "127.0.0.1"),
            ("[FD00:0::1]:6379", "[0:0::1]:7003"),
            ("fd00::2", "::1"),
            ("10.0.0.5:6379", "elsewhere"),
        ]);
        let reporter = Reporter::default();
        for (host, port, expected) in [
            ("10.0.0.2", 6379, Some(("localhost", 7001))),
            ("10.0.0.2", 6380, Some(("outside", 6380))),
            ("node.example", 1, Some(("127.0.0.1", 1))),
            ("fd00::1", 6379, Some(("::1", 7003))),
            ("fd00::1", 6380, None),
            ("fd00::2", 5, Some(("::1", 5))),
            ("10.0.0.5", 6379, Some(("elsewhere", 6379))),
            ("10.0.0.3", 6379, None),
        ] {
            let found = map.reach(host, port, &reporter).unwrap();
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(found, expected, "{host}:{port}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn function_without_an_address_is_an_error() {
        let reporter = Reporter::default();
        let function = |translate: fn() -> Option<(String, u16)>| {
            AddressMap::Function(Arc::new(move |_, _| translate()))
        };
        for (translate, panics) in [
            ((|| panic!("as the test wants")) as fn() -> _, 1),
            (|| Some((String::new(), 1)), 1),
            (|| Some(("h".into(), 0)), 1),
        ] {
            let error = function(translate).reach("h", 1, &reporter).unwrap_err();
            let text = error.to_string();
            let expected = "`address_map` gave no address for h, port 1";
            assert!(text.contains(expected), "{text}");
            assert_eq!(reporter.read().panics, panics);
        }
        let found = function(|| None).reach("h", 1, &reporter).unwrap();
        assert_eq!(found, None);
    }

    #[test]
    fn pair_that_is_no_two_addresses_is_refused() {
        for (from, to) in [
            ("", "h"),
            ("h:1", ""),
            ("h", "h:1"),
            ("h:0", "h:1"),
            ("h:65536", "h:1"),
            ("h:x", "h:1"),
            ("h:+1", "h:1"),
            ("h", "0.0.0.0"),
            ("h:1", "[::]:1"),
            ("a:b:1", "h:1"),
            ("[::1", "h:1"),
            ("[h]:1", "h:1"),
            ("[::1]1", "h:1"),
            ("redis://h:1", "h:1"),
            ("h:1", "user@h:1"),
        ] {
            let error = pairs(&[(from, to)]).check().unwrap_err().to_string();
            let shown = format!("`address_map` (`{from}={to}`): write two addresses");
            assert!(error.contains(&shown), "{error}");
        }
        let valid = pairs(&[("h", "i"), ("h:1", "i:2"), ("::1", "[::2]")]);
        assert!(valid.check().is_ok());
    }

    #[test]
    fn address_with_two_pairs_is_refused() {
        for (one, other) in [("Node", "node"), ("::1", "[::1]"), ("fd00:0::1", "fd00::1")] {
            let error = pairs(&[(one, "h"), (other, "i")]).check().unwrap_err();
            let text = error.to_string();
            let expected = "another pair begins with the same address";
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn variable_has_pairs_with_commas_between_them() {
        let read = parse_address_map("10.0.0.2:6379=localhost:7001, a = b").unwrap();
        let expected = [("10.0.0.2:6379", "localhost:7001"), ("a", "b")];
        assert!(read.iter().map(|(from, to)| (&**from, &**to)).eq(expected));
        for (text, message) in [
            ("", "write `announced=reachable`"),
            ("a", "write `announced=reachable`"),
            ("a=b,", "write `announced=reachable`"),
            (
                "a=b,a=c",
                "`a=c` begins with the same address as another pair",
            ),
        ] {
            let error = parse_address_map(text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
