//! The hosts of a URL. They are not shown, because the `@` after a password may be missing.

use std::net::Ipv6Addr;

use super::super::deployment::NodeAddress;
use super::{advised, invalid};
use crate::error::LockError;

/// Reads hosts with commas between them.
pub(super) fn list(hosts: &str, default_port: u16) -> Result<Vec<NodeAddress>, LockError> {
    let read = |host| one(host, default_port);
    hosts.split(',').map(read).collect()
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`.
pub(super) fn one(text: &str, default_port: u16) -> Result<NodeAddress, LockError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => in_brackets(bracketed)?,
        None => by_name(text)?,
    };
    if host == "0.0.0.0" || host == "::" {
        return Err(advised(
            format!("`{host}` in the lock URL is no address of a server"),
            "a server listens there on all its addresses; name one of them, such as 127.0.0.1",
        ));
    }
    let port = self::port(port.unwrap_or_default(), default_port)?;
    Ok(NodeAddress::Tcp(host, port))
}

/// Returns the places of two equal addresses, counted from 1.
pub(super) fn repeated(nodes: &[NodeAddress]) -> Option<(usize, usize)> {
    let mut seen = Vec::with_capacity(nodes.len());
    for (at, node) in nodes.iter().enumerate() {
        // The letters of a host name have no case.
        let node = node.to_string().to_ascii_lowercase();
        if let Some(first) = seen.iter().position(|other| *other == node) {
            return Some((first + 1, at + 1));
        }
        seen.push(node);
    }
    None
}

/// Reads the rest of `[address]:port`, without the first bracket.
fn in_brackets(text: &str) -> Result<(String, Option<&str>), LockError> {
    let Some((address, after)) = text.split_once(']') else {
        return Err(invalid("a `[` in the lock URL has no `]`"));
    };
    let Ok(address) = address.parse::<Ipv6Addr>() else {
        return Err(invalid("the brackets in the lock URL hold no IPv6 address"));
    };
    match after.strip_prefix(':') {
        Some(port) => Ok((address.to_string(), Some(port))),
        None if after.is_empty() => Ok((address.to_string(), None)),
        None => Err(invalid("a `]` in the lock URL is not followed by a port")),
    }
}

fn by_name(text: &str) -> Result<(String, Option<&str>), LockError> {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    if port.is_some_and(|port| port.contains(':')) {
        return Err(advised(
            "a host in the lock URL has more than one `:`",
            "write an IPv6 address in brackets, such as redis://[::1]:6379",
        ));
    }
    if host.is_empty() {
        return Err(invalid("the lock URL lacks a host"));
    }
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !host.bytes().all(is_of_name) {
        return Err(invalid(
            "a host in the lock URL has a character that no host name has",
        ));
    }
    Ok((host.to_owned(), port))
}

/// Reads a port. `host:` is a host without one.
fn port(text: &str, default_port: u16) -> Result<u16, LockError> {
    if text.is_empty() {
        return Ok(default_port);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if is_number && port != 0 => Ok(port),
        _ => Err(invalid(
            "a port in the lock URL is no number from 1 to 65535",
        )),
    }
}
