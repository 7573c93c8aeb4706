//! Where a client reaches the addresses that servers announce.
//!
//! Nodes of a cluster and Sentinels announce addresses of their own network. Behind NAT, or in containers with published
//! ports, a client needs others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::error::LockError;
#[cfg(feature = "redis")]
use crate::telemetry::{PanicSource, Reporter};
use lock_protocol::wire::tidy;

/// Between an announced address and the one that is used instead, in a configuration.
pub(crate) const ARROW: &str = "->";

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
        for (from, to) in pairs {
            if Pair::read(from, to).is_none() {
                return Err(LockError::InvalidSetting {
                    setting: "address_map",
                    value: tidy(&format!("{from}{ARROW}{to}"), 80).into(),
                    advice: "write two addresses such as `10.0.0.2:6379` and `localhost:7001`, or two hosts; \
                             an IPv6 address with a port is in brackets"
                        .into(),
                });
            }
        }
        Ok(())
    }

    /// Returns the host and port to use for an announced address; `None` for the announced ones. A panic of the user's
    /// function is counted, and the announced address is used.
    #[cfg(feature = "redis")]
    pub(crate) fn reach(
        &self,
        host: &str,
        port: u16,
        reporter: &Reporter,
    ) -> Option<(String, u16)> {
        match self {
            Self::Pairs(pairs) => {
                let pairs = pairs.iter().filter_map(|(from, to)| Pair::read(from, to));
                let matching = pairs.filter(|pair| pair.applies_to(host, port));
                // A pair with a port says more than one without.
                let pair = matching.max_by_key(|pair| pair.from.port.is_some())?;
                let to = pair.to;
                Some((to.host.to_owned(), to.port.unwrap_or(port)))
            }
            Self::Function(translate) => {
                let translated = || translate(host, port);
                reporter
                    .guarded(PanicSource::AddressMap, translated)
                    .flatten()
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
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "nothing connects"))]
struct Pair<'a> {
    from: Side<'a>,
    to: Side<'a>,
}

#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "nothing connects"))]
struct Side<'a> {
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Pair<'a> {
    fn read(from: &'a str, to: &'a str) -> Option<Self> {
        let (from, to) = (Side::read(from)?, Side::read(to)?);
        // Several ports that lead to one would be several nodes in one.
        let is_clear = from.port.is_some() || to.port.is_none();
        is_clear.then_some(Self { from, to })
    }

    #[cfg(feature = "redis")]
    fn applies_to(&self, host: &str, port: u16) -> bool {
        // The letters of a host name have no case.
        self.from.host.eq_ignore_ascii_case(host) && self.from.port.is_none_or(|it| it == port)
    }
}

impl<'a> Side<'a> {
    /// Reads `host`, `host:port`, `[address]`, `[address]:port`, or an IPv6 address without a port.
    fn read(text: &'a str) -> Option<Self> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Some(Self {
                host: text,
                port: None,
            });
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
            Some(port) => Some(port.parse().ok().filter(|port| *port != 0)?),
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(Self { host, port })
    }
}

/// Reads the pairs of an environment variable: `from->to,from->to`.
pub(crate) fn from_text(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut pairs = BTreeMap::new();
    for pair in text.split(',') {
        let Some((from, to)) = pair.split_once(ARROW) else {
            return Err(format!(
                "write `announced{ARROW}reachable`, such as `10.0.0.2:6379{ARROW}localhost:7001`, with a comma \
                 between two of them"
            ));
        };
        let (from, to) = (from.trim().to_owned(), to.trim().to_owned());
        if let Some(before) = pairs.insert(from.clone(), to.clone())
            && before != to
        {
            return Err(format!(
                "`{}` occurs twice: remove one of them",
                tidy(&from, 40)
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
            ("[fd00::1]:6379", "[::1]:7003"),
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
            let found = map.reach(host, port, &reporter);
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(found, expected, "{host}:{port}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn panic_of_the_function_is_counted() {
        let reporter = Reporter::default();
        let map = AddressMap::Function(Arc::new(|_, _| panic!("as the test wants")));
        assert_eq!(map.reach("h", 1, &reporter), None);
        assert_eq!(reporter.read().panics, 1);
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
            ("a:b:1", "h:1"),
            ("[::1", "h:1"),
            ("[h]:1", "h:1"),
            ("[::1]1", "h:1"),
            ("redis://h:1", "h:1"),
            ("h:1", "user@h:1"),
        ] {
            let error = pairs(&[(from, to)]).check().unwrap_err().to_string();
            let shown = format!("`address_map` (`{from}->{to}`): write two addresses");
            assert!(error.contains(&shown), "{error}");
        }
        assert!(
            pairs(&[("h", "i"), ("h:1", "i:2"), ("::1", "[::2]")])
                .check()
                .is_ok()
        );
    }

    #[test]
    fn variable_has_pairs_with_commas_between_them() {
        let read = from_text("10.0.0.2:6379->localhost:7001, a -> b").unwrap();
        let expected = [("10.0.0.2:6379", "localhost:7001"), ("a", "b")];
        assert!(read.iter().map(|(from, to)| (&**from, &**to)).eq(expected));
        for (text, message) in [
            ("", "write `announced->reachable`"),
            ("a", "write `announced->reachable`"),
            ("a->b,", "write `announced->reachable`"),
            ("a->b,a->c", "`a` occurs twice"),
        ] {
            let error = from_text(text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
