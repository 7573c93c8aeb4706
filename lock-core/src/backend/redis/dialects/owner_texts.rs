//! The text that identifies a holder, and the renewal of locks that have it.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Renewal;
use crate::backend::redis::client::RedisClient;
use crate::backend::redis::reply::{self, ScriptReply};
use crate::backend::redis::scripts::Script;
use crate::error::LockError;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::ttl::whole_millis;
use lock_protocol::wire::PlainOwner;

/// Writes the holders of a manager.
#[derive(Clone)]
pub(super) struct OwnerTexts {
    label: Arc<str>,
}

impl OwnerTexts {
    pub(super) fn new(label: Arc<str>) -> Self {
        Self { label }
    }

    /// Returns the text that only this acquisition writes.
    pub(super) fn of(&self, owner_id: OwnerId) -> String {
        let label = self.label.to_string();
        PlainOwner { owner_id, label }.to_string()
    }

    /// Returns the text of a key that stays locked after its release.
    pub(super) fn without_owner(&self) -> String {
        self.of(OwnerId::nil())
    }

    /// Renews by a script that compares the holder.
    pub(super) async fn renew(
        &self,
        client: &RedisClient,
        script: &Script,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let args = |renewal: &Renewal, _| {
            let ttl = whole_millis(renewal.ttl);
            vec![self.of(renewal.owner_id), ttl.to_string()]
        };
        let read = |renewal: &Renewal, _, sent, reply| {
            let ScriptReply { value, server_us } = reply::dialect_renew(reply)?;
            let value = RenewOutcome::unless_lost(value, renewal.ttl, sent);
            Ok(ScriptReply { value, server_us })
        };
        client.renew_each(script, renewals, args, read, limit).await
    }
}
