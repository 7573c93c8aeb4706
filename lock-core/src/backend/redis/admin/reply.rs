//! Reads the replies of the scripts of operators.

use redis::Value;

use super::super::reply::{Parts, ScriptReply, unexpected};
use crate::error::LockError;
use lock_protocol::inspection::{
    INSPECTED_MEMBERS, InspectReply, KeyContent, ReadTime, SeenMember, SeenMembers,
};
use lock_protocol::lock_state::{ForceGrant, ForceReply, ForceVerdict};

/// Reads the reply of the script that inspects a lock.
pub(crate) fn inspect(reply: Value) -> Result<ScriptReply<InspectReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let total = parts.number()?;
    let mut members = SeenMembers::default();
    let content = match verdict.as_str() {
        "free" => KeyContent::Free,
        "shared" => {
            let found = parts.found_text()?;
            members.total = parts.number()?;
            // The reply comes from a server, which may send any number.
            let shown = parts.number()?;
            for _ in 0..shown.min(INSPECTED_MEMBERS as u64) {
                members.first.push(SeenMember {
                    text: parts.text()?,
                    remaining_ms: Some(parts.number()?),
                });
            }
            KeyContent::Text(found)
        }
        "held" => KeyContent::Text(parts.found_text()?),
        "foreign" => KeyContent::OtherType {
            kind: parts.text()?,
            digest: parts.text()?,
        },
        _ => return Err(unexpected()),
    };
    let value = InspectReply {
        time: ReadTime::of_server(server_us),
        content,
        total,
        entries: parts.texts()?,
        members,
    };
    Ok(ScriptReply { value, server_us })
}

/// Reads the reply of the script that inspects a lock of Redisson.
pub(crate) fn inspect_redisson(reply: Value) -> Result<ScriptReply<InspectReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let content = match verdict.as_str() {
        "free" => KeyContent::Free,
        "held" => KeyContent::Text(parts.found_text()?),
        "foreign" => KeyContent::OtherType {
            kind: parts.text()?,
            digest: String::new(),
        },
        _ => return Err(unexpected()),
    };
    let value = InspectReply {
        content,
        ..InspectReply::of_nothing(ReadTime::of_server(server_us))
    };
    Ok(ScriptReply { value, server_us })
}

/// Reads the reply to an operator's release.
pub(crate) fn force_release(reply: Value) -> Result<ScriptReply<ForceReply>, LockError> {
    read_force_release(reply, "string")
}

/// Reads the reply to an operator's release of a lock of Redisson.
pub(crate) fn force_redisson(reply: Value) -> Result<ScriptReply<ForceReply>, LockError> {
    read_force_release(reply, "lock")
}

/// `lock_type` is the type of a key that is a lock.
fn read_force_release(reply: Value, lock_type: &str) -> Result<ScriptReply<ForceReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let found = parts.text()?;
    let text = parts.found_text()?;
    let locked_ms = text.holder.remaining_ms.unwrap_or(0);
    let content = match found.as_str() {
        "none" => KeyContent::Free,
        found if found == lock_type => KeyContent::Text(text),
        _ => KeyContent::OtherType {
            kind: found,
            digest: String::new(),
        },
    };
    let verdict = match verdict.as_str() {
        "free" => ForceVerdict::Free,
        "changed" => ForceVerdict::Changed,
        "endless" => ForceVerdict::Endless,
        "foreign" => ForceVerdict::Foreign {
            digest: parts.text()?,
        },
        "revoked" => ForceVerdict::Revoked { locked_ms },
        "freed" => ForceVerdict::Freed(match parts.text()?.as_str() {
            "none" => ForceGrant::None,
            "waiter" => ForceGrant::Waiter,
            "more" => ForceGrant::More,
            _ => return Err(unexpected()),
        }),
        _ => return Err(unexpected()),
    };
    let value = ForceReply { verdict, content };
    Ok(ScriptReply { value, server_us })
}
