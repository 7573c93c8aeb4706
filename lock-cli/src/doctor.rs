//! `lockctl doctor`: says whether servers are fit for locks, and what each defect means for them.
//!
//! It connects as the library does, and goes on where the library refuses. First it asks the servers of the URL for all
//! others: the Sentinels for the primary and its replicas, a node of a cluster for all nodes. Then each server goes through
//! the same checks, some servers side by side, and one that can't be reached is a finding like any other. It reads INFO
//! only, since many services forbid CONFIG.

use std::sync::Arc;

use lock_core::doctor::Topology;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::args::{DoctorArgs, GlobalArgs, UrlFrom};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

mod address;
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
mod sentinel;
mod server;

use address::Address;
use check::{Check, Level};
use names::Names;
use node::{Context, Examined};
use probe::Locks;
use report::Report;

/// How many servers are checked at once.
const AT_ONCE: usize = 16;

/// Runs all checks.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &DoctorArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let (url, global, address) = target(global, args, output).await?;
    let found = connect::builder(&url, &global)?.servers(&url).await;
    let context = Arc::new(Context {
        found: found.map_err(|error| connect::failure(&global, &error))?,
        locks: Locks::new(&url, &global),
        global: global.clone(),
        args: args.clone(),
    });
    let examined = examine_all(&context).await?;
    if let Some(error) = examined.iter().find_map(|it| it.unreachable.as_ref())
        && examined.iter().all(|it| it.unreachable.is_some())
    {
        // The error of the library is about all of them.
        let failed = connect::to(&url, &global, None).await.err();
        return Err(failed.unwrap_or_else(|| connect::failure(&global, error)));
    }
    let mut of_all = of_all(&context, &examined).await;
    of_all.extend(address.map(|address| address.check(&context.found, &global)));
    report::write(
        &Report::new(&context.found, &examined, &of_all),
        args,
        output,
    )
}

/// Returns the URL, and where it comes from. For an address, the URL is found first.
async fn target(
    global: &GlobalArgs,
    args: &DoctorArgs,
    output: &Output,
) -> Result<(String, GlobalArgs, Option<Address>), Failure> {
    let mut global = global.clone();
    if let Some(text) = &args.address {
        if global.url_from == UrlFrom::Flag {
            let text = "an address and --url: pass one of them";
            return Err(Failure::new(Exit::Usage, "usage", text));
        }
        global.url = Some(format!("redis://{text}"));
        global.url_from = UrlFrom::Address;
    }
    // The warnings about a URL are also those about an address.
    let mut url = connect::url(&global, output)?.to_owned();
    let mut address = None;
    if let Some(text) = &args.address {
        let found = Address::find(text, &global).await?;
        url = found.url();
        global.url = Some(url.clone());
        address = Some(found);
    }
    Ok((url, global, address))
}

/// Checks each server. Returns what was found in the order of the servers.
async fn examine_all(context: &Arc<Context>) -> Result<Vec<Examined>, Failure> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut examining = JoinSet::new();
    for at in 0..context.found.servers.len() {
        let (context, turns) = (Arc::clone(context), Arc::clone(&turns));
        examining.spawn(async move {
            // It is never closed.
            let _turn = turns.acquire().await;
            (
                at,
                node::examine(&context, &context.found.servers[at]).await,
            )
        });
    }
    let mut all = Vec::new();
    while let Some(examined) = examining.join_next().await {
        all.push(examined.map_err(|error| Failure::internal("a check ended", &error))?);
    }
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, examined)| examined).collect())
}

/// Runs the checks that are about no single server.
async fn of_all(context: &Context, examined: &[Examined]) -> Vec<Check> {
    let found = &context.found;
    let mut servers = found.servers.iter();
    let level = if servers.any(|server| node::grants_locks(server.part)) {
        Level::Note
    } else {
        Level::Fail
    };
    let unknown = found.unknown.iter().map(|text| {
        Check::new("nodes", level, text).advice(
            "see the reports of the servers; `lockctl doctor` needs more rights than a service",
        )
    });
    let mut checks: Vec<_> = unknown.collect();
    let end = found.client_certificate.as_ref();
    checks.extend(end.map(|end| certificate::check("client_certificate", end)));
    if found.topology == Topology::Quorum {
        // At a quorum, a lock lives on a majority of the servers.
        checks.push(if examined.iter().any(|it| it.can_lock) {
            let names = Names::new(&context.global.prefix);
            context.locks.check(&names.name).await
        } else {
            let reason = "no server of the quorum has passed the checks that a lock needs";
            Check::skipped("probe", reason).advice("see the reports of the servers")
        });
    }
    checks
}
