//! The checks of one server.

use lock_core::LockError;
use lock_core::doctor::{AskError, Server};

use super::check::{Check, Level};
use super::connection::{clock, greeting, info, reachable, role};
use super::rights::{self, Rights};
use super::{certificate, keys, probe, server};
use crate::args::{DoctorArgs, GlobalArgs};

/// What was found at one server.
pub(super) struct Examined {
    pub(super) checks: Vec<Check>,
    /// What its user may do.
    pub(super) user: Option<String>,
}

/// Runs all checks of a server.
///
/// # Errors
/// It can't be reached, or refuses the login.
pub(super) async fn examine(
    at: &Server,
    url: &str,
    global: &GlobalArgs,
    args: &DoctorArgs,
) -> Result<Examined, LockError> {
    let mut connection = at.open().await?;
    let address = at.address();
    let mut checks = vec![reachable(&mut connection, &address).await];
    if checks[0].level == Level::Fail {
        return Ok(Examined { checks, user: None });
    }
    let info = info(&mut connection).await;
    let known = match &info {
        Ok(info) => info.clone(),
        Err(_) => greeting(&mut connection).await,
    };
    let role = role(&mut connection).await;
    checks.push(server::version(&known));
    checks.push(server::role(role.as_deref(), &known));
    checks.push(server::topology(role.as_deref(), &known));
    // Another server has no locks to check, and replies to few commands.
    let has_locks = checks.iter().all(|check| check.level != Level::Fail);
    match &info {
        Ok(info) => checks.extend(server::of_info(info)),
        Err(error) => checks.extend(without_info(error)),
    }
    checks.extend(clock(&mut connection).await);
    checks.push(server::tls(at));
    let end = connection.certificate.as_ref();
    checks.extend(end.map(|end| certificate::check("certificate", end)));
    let mut user = None;
    if has_locks {
        let rights = Rights::read(&mut connection, at.user(), &global.prefix).await;
        checks.extend(keys::checks(&mut connection, global, &rights).await);
        checks.extend(probe::checks(&mut connection, url, global, &rights).await);
        checks.extend(rights.checks(args.role));
        user = Some(rights.summary());
    }
    Ok(Examined { checks, user })
}

/// The checks that need INFO, where the server refuses it.
fn without_info(error: &AskError) -> [Check; 5] {
    let reason = if rights::is_refused(error) {
        "the user lacks +info".to_owned()
    } else {
        format!("the server does not reply to INFO ({error})")
    };
    server::OF_INFO.map(|id| Check::skipped(id, reason.as_str()))
}
