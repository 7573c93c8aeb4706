//! The checks of a Sentinel.

use lock_core::doctor::{Connection, Reply};

use super::check::{Check, beginning};

/// Checks that a Sentinel names the primary that the library uses.
pub(super) async fn names_primary(
    connection: &mut Connection,
    service: &str,
    primary: Option<&str>,
) -> Check {
    let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service];
    let named = match connection.ask(&question).await {
        Ok(reply) => reply,
        Err(error) => {
            return Check::fail("names_primary", format!("it names no primary ({error})")).advice(
                "give the user of the Sentinels the rights of the page \"Topologies\" of the guide",
            );
        }
    };
    let mut parts = named.items().iter().filter_map(Reply::text);
    let (Some(host), Some(port)) = (parts.next(), parts.next()) else {
        return Check::fail("names_primary", format!("it knows no service `{service}`"))
            .advice("check the name of the service in the URL: `sentinel masters` shows all");
    };
    let named = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let shown = beginning(&named);
    match primary {
        Some(primary) if primary != named => Check::warn(
            "names_primary",
            format!("{shown}, while others name {}", beginning(primary)),
        )
        .means("a failover is under way, or this Sentinel is cut off from the others")
        .advice("run `lockctl doctor` again; if it stays so, see the log of the Sentinel"),
        _ => Check::ok("names_primary", shown),
    }
}
