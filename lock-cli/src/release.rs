//! `lockctl release`: takes a lock from its holder.

use std::io::{self, BufRead, IsTerminal};

use lock_core::LockManager;
use lock_core::admin::{AdminError, LockInfo, LockStatus, Revocation};
use serde::Serialize;

use crate::args::{GlobalArgs, ReleaseArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::Page;
use crate::show;
use crate::text::{human, millis};
use crate::view::{self, HolderRecord};
use crate::wording;

#[derive(Serialize)]
struct ReleaseRecord<'a> {
    schema: &'static str,
    name: &'a str,
    released: bool,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<HolderRecord<'a>>,
    free_in_ms: u64,
    granted: bool,
}

/// Shows the holder, asks, and releases the lock that it showed.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &ReleaseArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let asks = !args.yes;
    if asks && (output.is_json() || !io::stdin().is_terminal()) {
        return Err(Failure::new(
            Exit::Usage,
            "usage",
            "`release` asks before it takes a lock from its holder, and there is no terminal to ask; \
             pass --yes to release without a question",
        ));
    }
    let locks = connect::manager(global, None, output).await?;
    let lock = if args.foreign {
        // Identifies a hash too, which needs one right more.
        let lock = locks.admin().inspect_foreign(args.name.as_str()).await;
        lock.map_err(|error| connect::failure(global, &error))?
    } else {
        show::inspect(&locks, &args.name, global).await?
    };
    check_held(&lock, &locks, args, global).await?;
    if asks {
        output.print(&show::describe(&lock))?;
        if !is_confirmed(&question(&lock, args), output)? {
            return Err(Failure::new(Exit::No, "refused", "nothing was released"));
        }
    }
    let mut request = locks
        .admin()
        .force_release(args.name.as_str())
        .by(args.by.clone().unwrap_or_else(operator))
        // The lock that the user has seen, and not that of the next holder.
        .expect_unchanged(&lock);
    if let Some(token) = args.token {
        request = request.expect_token(token);
    }
    if let Some(reason) = &args.reason {
        request = request.reason(reason);
    }
    if args.foreign {
        request = request.remove_foreign();
    }
    if args.now {
        request = request.free_at_once();
    }
    let released = request
        .await
        .map_err(|error| failure(&error, args, global))?;
    report(&lock, &released, args, output)
}

/// Fails when there is nothing to release, and when another library wrote the key and `--foreign` is not
/// given.
async fn check_held(
    lock: &LockInfo,
    locks: &LockManager,
    args: &ReleaseArgs,
    global: &GlobalArgs,
) -> Result<(), Failure> {
    match &lock.status {
        LockStatus::Held(holder) if holder.is_foreign() && !args.foreign => {
            Err(foreign_key(&args.name, "a value without an owner id"))
        }
        LockStatus::Foreign { found, .. } if !args.foreign => Err(foreign_key(&args.name, found)),
        LockStatus::Held(_) | LockStatus::Done { .. } | LockStatus::Foreign { .. } => Ok(()),
        // Only `--now` frees a key that has no holder any more.
        LockStatus::Kept { .. } | LockStatus::Blocked { .. } if args.now => Ok(()),
        LockStatus::Kept { .. } | LockStatus::Blocked { .. } => {
            let text = format!(
                "the lock `{}` has {}; --now frees it",
                args.name,
                view::without_holder(lock).unwrap_or_default(),
            );
            Err(Failure::new(Exit::No, "not-held", text))
        }
        _ => Err(show::not_held(locks, &args.name, global).await),
    }
}

fn question(lock: &LockInfo, args: &ReleaseArgs) -> String {
    let name = &args.name;
    let holder = || lock.holder().map(view::label);
    let of = view::holding(lock).or_else(holder);
    let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
    if let LockStatus::Done { .. } = lock.status {
        format!("Free the lock `{name}` now, so that its work can be done again? [y/N] ")
    } else if view::is_foreign(lock) {
        format!(
            "Delete the key of the lock `{name}`{of} at once? Its owner does not learn of it, so two may \
             hold the lock then. [y/N] "
        )
    } else if args.now {
        format!(
            "Free the lock `{name}`{of} now? Until the old holder notices, two may hold it. [y/N] "
        )
    } else {
        format!("Revoke the lock `{name}`{of}? It stays locked until its lease ends. [y/N] ")
    }
}

fn is_confirmed(question: &str, output: &Output) -> Result<bool, Failure> {
    let mut page = Page::default();
    output.print(page.text(question))?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}

/// Names the operator, as the holder will see it: `ops@host`.
fn operator() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = ["SUDO_USER", "USER", "LOGNAME", "USERNAME"]
        .into_iter()
        .find_map(variable);
    let user = user.unwrap_or_else(user_id);
    match host() {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}

/// Names the user where no variable does, as in cron and in containers.
#[cfg(unix)]
fn user_id() -> String {
    format!("uid {}", rustix::process::getuid().as_raw())
}

#[cfg(not(unix))]
fn user_id() -> String {
    "lockctl".to_owned()
}

#[cfg(unix)]
fn host() -> Option<String> {
    let name = rustix::system::uname();
    name.nodename().to_str().ok().map(ToOwned::to_owned)
}

#[cfg(not(unix))]
fn host() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

fn foreign_key(name: &str, found: &str) -> Failure {
    let text = format!(
        "the key of `{}` holds {}, which is no lock of this library; --foreign deletes it",
        name,
        wording::plain(found)
    );
    Failure::new(Exit::Config, "foreign-key", text)
}

fn failure(error: &AdminError, args: &ReleaseArgs, global: &GlobalArgs) -> Failure {
    let name = &args.name;
    match error {
        AdminError::Changed { holder, found, .. } => {
            let now = match (holder, found) {
                (Some(holder), _) => {
                    let token = holder.token.map(|token| format!(" with token {token}"));
                    format!(
                        "{} holds it now{}",
                        view::label(holder),
                        token.unwrap_or_default()
                    )
                }
                (None, Some(found)) => format!("the key now holds {}", wording::plain(found)),
                (None, None) => "no holder has it now".to_owned(),
            };
            let text = format!("the lock `{name}` changed: {now}; nothing was released");
            Failure::new(Exit::No, "changed", text)
        }
        AdminError::Foreign { found, .. } => foreign_key(&args.name, found),
        AdminError::NoExpiry { .. } => {
            let text = format!(
                "the lock `{name}` has no expiry, so a revocation would never end; --now frees it"
            );
            Failure::new(Exit::Config, "no-expiry", text)
        }
        AdminError::Lock(error) => connect::failure(global, error),
        other => Failure::internal("cannot release the lock", other),
    }
}

fn report(
    lock: &LockInfo,
    released: &Revocation,
    args: &ReleaseArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let is_revoked = !released.free_in.is_zero();
    let previous = released.previous.as_ref();
    if output.is_json() {
        output.record(&ReleaseRecord {
            schema: "lockctl.release/1",
            name: &args.name,
            released: true,
            mode: if is_revoked { "revoke" } else { "now" },
            previous: previous.map(|holder| HolderRecord::new(holder, lock.read_at)),
            free_in_ms: millis(released.free_in),
            granted: released.is_granted,
        })?;
        return Ok(Exit::Success);
    }
    let name = &args.name;
    // A shared lock is released for all its holders, and the label is that of the first one.
    let holder = |holder| view::holding(lock).unwrap_or_else(|| view::label(holder));
    let of = previous.map(|previous| format!(" of {}", holder(previous)));
    let of = of.unwrap_or_default();
    let text = if is_revoked {
        let learn = if view::shared(lock).is_some() {
            "the holders learn of it at their next renewals"
        } else {
            "the holder learns of it at its next renewal"
        };
        let free = human(released.free_in);
        format!("revoked the lock `{name}`{of}; it is free in {free}, and {learn}")
    } else if released.is_granted {
        format!("freed the lock `{name}`{of}; the next waiter has it")
    } else {
        format!("freed the lock `{name}`{of}")
    };
    let mut page = Page::default();
    output.print(page.line(&text))?;
    Ok(Exit::Success)
}
