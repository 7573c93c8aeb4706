//! The checks of one server, whatever its part in the deployment is.

use std::time::Duration;

use lock_core::LockError;
use lock_core::doctor::{AskError, Connection, Part, Server, Servers, Topology};
use lock_core::error::BackendErrorKind;

use super::check::{Check, Level};
use super::connection::{clock, greeting, info, lost, reachable, role};
use super::info::Info;
use super::probe::{self, Locks};
use super::rights::{self, Rights};
use super::server::Expected;
use super::{certificate, keys, sentinel, server};
use crate::args::{DoctorArgs, GlobalArgs};
use crate::connect;
use crate::text::human;

/// How long the checks of one server may take, unless its commands may take long themselves.
const LIMIT: Duration = Duration::from_secs(30);

/// What was found at one server.
#[derive(Default)]
pub(super) struct Examined {
    pub(super) checks: Vec<Check>,
    /// What its user may do.
    pub(super) user: Option<String>,
    /// It may acquire locks here.
    pub(super) can_lock: bool,
    /// It can't be reached, or refuses the login.
    pub(super) unreachable: Option<LockError>,
}

/// What the checks of all servers share.
pub(super) struct Context {
    pub(super) global: GlobalArgs,
    pub(super) args: DoctorArgs,
    pub(super) found: Servers,
    pub(super) locks: Locks,
}

/// Runs all checks of a server.
pub(super) async fn examine(context: &Context, at: &Server) -> Examined {
    let mut examined = Examined::default();
    let limit = limit(context.global.timeout);
    let checking = check_all(context, at, &mut examined);
    if tokio::time::timeout(limit, checking).await.is_err() {
        let text = format!("the checks did not end within {}", human(limit));
        let check = Check::fail("time_limit", text).advice("see its load, and SLOWLOG GET");
        examined.checks.push(check);
    }
    examined
}

/// Leaves time for the error of a connection, which needs several round trips.
fn limit(timeout: Duration) -> Duration {
    LIMIT.max(timeout.saturating_mul(4))
}

async fn check_all(context: &Context, at: &Server, examined: &mut Examined) {
    let checks = &mut examined.checks;
    let mut connection = match at.open().await {
        Ok(connection) => connection,
        Err(error) => {
            checks.push(unreachable(context, at.part, &error));
            examined.unreachable = Some(error);
            return;
        }
    };
    checks.push(reachable(&mut connection, &at.reached_at()).await);
    if checks[0].level == Level::Fail {
        return;
    }
    let info = info(&mut connection).await;
    if let Err(AskError::Broken(error)) = info {
        // Nothing that follows would be certain.
        checks[0] = lost(&at.reached_at(), error);
        return;
    }
    let known = match &info {
        Ok(info) => info.clone(),
        Err(_) => greeting(&mut connection).await,
    };
    let role = role(&mut connection).await;
    let expected = Expected {
        each: at.connections(),
        instances: context.args.instances,
    };
    if at.part == Part::Sentinel {
        checks.push(server::role(
            role.as_deref().or(mode(&known)),
            &known,
            at.part,
        ));
        if let Topology::Sentinel(service) = &context.found.topology {
            let primary = primary(&context.found);
            checks
                .push(sentinel::names_primary(&mut connection, service, primary.as_deref()).await);
        }
        checks.extend(info.iter().map(|info| server::clients(info, expected)));
        checks.extend(way(at, &connection));
        return;
    }
    checks.push(server::version(&known));
    checks.push(server::role(role.as_deref(), &known, at.part));
    checks.push(server::topology(role.as_deref(), &known, at));
    // Another server has no locks to check, and replies to few commands.
    let has_locks = checks.iter().all(|check| check.level != Level::Fail);
    match &info {
        Ok(info) => checks.extend(server::of_info(info, at.part, expected)),
        Err(error) => checks.extend(without_info(error, at.part)),
    }
    checks.extend(clock(&mut connection).await);
    checks.extend(way(at, &connection));
    if has_locks {
        let (prefix, locks) = (&context.global.prefix, &context.locks);
        let rights = Rights::read(&mut connection, at, prefix).await;
        examined.can_lock = rights.can_lock();
        examined.user = Some(rights.summary());
        if grants_locks(at.part) {
            checks.extend(keys::checks(&mut connection, &context.global, &rights).await);
            checks.extend(probe::checks(&mut connection, at, locks, &rights, &known).await);
        }
        checks.extend(rights.checks(context.args.role));
    }
}

/// Whether locks live on such a server now.
pub(super) fn grants_locks(part: Part) -> bool {
    matches!(part, Part::Single | Part::Primary | Part::Member)
}

/// Checks the way to a server.
fn way(at: &Server, connection: &Connection) -> impl Iterator<Item = Check> {
    let end = connection.certificate.as_ref();
    let certificate = end.map(|end| certificate::check("certificate", end));
    std::iter::once(server::tls(at)).chain(certificate)
}

/// Returns the word for a Sentinel, of which older ones have no ROLE.
fn mode(info: &Info) -> Option<&str> {
    info.text("redis_mode").filter(|mode| *mode == "sentinel")
}

fn primary(found: &Servers) -> Option<String> {
    let mut servers = found.servers.iter();
    let primary = servers.find(|server| server.part == Part::Primary);
    primary.map(Server::address)
}

fn unreachable(context: &Context, part: Part, error: &LockError) -> Check {
    let failure = connect::failure(&context.global, error);
    let means = match part {
        Part::Single | Part::Primary => "no service gets a lock there",
        Part::Replica => "a failover cannot make it the primary",
        Part::Sentinel => {
            "the other Sentinels alone have to agree on a failover, and to name the primary"
        }
        Part::Member => "the other servers have to be a majority for each lock",
        Part::Unlisted => "a service cannot begin with this address of the URL",
    };
    Check::fail("reachable", failure.text.as_str())
        .means(means)
        .advice(if is_of_login(error) {
            "check the user and the password on this server"
        } else {
            "repair it, or remove it from the deployment and from the URL"
        })
}

/// Whether the server has refused the login, and is otherwise fine.
fn is_of_login(error: &LockError) -> bool {
    use BackendErrorKind::{Authentication, Permission};
    matches!(error, LockError::Backend(error) if matches!(error.kind(), Authentication | Permission))
}

/// The checks that need INFO, where the server refuses it.
fn without_info(error: &AskError, part: Part) -> [Check; 5] {
    let reason = if rights::is_refused(error) {
        "the user lacks +info".to_owned()
    } else {
        format!("the server does not reply to INFO ({error})")
    };
    server::of_info_ids(part).map(|id| Check::skipped(id, reason.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a server that does not reply, the error of the connection has to come first.
    #[test]
    fn limit_of_a_server_is_longer_than_any_timeout() {
        for (timeout, expected) in [(1, 30), (31, 124)] {
            let limit = limit(Duration::from_secs(timeout));
            assert_eq!(limit, Duration::from_secs(expected), "{timeout}");
        }
        assert_eq!(limit(Duration::MAX), Duration::MAX);
    }
}
