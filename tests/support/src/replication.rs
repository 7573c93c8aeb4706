//! Primaries whose replicas get nothing.

use std::time::Duration;

use crate::server::RedisServer;
use crate::wait::eventually;

/// Bound on the end of connections, on a loaded machine.
const STEP: Duration = Duration::from_secs(30);

/// Cuts the replicas of a primary off: they get none of its writes from now on.
#[track_caller]
pub(crate) fn cut(primary: &RedisServer) {
    allow(primary, &["-psync", "-sync", "-replconf"]);
    eventually(STEP, || {
        let _killed = primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        let info = primary.cli(&["INFO", "replication"]);
        !info.text().contains("state=online")
    });
}

/// Lets the replicas connect again.
#[track_caller]
pub(crate) fn restore(primary: &RedisServer) {
    allow(primary, &["+psync", "+sync", "+replconf"]);
}

#[track_caller]
fn allow(primary: &RedisServer, rights: &[&str]) {
    let reply = primary.cli(&[&["ACL", "SETUSER", "default"], rights].concat());
    assert!(reply.error().is_none(), "{rights:?}: {reply:?}");
}
