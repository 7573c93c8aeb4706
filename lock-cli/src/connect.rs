//! Connects to the server of the URL.

use std::time::Duration;

use lock_core::{LockError, LockManager, LockManagerBuilder};

use crate::args::{GlobalArgs, UrlFrom};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::wording;

/// How long the release of a lock may take at the end: as long as a service has for its shutdown.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The ends of the variables that the library reads. `lockctl` reads the first three.
const VARIABLES: [&str; 11] = [
    "URL",
    "PREFIX",
    "ADDRESS_MAP",
    "DEFAULT_TTL",
    "DEFAULT_WAIT",
    "DEFAULT_MAX_HOLD",
    "COMMAND_TIMEOUT",
    "SHUTDOWN_TIMEOUT",
    "LABEL",
    "CLIENT_NAME",
    "LAZY",
];

/// Warns about each variable that is probably misspelt: the command would run with another prefix than its
/// operator meant. Never shows a value.
fn warn_of_unknown_variables(output: &Output) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let Some(end) = name.strip_prefix("DISTRIBUTED_LOCK_") else {
            continue;
        };
        if !VARIABLES.contains(&end) {
            output.warning(&format!(
                "warning: unknown variable `{name}`; lockctl reads DISTRIBUTED_LOCK_URL, \
                 DISTRIBUTED_LOCK_PREFIX and DISTRIBUTED_LOCK_ADDRESS_MAP"
            ));
        }
    }
}

/// Returns the URL. Warns about a password that other users of the machine can see, and about unknown
/// variables.
pub(crate) fn url<'a>(global: &'a GlobalArgs, output: &Output) -> Result<&'a str, Failure> {
    warn_of_unknown_variables(output);
    let Some(url) = global.url.as_deref() else {
        return Err(Failure::new(
            Exit::Config,
            "configuration",
            "no server is configured; set DISTRIBUTED_LOCK_URL, or pass --url",
        ));
    };
    if global.url_from != UrlFrom::Variable && has_password(url) {
        output.note(
            "warning: the password is visible in the process list; set DISTRIBUTED_LOCK_URL instead",
        );
    }
    Ok(url)
}

/// Connects a manager. `label` is what others see as the holder.
pub(crate) async fn manager(
    global: &GlobalArgs,
    label: Option<&str>,
    output: &Output,
) -> Result<LockManager, Failure> {
    to(url(global, output)?, global, label).await
}

/// As [`manager`], without a connection: its calls wait for the server.
pub(crate) fn lazy_manager(
    global: &GlobalArgs,
    label: Option<&str>,
    output: &Output,
) -> Result<LockManager, Failure> {
    let url = url(global, output)?;
    let made = labeled(url, global, label)?.connect_lazy(url);
    made.map_err(|error| failure(global, &error))
}

/// Connects a manager to a URL.
pub(crate) async fn to(
    url: &str,
    global: &GlobalArgs,
    label: Option<&str>,
) -> Result<LockManager, Failure> {
    let connected = labeled(url, global, label)?.connect(url).await;
    connected.map_err(|error| failure(global, &error))
}

fn labeled(
    url: &str,
    global: &GlobalArgs,
    label: Option<&str>,
) -> Result<LockManagerBuilder, Failure> {
    let builder = builder(url, global)?.shutdown_timeout(RELEASE_TIMEOUT);
    Ok(match label {
        Some(label) => builder.label(label),
        None => builder,
    })
}

/// Returns the settings of a manager for this URL.
pub(crate) fn builder(url: &str, global: &GlobalArgs) -> Result<LockManagerBuilder, Failure> {
    if url.trim_start().to_ascii_lowercase().starts_with("memory:") {
        return Err(Failure::new(
            Exit::Config,
            "invalid-url",
            wording::NOT_IN_MEMORY,
        ));
    }
    Ok(LockManager::builder().config(global.config()?))
}

/// Makes the failure of an error of the library.
pub(crate) fn failure(global: &GlobalArgs, error: &LockError) -> Failure {
    Failure::of_lock(error, global.url_source())
}

/// Whether a URL holds a password: after `:` in the user part, or in a parameter, such as `sentinel_password`.
fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let user = rest.rsplit_once('@').map(|(user, _)| user);
    let password = user.and_then(|user| user.split_once(':'));
    let parameters = rest
        .split_once('?')
        .map_or("", |(_, parameters)| parameters);
    let mut parameters = parameters
        .split('&')
        .filter_map(|text| text.split_once('='));
    password.is_some_and(|(_, password)| !password.is_empty())
        || parameters
            .any(|(name, value)| name.to_ascii_lowercase().contains("pass") && !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn passwords_are_found() {
        for url in [
            "redis://:secret@h",
            "redis://user:secret@h:1/2",
            "redis://user:se@cret@h",
            "unix:///path?pass=secret",
            "unix:///path?db=1&pass=secret",
            "redis+sentinel://a,b/s?sentinel_password=secret",
            "redis+sentinel://a,b/s?sentinel_username=u&sentinel_password=secret",
            // Refused, but visible.
            "redis://h?PASSWORD=secret",
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in [
            "redis://h:1",
            "redis://user@h",
            "unix:///path?db=1",
            "x",
            "redis://user:@h",
            "redis+sentinel://pass,b/s?sentinel_username=pass",
            "unix:///path?pass=&db=1",
        ] {
            assert!(!has_password(url), "{url}");
        }
    }
}
