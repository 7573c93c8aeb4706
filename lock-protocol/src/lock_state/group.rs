//! What several holders of one key have together: a group of readers, or of permits out of one number.

use std::collections::BTreeMap;

use super::queue::NextOwner;
use super::{Expiring, KeyValue, LockState, ReleaseCommand};
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::{Group, Kind};
use crate::owner_id::OwnerId;
use crate::wire::{GroupValue, Member, Ownership};

/// A shared key outlives its release by at least this time, while members are left. Redis deletes a key at an
/// end that is not in the future, and a member is alive up to its end: without these milliseconds, a release in
/// the millisecond of another member's end would free the key while that member is alive.
const AFTER_RELEASE_MS: u64 = 10;

/// What a release made free, as the first waiter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    Nothing,
    /// The key ends at another time than before.
    End,
    Key,
}

/// Returns the members of a holder.
fn members_of(owner_id: OwnerId, label: &str, kind: Kind) -> impl Iterator<Item = Member> {
    (1..=kind.weight()).map(move |number| Member {
        owner_id,
        number,
        ownership: Ownership::Owned,
        label: label.to_owned(),
    })
}

impl LockState {
    fn group(&self) -> Option<&GroupValue> {
        match &self.key {
            Some(Expiring {
                value: KeyValue::Shared(group),
                ..
            }) => Some(group),
            _ => None,
        }
    }

    /// Returns how many members the key has.
    pub(super) fn members(&self) -> usize {
        self.holders
            .as_ref()
            .map_or(0, |holders| holders.value.len())
    }

    /// Returns the end of the lease that ends first.
    pub(super) fn first_end(&self) -> Option<ServerMs> {
        self.holders.as_ref()?.value.values().min().copied()
    }

    /// Returns whether waiters may get this key now: it is free, or shared by a group of this version.
    pub(super) fn may_grant(&self) -> bool {
        self.key.is_none() || self.group().is_some()
    }

    /// Returns whether a caller of this kind could be admitted, if there were no waiters and enough permits.
    pub(super) fn may_admit(&self, kind: Kind) -> bool {
        match self.group() {
            Some(shared) => kind.group() == Some(shared.group),
            None => self.key.is_none(),
        }
    }

    /// Returns whether a holder of this kind can be admitted beside the present ones.
    pub(super) fn fits(&self, kind: Kind) -> bool {
        let Some(shared) = self.group() else {
            return self.key.is_none();
        };
        if kind.group() != Some(shared.group) {
            return false;
        }
        let used = self.members().saturating_add(kind.weight() as usize);
        shared
            .group
            .limit()
            .is_none_or(|limit| used <= limit as usize)
    }

    /// Removes members whose leases have ended. A key without members is free.
    pub(super) fn settle(&mut self, now_ms: ServerMs) {
        if self.group().is_some() {
            self.remove_dead_members(now_ms);
            self.free_without_members();
        }
    }

    fn remove_dead_members(&mut self, now_ms: ServerMs) {
        if let Some(holders) = &mut self.holders {
            holders.value.retain(|_, end| now_ms <= *end);
        }
    }

    /// Frees a shared key that has no members. Returns whether it did.
    fn free_without_members(&mut self) -> bool {
        let is_free = self.members() == 0;
        if is_free {
            self.key = None;
            self.holders = None;
        }
        is_free
    }

    /// Makes the new owner the first holder of a group. Members of an earlier group have no meaning any more.
    pub(super) fn found(
        &mut self,
        group: Group,
        to: &NextOwner,
        token: FencingToken,
        now_ms: ServerMs,
    ) {
        let end = now_ms.plus(to.lease_ms);
        let members = members_of(to.owner_id, &to.label, to.kind);
        self.holders = Some(Expiring {
            value: members.map(|member| (member, end)).collect(),
            expires_ms: Some(end),
        });
        self.key = Some(Expiring {
            value: KeyValue::Shared(GroupValue {
                group,
                token,
                since_ms: now_ms,
                label: to.label.to_string(),
            }),
            expires_ms: Some(end),
        });
    }

    /// Adds the new owner to the group that holds the key, and returns the group's token. Returns `None` if the
    /// key is free.
    pub(super) fn join(&mut self, to: &NextOwner, now_ms: ServerMs) -> Option<FencingToken> {
        let token = self.group()?.token;
        let end = now_ms.plus(to.lease_ms);
        let holders = self.holders.get_or_insert_with(|| Expiring {
            value: BTreeMap::new(),
            expires_ms: None,
        });
        for member in members_of(to.owner_id, &to.label, to.kind) {
            // A notification of an earlier grant of this owner id may have had a later end.
            let known = holders.value.entry(member).or_insert(end);
            *known = end.max(*known);
        }
        self.raise_ends(end);
        Some(token)
    }

    /// Raises the leases of the caller's living members to at least the ttl. Returns the group's token and the
    /// rest of the lease. Returns `None` if the caller is no holder of a shared lock.
    pub(super) fn raise_members(
        &mut self,
        (owner_id, label, kind): (OwnerId, &str, Kind),
        ttl_ms: u64,
        now_ms: ServerMs,
    ) -> Option<(FencingToken, u64)> {
        let token = self.group()?.token;
        let mut own = members_of(owner_id, label, kind);
        let holders = self.holders.as_mut()?;
        let first = holders.value.get(&own.next()?).copied()?;
        if now_ms > first {
            return None;
        }
        let remaining_ms = first.since(now_ms);
        if remaining_ms >= ttl_ms {
            return Some((token, remaining_ms));
        }
        let end = now_ms.plus(ttl_ms);
        for member in members_of(owner_id, label, kind) {
            if let Some(known) = holders.value.get_mut(&member) {
                *known = end.max(*known);
            }
        }
        self.raise_ends(end);
        Some((token, ttl_ms))
    }

    /// Raises the ends of the key and of the members' key.
    fn raise_ends(&mut self, end: ServerMs) {
        fn raise<T>(slot: &mut Option<Expiring<T>>, end: ServerMs) {
            if let Some(Expiring {
                expires_ms: Some(known),
                ..
            }) = slot
            {
                *known = end.max(*known);
            }
        }
        raise(&mut self.key, end);
        raise(&mut self.holders, end);
    }

    /// Releases the caller's members of a shared lock. Returns whether it was a holder, and what is free now.
    pub(super) fn release_members(
        &mut self,
        command: &ReleaseCommand<'_>,
        now_ms: ServerMs,
    ) -> (bool, Freed) {
        if self.group().is_none() {
            return (false, Freed::Nothing);
        }
        self.remove_dead_members(now_ms);
        let was_owner = self.remove_members(command, now_ms);
        if self.free_without_members() {
            return (was_owner, Freed::Key);
        }
        if !was_owner {
            return (false, Freed::Nothing);
        }
        let last = self
            .holders
            .iter()
            .flat_map(|holders| holders.value.values())
            .max();
        let soonest = now_ms.plus(AFTER_RELEASE_MS);
        let end = last.map_or(soonest, |last| soonest.max(*last));
        let known = self.key.as_ref().and_then(|key| key.expires_ms);
        if let Some(key) = &mut self.key {
            key.expires_ms = Some(end);
        }
        if let Some(holders) = &mut self.holders {
            holders.expires_ms = Some(end);
        }
        let is_earlier = known.is_none_or(|known| end < known);
        // A kept permit may end before those that the head of the queue knows of.
        let freed = if is_earlier || command.min_hold_ms > 0 {
            Freed::End
        } else {
            Freed::Nothing
        };
        (true, freed)
    }

    /// Removes the caller's members. A `min_hold` keeps them without an owner. Returns whether there were any.
    fn remove_members(&mut self, command: &ReleaseCommand<'_>, now_ms: ServerMs) -> bool {
        let Some(holders) = self.holders.as_mut().filter(|_| command.kind.is_shared()) else {
            return false;
        };
        let own = || members_of(command.owner_id, command.label, command.kind);
        let before = holders.value.len();
        for member in own() {
            holders.value.remove(&member);
        }
        let was_owner = holders.value.len() < before;
        if was_owner && command.min_hold_ms > 0 {
            let end = now_ms.plus(command.min_hold_ms);
            for member in own() {
                let kept = Member {
                    ownership: Ownership::Kept,
                    ..member
                };
                let known = holders.value.entry(kept).or_insert(end);
                *known = end.max(*known);
            }
        }
        was_owner
    }
}
