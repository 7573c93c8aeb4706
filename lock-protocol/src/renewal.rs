//! A lease to renew.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::key::LockKey;
use crate::lease::LeaseConfig;
use crate::owner_id::OwnerId;

/// A lease to renew.
#[derive(Clone, Debug)]
pub struct Renewal {
    pub key: LockKey,
    pub owner_id: OwnerId,
    pub ttl: Duration,
    pub lease_config: LeaseConfig,
    /// The label of the acquire. A member of a shared lock has it in its text.
    pub label: Arc<str>,
    /// When the command was sent that confirmed the lease last.
    pub confirmed_at: Moment,
}
