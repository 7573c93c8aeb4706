//! The contract of every store, over TLS, in RESP2, behind Sentinels, in a cluster and at a quorum.
//!
//! The tests share one deployment of each kind, and have a prefix each.

use std::sync::LazyLock;
use std::time::Duration;

use lock_core::LockManagerBuilder;
use test_support::{Authority, Certificate, RedisCluster, RedisServer, SentinelService};
use topologies::own_prefix;

mod lazy;

#[path = "../../conformance/suite/mod.rs"]
#[allow(dead_code, reason = "the other test programs need the rest")]
mod suite;

use suite::conformance;
use suite::subject::Subject;

struct SecuredServer {
    authority: Authority,
    client: Certificate,
    server: RedisServer,
}

static SECURED: LazyLock<SecuredServer> = LazyLock::new(|| {
    let authority = Authority::new();
    let server = RedisServer::options().tls(&authority, &authority.server(), true);
    SecuredServer {
        server: server.start(),
        client: authority.client(),
        authority,
    }
});
static SENTINEL: LazyLock<SentinelService> = LazyLock::new(SentinelService::start);
static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);
static QUORUM: LazyLock<Vec<RedisServer>> =
    LazyLock::new(|| (0..5).map(|_| RedisServer::start()).collect());
static SERVER: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

async fn at(url: &str) -> Subject {
    let prefix = own_prefix();
    let change = |builder: LockManagerBuilder| builder.prefix(&prefix);
    let mut subject = Subject::at((), url, change).await;
    subject.prefix = prefix;
    // A deployment has six processes, and shares the machine with the others.
    subject.shortest_ttl = Duration::from_secs(1);
    subject
}

async fn secured() -> Subject {
    let ca = test_support::tls::shown(&SECURED.authority.ca());
    let client = SECURED.client.parameters();
    let url = format!("{}?ssl_ca_certs={ca}&{client}", SECURED.server.tls_url());
    at(&url).await
}

async fn resp2() -> Subject {
    let mut subject = at(&format!("{}?protocol=2", SERVER.url())).await;
    subject.notifies = false;
    subject
}

async fn cluster() -> Subject {
    let mut subject = at(&CLUSTER.url()).await;
    // Before Redis 7 there are no sharded channels.
    subject.notifies = !CLUSTER.nodes()[0].is_before((7, 0));
    subject
}

async fn quorum() -> Subject {
    let hosts: Vec<_> = QUORUM.iter().map(|it| it.address().to_string()).collect();
    let url = format!("redis+quorum://{}", hosts.join(","));
    let prefix = own_prefix();
    let change = |builder: LockManagerBuilder| builder.prefix(&prefix).quarantine(Duration::ZERO);
    let mut subject = Subject::at((), &url, change).await;
    subject.prefix = prefix;
    subject.notifies = false;
    subject.is_fair = false;
    subject.hands_over = false;
    subject
}

conformance!(tls, secured());
conformance!(resp2, resp2());
conformance!(sentinel, at(&SENTINEL.url()));
conformance!(cluster, cluster());
conformance!(quorum, quorum());
