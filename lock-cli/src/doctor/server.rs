//! The checks of what the server says about itself.

use std::time::Duration;

use lock_core::doctor::{Part, Server};

use super::check::{Check, FULL_MEMORY, Level};
use super::info::Info;
use crate::text::human;

/// The first version with `SET` with `PXAT`, which the scripts need.
const OLDEST: (u32, u32) = (6, 2);
/// The first version that accepts the flags of the scripts.
const FIRST_WITH_FLAGS: (u32, u32) = (7, 0);
const FIRST_WITH_SHARDED_CHANNELS: (u32, u32) = (7, 0);
/// A lock costs two round trips, so this adds a fifth of a second to each section.
const SLOW_PING: Duration = Duration::from_millis(100);
/// A clock that differs that much makes the times that people read wrong.
const CLOCK_WARN: Duration = Duration::from_millis(500);
/// A clock that differs that much has no time service.
const CLOCK_FAIL: Duration = Duration::from_secs(5);
/// Shares of a limit, in percent.
const NEAR: u64 = 80;
const AT_LIMIT: u64 = 95;

pub(super) fn reachable(mut times: Vec<Duration>, address: &str) -> Check {
    times.sort_unstable();
    let at = |percent: usize| {
        let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(place).copied().unwrap_or_default()
    };
    let (p50, p99) = (at(50), at(99));
    let text = format!(
        "{address}, {} pings: p50 {}, p99 {}",
        times.len(),
        precise(p50),
        precise(p99)
    );
    let means = "a lock costs two round trips";
    if p50 > SLOW_PING {
        return Check::warn("reachable", text)
            .means(format!("{means}, which is about {} here", human(p50 * 2)))
            .advice("run the services near the server");
    }
    Check::ok("reachable", text).means(means)
}

fn precise(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

pub(super) fn version(info: &Info) -> Check {
    let version = info.text("redis_version").unwrap_or("unknown");
    let product = match info.text("valkey_version") {
        Some(valkey) => format!("Valkey {valkey} (as Redis {version})"),
        None => format!("Redis {version}"),
    };
    match numbers(version) {
        Some(numbers) if numbers < OLDEST => Check::fail("version", product)
            .means("the library refuses to connect")
            .advice("use Redis 7.0 or later, or Valkey; Redis 6.2 works too"),
        Some(numbers) if numbers < FIRST_WITH_FLAGS => Check::new("version", Level::Note, product)
            .means("locks work; while the memory is full, a release that has to write may fail")
            .advice("nothing, unless the memory may fill: then use Redis 7.0 or later, or Valkey"),
        Some(_) => Check::ok("version", product),
        None => Check::warn("version", product)
            .means("the server does not say which version of Redis it is like")
            .advice("test your services on it before you rely on it"),
    }
}

/// Returns the major and the minor number.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let major = numbers.next().flatten()?;
    Some((major, numbers.next().flatten().unwrap_or_default()))
}

/// Whether the server is too old for sharded channels, without which no node of a cluster notifies waiters.
pub(super) fn lacks_sharded_channels(info: &Info) -> bool {
    let version = info.text("redis_version").and_then(numbers);
    version.is_some_and(|version| version < FIRST_WITH_SHARDED_CHANNELS)
}

pub(super) fn role(role: Option<&str>, info: &Info, part: Part) -> Check {
    match (role.or(info.text("role")), part) {
        (Some("sentinel"), Part::Sentinel) => {
            Check::ok("role", "Sentinel").means("Sentinels name the primary, which grants locks")
        }
        (Some("sentinel"), _) => Check::fail("role", "Sentinel")
            .means("a Sentinel has no keys, so it grants no lock")
            .advice("use redis+sentinel://host/service in the services"),
        (Some(_), Part::Sentinel) => Check::fail("role", "a server, and no Sentinel")
            .means("it cannot name the primary")
            .advice("name the Sentinels in the URL and their port, which is 26379 as a rule"),
        (Some("slave"), Part::Replica) => {
            Check::ok("role", "replica").means("a failover can make it the primary")
        }
        (Some("master"), Part::Replica) => Check::warn("role", "primary, and listed as a replica")
            .means("a failover is under way, or two servers grant the same locks")
            .advice("run `lockctl doctor` again; if it stays so, make it a replica (REPLICAOF)"),
        (Some("slave"), Part::Unlisted) => Check::ok("role", "replica"),
        (Some("master"), _) => Check::ok("role", "primary"),
        (Some("slave"), _) => Check::fail("role", "replica")
            .means("a replica accepts no writes, so it grants no lock")
            .advice("connect to the primary"),
        _ => Check::warn("role", "unknown: the user may run neither ROLE nor INFO")
            .means("a replica is found at the first lock only")
            .advice("grant +role and +info"),
    }
}

pub(super) fn topology(role: Option<&str>, info: &Info, server: &Server) -> Check {
    topology_of(role, info, server.part, server.is_in_cluster())
}

fn topology_of(role: Option<&str>, info: &Info, part: Part, is_in_cluster: bool) -> Check {
    let enabled = info.text("cluster_enabled");
    match part {
        Part::Unlisted => {
            return Check::warn("topology", "not in the slot map of the cluster")
                .means("the URL names it, and no lock lives there")
                .advice("remove it from the URL, or add it to the cluster (CLUSTER MEET)");
        }
        _ if is_in_cluster && enabled == Some("0") => {
            return Check::new(
                "topology",
                Level::Note,
                "a node of a cluster; its INFO says that it is none",
            )
            .means("locks work, because the command counts that names the slots")
            .advice("nothing");
        }
        _ if is_in_cluster => {
            return Check::ok("topology", "a node of a cluster")
                .means("each lock lives on the node that owns its slot");
        }
        _ => {}
    }
    if enabled == Some("1") {
        return Check::fail("topology", "a node of a cluster")
            .means("a plain URL does not follow the slots of the locks")
            .advice("use redis+cluster:// in the services");
    }
    if role == Some("sentinel") || info.text("redis_mode") == Some("sentinel") {
        return Check::fail("topology", "a Sentinel behind a plain URL")
            .means("a Sentinel has no keys, so it grants no lock")
            .advice("use redis+sentinel://host/service, with the name of the service");
    }
    match part {
        Part::Primary | Part::Replica => {
            Check::ok("topology", "behind Sentinels").means("clients follow a failover")
        }
        Part::Member => Check::ok("topology", "a server of a quorum")
            .means("a lock needs a majority of the servers"),
        _ => Check::ok("topology", "a single server")
            .means("behind Sentinels, use redis+sentinel://, which follows a failover"),
    }
}

/// The checks that need INFO, by the part of the server.
pub(super) fn of_info_ids(part: Part) -> [&'static str; 5] {
    let replication = if part == Part::Replica {
        "replication"
    } else {
        "replicas"
    };
    ["eviction", "memory", "persistence", replication, "clients"]
}

/// Runs the checks that need INFO.
pub(super) fn of_info(info: &Info, part: Part, expected: Expected) -> Vec<Check> {
    let replication = if part == Part::Replica {
        replication(info)
    } else {
        replicas(info)
    };
    vec![
        eviction(info),
        memory(info),
        persistence(info),
        replication,
        clients(info, expected),
    ]
}

/// Checks that a replica gets what its primary writes.
fn replication(info: &Info) -> Check {
    match info.text("master_link_status") {
        Some("up") => Check::ok("replication", "connected to its primary"),
        Some(status) => Check::warn(
            "replication",
            format!("the connection to its primary is {status}"),
        )
        .means("a failover to it forgets the locks that it has not received")
        .advice("see the log of the replica; with `requirepass`, it needs `masterauth`"),
        None => Check::ok("replication", "no primary"),
    }
}

fn eviction(info: &Info) -> Check {
    let policy = info.text("maxmemory_policy").unwrap_or("unknown");
    let limit = info.number::<u64>("maxmemory").unwrap_or(0);
    let text = format!("maxmemory-policy is {policy}");
    let advice = "set maxmemory-policy to noeviction, or give locks a server of their own";
    match (policy, limit) {
        ("noeviction", _) => Check::ok("eviction", text),
        ("unknown", _) => Check::warn("eviction", text)
            .means("a server that evicts keys evicts locks too")
            .advice(advice),
        (_, 0) => Check::warn("eviction", format!("{text}, without maxmemory"))
            .means("no lock is evicted until maxmemory is set")
            .advice(advice),
        _ => Check::fail(
            "eviction",
            format!("{text}, with maxmemory {}", bytes(limit)),
        )
        .means("when the memory is full, the server deletes locks that are held")
        .advice(advice),
    }
}

fn memory(info: &Info) -> Check {
    let used = info.number::<u64>("used_memory").unwrap_or(0);
    let Some(limit) = info.number::<u64>("maxmemory").filter(|limit| *limit > 0) else {
        return Check::ok("memory", format!("{} used, without maxmemory", bytes(used)));
    };
    let share = percent(used, limit);
    let text = format!("{} of {} used ({share} %)", bytes(used), bytes(limit));
    let full = FULL_MEMORY;
    let advice = "raise maxmemory, or move other data away";
    level_of("memory", share, text).means(full).advice(advice)
}

/// The connections of a service.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    /// Of one instance.
    pub(super) each: u64,
    pub(super) instances: u32,
}

pub(super) fn clients(info: &Info, expected: Expected) -> Check {
    let connected = info.number::<u64>("connected_clients").unwrap_or(0);
    let Expected { each, instances } = expected;
    let more = each.saturating_mul(instances.into());
    let expected = match instances {
        1 => format!("an instance of a service opens up to {more}"),
        _ => format!("{instances} instances of a service open up to {more}"),
    };
    let Some(limit) = info.number::<u64>("maxclients").filter(|limit| *limit > 0) else {
        return Check::ok("clients", format!("{connected} connected; {expected}"));
    };
    let share = percent(connected.saturating_add(more), limit);
    let text = format!("{connected} of {limit} connected; {expected}");
    level_of("clients", share, text)
        .means("a server that is full refuses connections, and a service without one gets no lock")
        .advice(
            "raise maxclients, or close connections; instances that run already are counted twice",
        )
}

fn level_of(id: &'static str, share: u64, text: String) -> Check {
    match share {
        AT_LIMIT.. => Check::fail(id, text),
        NEAR.. => Check::warn(id, text),
        _ => Check::ok(id, text),
    }
}

fn percent(used: u64, limit: u64) -> u64 {
    let share = u128::from(used) * 100 / u128::from(limit.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn persistence(info: &Info) -> Check {
    let failing = |field| info.text(field).is_some_and(|status| status != "ok");
    if failing("rdb_last_bgsave_status") || failing("aof_last_write_status") {
        return Check::fail("persistence", "the last write to disk failed")
            .means("the server refuses writes (MISCONF), or will forget more than it should")
            .advice("see the log of the server: the disk may be full");
    }
    if info.text("aof_enabled") == Some("1") {
        return Check::ok("persistence", "AOF").means(
            "a crash of the machine forgets the locks of the last second, unless appendfsync is always",
        );
    }
    let saved = info.number::<u64>("rdb_saves").unwrap_or(0);
    let text = if saved > 0 {
        "RDB snapshots, no AOF"
    } else {
        "no AOF, and no RDB snapshot yet"
    };
    Check::warn("persistence", text)
        .means(if saved > 0 {
            "a restart forgets the locks since the last snapshot, and another holder gets them"
        } else {
            "a restart forgets all locks, and another holder gets them"
        })
        .advice("turn on AOF; or keep the server down for the longest ttl before it restarts")
}

fn replicas(info: &Info) -> Check {
    let count = info.number::<u64>("connected_slaves").unwrap_or(0);
    let good = info.number::<u64>("min_slaves_good_slaves");
    match (count, good) {
        (_, Some(good)) => Check::ok(
            "replicas",
            format!("{count} connected, {good} good for min-replicas-to-write"),
        )
        .means("a primary that is cut off stops granting locks"),
        (0, None) => Check::ok("replicas", "none"),
        (count, None) => Check::warn(
            "replicas",
            format!("{count} connected, and min-replicas-to-write is 0"),
        )
        .means("a primary that is cut off grants locks on, beside the new primary")
        .advice("set min-replicas-to-write to 1, and check fencing tokens at the resource"),
    }
}

pub(super) fn clock(local: Duration, server: Duration, error: Duration) -> Check {
    let (difference, word) = if server >= local {
        (server.saturating_sub(local), "ahead")
    } else {
        (local.saturating_sub(server), "behind")
    };
    let text = format!(
        "{} {word}, give or take {}",
        human(difference),
        precise(error)
    );
    let certain = difference.saturating_sub(error);
    let advice = "run a time service (NTP) on both machines";
    if certain >= CLOCK_FAIL {
        return Check::fail("clock", text)
            .means("a clock that is set while locks are held ends leases early or late")
            .advice(advice);
    }
    if certain >= CLOCK_WARN {
        return Check::warn("clock", text)
            .means("times in the output are wrong by this much; native locks do not compare clocks")
            .advice(advice);
    }
    Check::ok("clock", text)
}

pub(super) fn tls(server: &Server) -> Check {
    if server.has_tls() {
        return Check::ok("tls", "TLS");
    }
    let password = server.has_password();
    plain(server.host().as_deref(), password, &server.address())
}

/// Checks a way without TLS. A Unix socket has no host.
fn plain(host: Option<&str>, has_password: bool, address: &str) -> Check {
    match (host.is_some_and(is_remote), has_password) {
        (true, true) => Check::warn(
            "tls",
            format!("the password goes to {address} in plain text"),
        )
        .means("whoever reads the network can take and free every lock")
        .advice("use rediss:// and a TLS port of the server, or a private network"),
        (true, false) => Check::ok("tls", "plain TCP to another host, without a password")
            .means("whoever reaches the server can take and free every lock"),
        (false, _) => Check::ok("tls", "not needed on this machine"),
    }
}

/// Whether the host is another machine.
fn is_remote(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut unit = 0;
    let mut rest = count;
    while rest >= 10_000 && unit + 1 < UNITS.len() {
        rest /= 1_000;
        unit += 1;
    }
    format!("{rest} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(check: &Check) -> Level {
        check.level
    }

    #[test]
    fn versions_are_compared_by_two_numbers() {
        for (version, expected) in [
            ("5.0.14", Level::Fail),
            ("6.0.20", Level::Fail),
            ("6.2.14", Level::Note),
            ("6.10.0", Level::Note),
            ("7.0.0", Level::Ok),
            ("10.1", Level::Ok),
            ("", Level::Warn),
        ] {
            let info = Info::parse(&format!("redis_version:{version}\r\n"));
            assert_eq!(level(&super::version(&info)), expected, "{version}");
        }
    }

    #[test]
    fn only_old_servers_lack_sharded_channels() {
        for (version, expected) in [("6.2.14", true), ("7.0.0", false), ("10.1", false)] {
            let info = Info::parse(&format!("redis_version:{version}\r\n"));
            assert_eq!(lacks_sharded_channels(&info), expected, "{version}");
        }
        assert!(!lacks_sharded_channels(&Info::default()));
    }

    #[test]
    fn sentinels_and_cluster_nodes_are_named() {
        let info = |text: &str| Info::parse(text);
        let of_single = |role, info: &Info| level(&topology_of(role, info, Part::Single, false));
        let sentinel = info("redis_mode:sentinel\r\n");
        assert_eq!(of_single(None, &sentinel), Level::Fail);
        let word = Some("sentinel");
        assert_eq!(level(&role(word, &sentinel, Part::Single)), Level::Fail);
        assert_eq!(level(&role(word, &sentinel, Part::Sentinel)), Level::Ok);
        let node = info("redis_mode:cluster\r\ncluster_enabled:1\r\n");
        assert_eq!(of_single(Some("master"), &node), Level::Fail);
        let single = info("redis_mode:standalone\r\ncluster_enabled:0\r\nrole:master\r\n");
        assert_eq!(of_single(None, &single), Level::Ok);
        // The command that names the slots decides, whatever INFO says.
        for (info, expected) in [(&node, Level::Ok), (&single, Level::Note)] {
            let check = topology_of(None, info, Part::Primary, true);
            assert_eq!(level(&check), expected);
        }
        for (word, part, expected) in [
            (None, Part::Single, Level::Ok),
            (Some("slave"), Part::Single, Level::Fail),
            (Some("slave"), Part::Primary, Level::Fail),
            (Some("slave"), Part::Replica, Level::Ok),
            (Some("master"), Part::Replica, Level::Warn),
            (Some("master"), Part::Member, Level::Ok),
            (Some("master"), Part::Sentinel, Level::Fail),
        ] {
            assert_eq!(
                level(&role(word, &single, part)),
                expected,
                "{word:?} {part:?}"
            );
        }
        assert_eq!(level(&role(None, &info(""), Part::Single)), Level::Warn);
    }

    #[test]
    fn shares_of_limits_have_levels() {
        for (used, expected) in [(10, Level::Ok), (80, Level::Warn), (95, Level::Fail)] {
            let info = Info::parse(&format!("used_memory:{used}\r\nmaxmemory:100\r\n"));
            assert_eq!(level(&memory(&info)), expected, "{used}");
            let connected = used - 6;
            let info = Info::parse(&format!("connected_clients:{connected}\nmaxclients:100\n"));
            let more = Expected {
                each: 3,
                instances: 2,
            };
            assert_eq!(level(&clients(&info, more)), expected, "{used}");
        }
    }

    #[test]
    fn clocks_are_compared_beyond_the_error() {
        let at = Duration::from_millis;
        for (server, error, expected) in [
            (10_400, 0, Level::Ok),
            (10_600, 0, Level::Warn),
            (10_600, 200, Level::Ok),
            (9_400, 0, Level::Warn),
            (15_100, 0, Level::Fail),
            (4_900, 0, Level::Fail),
        ] {
            let check = clock(at(10_000), at(server), at(error));
            assert_eq!(level(&check), expected, "{server} {error}");
        }
    }

    #[test]
    fn password_over_plain_tcp_to_another_host_is_warned_about() {
        for (host, has_password, expected) in [
            (Some("db.internal"), true, Level::Warn),
            (Some("10.0.0.1"), true, Level::Warn),
            (Some("db.internal"), false, Level::Ok),
            (Some("localhost"), true, Level::Ok),
            (Some("127.0.0.2"), true, Level::Ok),
            (Some("::1"), true, Level::Ok),
            (None, true, Level::Ok),
        ] {
            let check = plain(host, has_password, "h");
            assert_eq!(level(&check), expected, "{host:?}");
        }
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = (1..=20).rev().map(Duration::from_millis).collect();
        let check = reachable(times, "h");
        assert_eq!(
            check.text.as_str(),
            "h, 20 pings: p50 10.00 ms, p99 20.00 ms"
        );
    }
}
