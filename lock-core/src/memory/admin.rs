//! What operators do with the locks in memory.

use std::time::SystemTime;

use super::{MemoryStore, endless_ms, server_ms};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::glob;
use lock_protocol::inspection::{
    InspectReply, KeyContent, ListedLock, ReadTime, ScanPart, ScanPlace, ScanRequest,
};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lock_state::{
    Env, ForceCommand, ForceGrant, ForceMode, ForceReply, ForceRequest, ForceVerdict, LockState,
};
use lock_protocol::ttl::whole_millis;

impl MemoryStore {
    pub(super) fn force_release_now(&self, request: &ForceRequest) -> (ReadTime, ForceReply) {
        let now = Clock::Tokio.now();
        let force = |mode| {
            move |lock_state: &mut LockState, env: &Env<'_>, floor_us| {
                let command = ForceCommand {
                    mode,
                    floor_us,
                    lead_us: 0,
                    label: &request.label,
                    token: request.token.filter(|_| mode != ForceMode::Grant),
                    seen: request.seen.as_ref().filter(|_| mode != ForceMode::Grant),
                    longest_ms: whole_millis(request.longest),
                };
                lock_state.force_release(&command, env)
            }
        };
        let key = request.key.text();
        let mut reply = self.command(&key, now, force(request.mode));
        while reply.verdict == ForceVerdict::Freed(ForceGrant::More) {
            reply.verdict = self.command(&key, now, force(ForceMode::Grant)).verdict;
        }
        without_endless(&mut reply.content);
        (read_at(now), reply)
    }

    pub(super) fn scan_now(&self, request: &ScanRequest) -> ScanPart {
        let now = Clock::Tokio.now();
        let after = match &request.at {
            Some(ScanPlace::After(name)) => name.as_str(),
            Some(ScanPlace::Server { .. } | ScanPlace::Cursor { .. }) | None => "",
        };
        let state = self.state.lock();
        let mut scanned = 0;
        let mut names = Vec::new();
        for key in state.locks.keys() {
            scanned += 1;
            let name = key.strip_prefix(&*request.prefix);
            names
                .extend(name.filter(|name| *name > after && glob::matches(&request.pattern, name)));
        }
        names.sort_unstable();
        let mut locks = Vec::new();
        let mut next = None;
        for name in names {
            if locks.len() == request.limit {
                next = locks.last().map(last_of);
                break;
            }
            let name = LockName::from(name);
            let Ok(key) = LockKey::new(&request.prefix, &name) else {
                continue;
            };
            let mut found = inspected(state.locks.get(key.as_str()), now);
            found.entries = Vec::new();
            found.members.first = Vec::new();
            if found.content != KeyContent::Free {
                locks.push(ListedLock { name, key, found });
            }
        }
        ScanPart {
            locks,
            next,
            scanned,
        }
    }

    pub(super) fn inspect_now(&self, key: &LockKey) -> InspectReply {
        let now = Clock::Tokio.now();
        let state = self.state.lock();
        inspected(state.locks.get(key.as_str()), now)
    }
}

fn read_at(now: Moment) -> ReadTime {
    ReadTime {
        server_ms: server_ms(now),
        system: SystemTime::now(),
    }
}

/// Reads a lock state.
fn inspected(lock_state: Option<&LockState>, now: Moment) -> InspectReply {
    let time = read_at(now);
    let mut reply = lock_state.map_or_else(
        || InspectReply::of_nothing(time),
        |lock_state| lock_state.inspect(time),
    );
    without_endless(&mut reply.content);
    for member in &mut reply.members.first {
        member.remaining_ms = member.remaining_ms.filter(|left| *left < endless_ms());
    }
    reply
}

/// Removes the remaining time of a lock that lives as long as its guard.
fn without_endless(content: &mut KeyContent) {
    if let KeyContent::Text(found) = content {
        let remaining = &mut found.holder.remaining_ms;
        *remaining = remaining.filter(|left| *left < endless_ms());
    }
}

fn last_of(last: &ListedLock) -> ScanPlace {
    ScanPlace::After(last.name.as_str().to_owned())
}
