//! The commands of operators in a cluster.

use std::sync::Arc;
use std::time::Duration;

use super::call::RoutedCall;
use super::{ClusterBackend, routed};
use crate::backend::Boxed;
use crate::backend::admin::{AdminBackend, ForceRequest, InspectDetail, ListReply, ListRequest};
use crate::error::LockError;
use lock_protocol::inspection::{InspectReply, ListCursor, ReadTime};
use lock_protocol::key::LockKey;
use lock_protocol::lock_state::ForceReply;

impl AdminBackend for ClusterBackend {
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>> {
        Box::pin(async move {
            let call = RoutedCall::begin(&self.nodes, key, limit);
            routed!(call, |node, left| {
                let admin: &dyn AdminBackend = &*node.client;
                admin.inspect(key, detail, left)
            })
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<(ReadTime, ForceReply), LockError>> {
        Box::pin(async move {
            let call = RoutedCall::begin_grant(&self.nodes, &request.key, limit);
            routed!(call, |node, left| {
                let admin: &dyn AdminBackend = &*node.client;
                admin.force_release(request, left)
            })
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ListReply, LockError>> {
        Box::pin(self.list_nodes(request, limit))
    }
}

impl ClusterBackend {
    /// Lists the locks of one node after the other, in the order of their addresses.
    async fn list_nodes(
        &self,
        request: &ListRequest,
        limit: Duration,
    ) -> Result<ListReply, LockError> {
        let (mut index, mut within) = match request.after.clone() {
            Some(ListCursor::Node { index, within }) => (index, within.map(|within| *within)),
            _ => (0, None),
        };
        let owners = self.nodes.owners();
        let mut listed = ListReply {
            locks: Vec::new(),
            next: None,
            scanned: 0,
        };
        while let Some(node) = owners.get(index) {
            let part = ListRequest {
                limit: request.limit - listed.locks.len(),
                after: within.take(),
                ..request.clone()
            };
            let admin: &dyn AdminBackend = &*Arc::clone(&node.server.client);
            let reply = admin.list(&part, limit).await?;
            listed.locks.extend(reply.locks);
            listed.scanned += reply.scanned;
            let has_more = reply.next.is_some();
            within = reply.next;
            if !has_more {
                index += 1;
            }
            let is_full = listed.locks.len() >= request.limit || has_more;
            if is_full && index < owners.len() {
                listed.next = Some(ListCursor::Node {
                    index,
                    within: within.map(Box::new),
                });
                break;
            }
        }
        Ok(listed)
    }
}
