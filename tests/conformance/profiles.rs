//! The contracts on servers as hosting services and old versions are.

use lock_core::dialect::{Dialect, ReleaseMethod};
use test_support::stand_in::{HelloRefusal, Quirk};
use test_support::{RedisServer, StandIn, lone_node};

use crate::suite::conformance;
use crate::suite::subject::Subject;

conformance!(no_run_id, polling([Quirk::NoRunId]));
conformance!(hello_closes, polling([Quirk::Hello(HelloRefusal::Closes)]));
conformance!(hosted, notifying([Quirk::NoRole, Quirk::OldInfo]));
conformance!(
    redis_6,
    notifying([
        Quirk::OldInfo,
        Quirk::PlainScriptsOnly,
        Quirk::OldScriptErrors,
        Quirk::NoExpireOptions
    ])
);
conformance!(plain_scripts, notifying([Quirk::PlainScriptsOnly]));
conformance!(serverless_cluster, serverless());
conformance!(owner_commands, with_owner_commands());

async fn notifying<const N: usize>(quirks: [Quirk; N]) -> Subject {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, quirks);
    let url = stand_in.url();
    Subject::at((stand_in, server), &url, |builder| builder).await
}

/// Waiters get no notifications there.
async fn polling<const N: usize>(quirks: [Quirk; N]) -> Subject {
    let mut subject = notifying(quirks).await;
    subject.notifies = false;
    subject
}

async fn serverless() -> Subject {
    let node = lone_node();
    let has_sharded_channels = !node.is_before((7, 0));
    let quirks = [Quirk::ServerlessCluster, Quirk::ClusterDisabledInInfo];
    let stand_in = StandIn::start(&node, quirks);
    let url = stand_in.url().replace("redis://", "redis+cluster://");
    let mut subject = Subject::at((stand_in, node), &url, |builder| builder).await;
    subject.notifies = has_sharded_channels;
    subject
}

/// Few servers have the commands so far.
async fn with_owner_commands() -> Subject {
    let dialect = Dialect::SetNxPx {
        release: ReleaseMethod::Conditional,
    };
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::OwnerCommands]);
    let url = stand_in.url();
    let mut subject = Subject::at((stand_in, server), &url, |it| it.dialect(dialect)).await;
    subject.capabilities = dialect.capabilities();
    subject.notifies = subject.capabilities.notifies_waiters();
    subject.is_fair = subject.capabilities.is_fair();
    subject.hands_over = subject.capabilities.hands_over();
    subject.value_has_token = false;
    subject
}
