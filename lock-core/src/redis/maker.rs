//! Makes the stores of single servers.

use std::sync::Arc;

use super::access::{Access, DeploymentKind};
use super::client::RedisClient;
use super::confirmer::Confirmer;
use super::connector::Connector;
use super::credentials::CredentialSource;
use super::location::Location;
#[cfg(feature = "cluster")]
use super::membership::Membership;
#[cfg(feature = "cluster")]
use super::node::Node;
use super::place::NodeAddress;
use super::single::RedisStore;
use crate::config::ManagerSettings;
use crate::store::{Dialects, NotificationSink, StoreTraits};
use crate::telemetry::Reporter;
use lock_protocol::codec::deadline::SharedDeadlines;
use lock_protocol::dialect::InvalidDialectReason;
use lock_protocol::scripts;

/// The stores share the login, the settings and the sinks.
pub(super) struct NodeMaker {
    pub(super) access: Arc<Access>,
    pub(super) settings: ManagerSettings,
    pub(super) notifications: Arc<dyn NotificationSink>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) deadlines: SharedDeadlines,
}

impl NodeMaker {
    /// Makes the store of the server at an address, whose name may come to lead to another server. It has no connection
    /// yet.
    pub(super) fn make_single(&self, address: &NodeAddress) -> RedisStore {
        let location = Location::of(address, self.settings.resolve_interval, &self.reporter);
        self.at(&location, |it| it)
    }

    /// Makes the stores of a node of a cluster: the second one serves keys that are on their way to the node. They have no
    /// connection yet.
    #[cfg(feature = "cluster")]
    pub(super) fn make_node(
        &self,
        address: &NodeAddress,
        aliases: &[NodeAddress],
        membership: &Arc<Membership>,
    ) -> [RedisStore; 2] {
        let changes: [fn(Connector) -> Connector; 2] = [|it| it, Connector::asking];
        changes.map(|change| {
            let node = Node::in_cluster(address.clone(), aliases.to_vec(), membership);
            self.at(&Location::Fixed(Arc::new(node)), change)
        })
    }

    pub(super) fn at(&self, location: &Location, change: fn(Connector) -> Connector) -> RedisStore {
        let settings = &self.settings;
        let is_sharded = self.access.kind == DeploymentKind::Cluster;
        let connector = |scripts| {
            let (access, reporter) = (Arc::clone(&self.access), Arc::clone(&self.reporter));
            let timeout = settings.command_timeout;
            let location = location.clone();
            change(Connector::new(access, location, timeout, scripts, reporter))
        };
        let mut scripts = scripts::of(settings.dialect, is_sharded);
        if self.access.kind == DeploymentKind::Quorum {
            scripts.push(&scripts::RAISE);
        }
        let client = Arc::new(RedisClient::new(
            [
                connector(scripts).for_dialect(settings.dialect),
                connector(Vec::new()),
            ],
            settings,
            self.deadlines.clone(),
            Arc::clone(&self.notifications),
            Arc::clone(&self.reporter),
        ));
        let confirmer = settings.confirm.map(|confirm| {
            let connector = connector(vec![&scripts::RENEW]);
            Confirmer::new(Arc::clone(&client), connector, confirm)
        });
        RedisStore {
            client,
            confirmer,
            traits: self.traits(),
        }
    }

    /// Returns what a store of these servers can do.
    pub(super) fn traits(&self) -> StoreTraits {
        let confirm = self.settings.confirm;
        StoreTraits {
            confirms_grants: confirm.is_some(),
            dialects: match confirm {
                Some(_) => Dialects::Some {
                    has: |dialect| dialect.scheme().is_none(),
                    others: InvalidDialectReason::Confirmed,
                },
                None => Dialects::All,
            },
            ..StoreTraits::SERVER
        }
    }

    pub(super) fn credentials(&self) -> Option<Arc<CredentialSource>> {
        self.access.credentials.clone()
    }

    pub(super) fn has_tls(&self) -> bool {
        self.access.tls.is_some()
    }
}
