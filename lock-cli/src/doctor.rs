//! `lockctl doctor`: says whether servers are fit for locks, and what each defect means for them.
//!
//! It connects as the library does, and goes on where the library refuses. It reads INFO only, since many services forbid
//! CONFIG.

use crate::args::{DoctorArgs, GlobalArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

mod certificate;
mod check;
mod connection;
mod info;
mod keys;
mod names;
mod node;
mod probe;
mod report;
mod rights;
mod server;

/// Runs all checks.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &DoctorArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let url = connect::url(global, output)?;
    if let Some(advice) = other_url(url) {
        return Err(Failure::new(
            Exit::Config,
            "invalid-url",
            format!("doctor checks one server: {advice}"),
        ));
    }
    let found = connect::builder(url, global)?.servers(url).await;
    let found = found.map_err(|error| connect::failure(global, &error))?;
    let [server] = found.servers.as_slice() else {
        unreachable!();
    };
    let examined = node::examine(server, url, global, args).await;
    let mut examined = examined.map_err(|error| connect::failure(global, &error))?;
    let end = found.client_certificate.as_ref();
    let own = end.map(|end| certificate::check("client_certificate", end));
    examined.checks.extend(own);
    report::report(
        &examined.checks,
        &server.address(),
        examined.user.as_deref(),
        args,
        output,
    )
}

/// Returns which address to give, for a URL that is not that of one server.
fn other_url(url: &str) -> Option<&'static str> {
    let scheme = url.trim().split("://").next().unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    if scheme.contains("sentinel") {
        Some(
            "give it the address of the primary, which a Sentinel names (SENTINEL GET-MASTER-ADDR-BY-NAME)",
        )
    } else if scheme.contains("cluster") {
        Some(
            "give it the address of each primary, whose INFO it checks; the check `topology` fails there, because \
             services need redis+cluster://",
        )
    } else if scheme.contains("quorum") {
        Some("give it the address of each server")
    } else {
        None
    }
}
