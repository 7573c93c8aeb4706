//! What an operator's release does with a lock state.

use std::time::Duration;

use super::{Env, Expiring, KeyValue, LockState};
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::inspection::{KeyContent, SeenKey};
use crate::key::LockKey;
use crate::owner_id::OwnerId;
use crate::wire::{OwnerValue, WireNotification};

/// What an operator's release does.
#[derive(Clone, Debug)]
pub struct ForceRequest {
    pub key: LockKey,
    pub mode: ForceMode,
    /// The label of a revoked key.
    pub label: String,
    /// The token that the lock must have; `None` for any.
    pub token: Option<FencingToken>,
    /// What the key must hold; `None` for anything.
    pub seen: Option<SeenKey>,
    pub foreign: ForeignValues,
    /// The longest lease of a revoked key, where locks may have an endless one.
    pub longest: Duration,
}

/// What an operator's release does with the value of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignValues {
    Keep,
    Remove,
}

/// How an operator's release treats the holder's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceMode {
    /// The key stays locked, without an owner, until the lease ends. A key whose work is done is free at once.
    Revoke,
    /// The key is free at once, for the next waiter.
    Now,
    /// Only grants a free key: continues a release that met more dead waiters than one call removes.
    Grant,
}

/// The arguments of an operator's release.
#[derive(Clone, Debug)]
pub struct ForceCommand<'a> {
    pub mode: ForceMode,
    pub floor_us: u64,
    pub lead_us: u64,
    /// The label of a revoked key.
    pub label: &'a str,
    /// The token that the lock must have; `None` for any.
    pub token: Option<FencingToken>,
    /// What the key must hold; `None` for anything.
    pub seen: Option<&'a SeenKey>,
    /// The longest lease of a revoked key. In memory, a lock may have an endless one.
    pub longest_ms: u64,
}

/// The reply to an operator's release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceReply {
    pub verdict: ForceVerdict,
    /// The key before the release.
    pub content: KeyContent,
}

/// What an operator's release did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForceVerdict {
    Free,
    /// The lock has another token, or the key holds something else than was seen.
    Changed,
    /// The key has no expiry, so a revocation would never end.
    Endless,
    /// Another client wrote the key. The digest identifies the value; it may be empty.
    Foreign {
        digest: String,
    },
    Revoked {
        locked_ms: u64,
    },
    Freed(ForceGrant),
}

/// Which waiter got a freed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceGrant {
    None,
    Waiter,
    /// All entries that the call scanned were dead: repeat it in the mode [`ForceMode::Grant`].
    More,
}

impl LockState {
    pub fn force_release(
        &mut self,
        command: &ForceCommand<'_>,
        env: &Env<'_>,
    ) -> (ForceReply, Vec<WireNotification>) {
        let now_ms = env.now_ms();
        self.expire(now_ms);
        let content = self.content(now_ms);
        if command.seen.is_some_and(|seen| !seen.admits(&content)) {
            let verdict = ForceVerdict::Changed;
            return (ForceReply { verdict, content }, Vec::new());
        }
        if let Some(verdict) = self.forced(command, now_ms) {
            return (ForceReply { verdict, content }, Vec::new());
        }
        self.key = None;
        let (granted, notifications) = self.grant_forced(command, env);
        let verdict = ForceVerdict::Freed(granted);
        (ForceReply { verdict, content }, notifications)
    }

    /// Revokes the key or refuses the command. Returns `None` if the key is to be freed.
    fn forced(&mut self, command: &ForceCommand<'_>, now_ms: ServerMs) -> Option<ForceVerdict> {
        let token = match &self.key {
            Some(Expiring {
                value: KeyValue::Native(owner),
                ..
            }) => Some(owner.token),
            Some(Expiring {
                value: KeyValue::Shared(group),
                ..
            }) => Some(group.token),
            _ => None,
        };
        if command.token.is_some() && command.token != token {
            return Some(ForceVerdict::Changed);
        }
        let to_none = ForceVerdict::Freed(ForceGrant::None);
        match (&mut self.key, command.mode) {
            (Some(_), ForceMode::Grant) => Some(to_none),
            (None, ForceMode::Grant | ForceMode::Now) => None,
            (None, ForceMode::Revoke) => Some(ForceVerdict::Free),
            (
                Some(Expiring {
                    value: KeyValue::Native(owner),
                    expires_ms,
                }),
                mode,
            ) => {
                // Nobody works under a lock whose work is done, so there is nothing to wait for.
                if mode == ForceMode::Now || owner.owner_id == OwnerId::done() {
                    return None;
                }
                let Some(end) = expires_ms else {
                    return Some(ForceVerdict::Endless);
                };
                // A key without an owner keeps its end: that of an earlier revocation or a `min_hold`.
                if owner.owner_id != OwnerId::nil() {
                    *end = (*end).min(now_ms.plus(command.longest_ms));
                    owner.owner_id = OwnerId::nil();
                    owner.since_ms = now_ms;
                    command.label.clone_into(&mut owner.label);
                }
                let locked_ms = end.since(now_ms);
                Some(ForceVerdict::Revoked { locked_ms })
            }
            (
                Some(Expiring {
                    value: KeyValue::Shared(group),
                    expires_ms,
                }),
                mode,
            ) => {
                if mode == ForceMode::Now {
                    return None;
                }
                let Some(end) = *expires_ms else {
                    return Some(ForceVerdict::Endless);
                };
                let end = end.min(now_ms.plus(command.longest_ms));
                // Without a group, the renewals of all holders find that they no longer hold the key.
                self.key = Some(Expiring {
                    value: KeyValue::Native(OwnerValue {
                        owner_id: OwnerId::nil(),
                        token: group.token,
                        since_ms: now_ms,
                        label: command.label.to_owned(),
                    }),
                    expires_ms: Some(end),
                });
                let locked_ms = end.since(now_ms);
                Some(ForceVerdict::Revoked { locked_ms })
            }
            (Some(_), _) => Some(ForceVerdict::Foreign {
                digest: String::new(),
            }),
        }
    }

    fn grant_forced(
        &mut self,
        command: &ForceCommand<'_>,
        env: &Env<'_>,
    ) -> (ForceGrant, Vec<WireNotification>) {
        if self.queue.is_none() {
            return (ForceGrant::None, Vec::new());
        }
        let mut scan = self.grant_next(None, (command.floor_us, command.lead_us), env);
        scan.head_changed = true;
        let notifications = self.notifications(&scan, env);
        let granted = match scan.granted.as_slice() {
            [_, ..] => ForceGrant::Waiter,
            [] if scan.more => ForceGrant::More,
            [] => ForceGrant::None,
        };
        (granted, notifications)
    }
}
