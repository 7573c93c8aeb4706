//! What holds for the keys of a shared lock after each step. The server's keys are compared with those of the state
//! machine, so it is enough to look at the latter.

use super::*;

use lock_protocol::kind::Group;
use lock_protocol::lock_state::LockState;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::wire::{GroupValue, Member, Ownership};

/// A release keeps the key up to this long after the last lease.
const AFTER_LAST_LEASE_MS: u64 = 10;

/// A shared key, its end and its members.
struct Shared<'a> {
    group: &'a GroupValue,
    ends_ms: Option<ServerMs>,
    members: Vec<(&'a Member, ServerMs)>,
    members_end_ms: Option<ServerMs>,
}

impl<'a> Shared<'a> {
    fn of(state: &'a LockState) -> Option<Self> {
        let key = state.key.as_ref()?;
        let KeyValue::Shared(group) = &key.value else {
            return None;
        };
        let holders = state.holders.iter();
        let members = holders.flat_map(|holders| &holders.value);
        Some(Self {
            group,
            ends_ms: key.expires_ms,
            members: members.map(|(member, end)| (member, *end)).collect(),
            members_end_ms: state.holders.as_ref().and_then(|it| it.expires_ms),
        })
    }

    fn end_of(&self, member: &Member) -> Option<ServerMs> {
        let mut known = self.members.iter();
        known.find_map(|(known, end)| (*known == member).then_some(*end))
    }
}

/// Checks the state after a step with these notifications.
pub(super) fn check(
    before: &LockState,
    step: &Step,
    notifications: &[WireNotification],
    after: &LockState,
    now_ms: ServerMs,
) -> Result<(), TestCaseError> {
    let Some(shared) = Shared::of(after) else {
        return Ok(());
    };
    lives_as_long_as_its_members(&shared)?;
    has_room_for_its_members(&shared, now_ms)?;
    let Some(earlier) = Shared::of(before) else {
        return Ok(());
    };
    if earlier.group.token == shared.group.token {
        moves_no_end_down(&earlier, step, &shared)?;
        ends_soon_after_a_release(&earlier, step, &shared, now_ms)
    } else {
        let queue = before.queue.iter().flat_map(|queue| queue.value.values());
        let queued: Vec<OwnerId> = queue.map(|entry| entry.owner_id).collect();
        begins_without_old_members(&earlier, step, &queued, notifications, &shared)
    }
}

/// The key ends with the last member or later, and so do the members. A foreign client may have removed the expiry.
fn lives_as_long_as_its_members(shared: &Shared<'_>) -> Result<(), TestCaseError> {
    let Some(ends_ms) = shared.ends_ms else {
        return Ok(());
    };
    for (member, end) in &shared.members {
        prop_assert!(*end <= ends_ms, "{member} outlives the key");
    }
    if !shared.members.is_empty() {
        prop_assert_eq!(shared.members_end_ms, Some(ends_ms));
    }
    Ok(())
}

/// Never more owned members than permits, without those that have ended. The random releases may keep more permits
/// than their owner had, which no client does.
fn has_room_for_its_members(shared: &Shared<'_>, now_ms: ServerMs) -> Result<(), TestCaseError> {
    let members = shared.members.iter();
    let alive = members.filter(|(it, end)| it.ownership == Ownership::Owned && now_ms <= *end);
    let alive = alive.count();
    if let Group::Permits(of) = shared.group.group {
        prop_assert!(alive <= of as usize, "{alive} of {of} permits");
    }
    Ok(())
}

/// Only its own release lowers the end of a member.
fn moves_no_end_down(
    before: &Shared<'_>,
    step: &Step,
    after: &Shared<'_>,
) -> Result<(), TestCaseError> {
    for (member, end) in &after.members {
        let own_release =
            matches!(step, Step::Release { who, .. } if owner_id(*who) == member.owner_id);
        let Some(earlier) = before.end_of(member) else {
            continue;
        };
        prop_assert!(own_release || earlier <= *end, "the end of {member}");
    }
    Ok(())
}

/// A release that freed a member lowers the end of the key to that of the last other one.
fn ends_soon_after_a_release(
    before: &Shared<'_>,
    step: &Step,
    after: &Shared<'_>,
    now_ms: ServerMs,
) -> Result<(), TestCaseError> {
    let Step::Release { who, .. } = step else {
        return Ok(());
    };
    let of_caller = |shared: &Shared<'_>| {
        let members = shared.members.iter();
        members
            .filter(|(it, _)| it.owner_id == owner_id(*who))
            .count()
    };
    let (Some(ends_ms), Some(last)) = (
        after.ends_ms,
        after.members.iter().map(|(_, end)| *end).max(),
    ) else {
        return Ok(());
    };
    if of_caller(after) < of_caller(before) {
        let latest = last.max(now_ms.plus(AFTER_LAST_LEASE_MS));
        prop_assert!(ends_ms <= latest, "the key ends {}", ends_ms.since(latest));
    }
    Ok(())
}

/// A new group has the members that this step granted, and no other. A waiter that polls gets no notification: it may
/// be a member of the earlier group, and be granted again by another entry.
fn begins_without_old_members(
    before: &Shared<'_>,
    step: &Step,
    queued: &[OwnerId],
    notifications: &[WireNotification],
    after: &Shared<'_>,
) -> Result<(), TestCaseError> {
    let caller = match step {
        Step::Acquire { who, .. } => Some(owner_id(*who)),
        _ => None,
    };
    let granted: Vec<OwnerId> = notifications.iter().filter_map(granted_to).collect();
    for (member, _) in &after.members {
        let is_new = caller == Some(member.owner_id)
            || granted.contains(&member.owner_id)
            || queued.contains(&member.owner_id);
        prop_assert!(is_new || before.end_of(member).is_none(), "{member} is old");
    }
    Ok(())
}

/// Returns the owner id of a grant.
fn granted_to(notification: &WireNotification) -> Option<OwnerId> {
    match notification {
        WireNotification::Grant { owner_id, .. } => Some(*owner_id),
        WireNotification::Head { .. } => None,
    }
}
