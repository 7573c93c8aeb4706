use std::collections::BTreeSet;

use super::*;

/// Returns the rights in the command of the guide that creates a user.
fn guide(user: &str) -> BTreeSet<&'static str> {
    let page = include_str!("../../../../lock-core/docs/redis.md");
    let (_, block) = page.split_once(&format!("ACL SETUSER {user} ")).unwrap();
    let (block, _) = block.split_once("```").unwrap();
    // The command is for a shell: some words have quotes.
    let words = block.split_whitespace();
    let rights = words.map(|word| word.trim_matches('\''));
    // A manager without a name needs no right to set one.
    rights
        .filter_map(|word| word.strip_prefix('+'))
        .filter(|right| !right.starts_with("client|"))
        .collect()
}

/// The guide has the commands that create the users.
#[test]
fn rights_are_those_of_the_guide() {
    let all = |lists: &[&[&'static str]]| -> BTreeSet<&str> {
        lists.iter().copied().flatten().copied().collect()
    };
    assert_eq!(all(&[LOCK, SPARED, SHARED, NOTIFY]), guide("locks"));
    let release = all(&[RELEASE, NOTIFY_NEXT, SHARED_NEXT, FOREIGN]);
    let mut operator = all(&[SHOW, SPARED, LIST, DOCTOR]);
    operator.extend(release);
    assert_eq!(operator, guide("operator"));
}

/// The guide adds these to the rights of a lock on one server. It ends a subscription with a command that `doctor`
/// doesn't need, because its connection ends.
#[test]
fn rights_in_a_cluster_are_those_of_the_guide() {
    let page = include_str!("../../../../lock-core/docs/topologies.md");
    let (_, block) = page.split_once("redis-cli ACL SETUSER locks ").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let words = block.split_whitespace();
    let words = words.map(|word| word.trim_matches('\''));
    let guide: BTreeSet<_> = words
        .filter_map(|word| word.strip_prefix('+'))
        .filter(|right| *right != "sunsubscribe")
        .collect();
    let mut needed = [CLUSTER, SPARED_IN_CLUSTER, NOTIFY_IN_CLUSTER].concat();
    needed.retain(|right| !NOTIFY.contains(right));
    assert_eq!(guide, needed.into_iter().collect());
}

/// Each right is probed, except the one that has a check of its own.
#[test]
fn each_right_has_a_probe() {
    let probes = probes(&Names::new("lock:"));
    for right in [
        LOCK,
        SPARED,
        SHARED,
        NOTIFY,
        SHOW,
        LIST,
        RELEASE,
        NOTIFY_NEXT,
        SHARED_NEXT,
        FOREIGN,
        DOCTOR,
        CLUSTER,
        SPARED_IN_CLUSTER,
        NOTIFY_IN_CLUSTER,
        NOTIFY_NEXT_IN_CLUSTER,
        QUORUM,
    ]
    .concat()
    {
        let is_probed = probes.iter().any(|probe| probe.right == right);
        let is_channel = ["subscribe", "ssubscribe"].contains(&right);
        assert!(is_probed || is_channel, "{right}");
    }
}

#[test]
fn each_missing_right_is_named_once() {
    let rights = Rights {
        user: "x".to_owned(),
        needs: Needs::OF_ONE,
        commands: vec![
            ("get", Lack::Right),
            ("pexpire", Lack::Command),
            ("incr", Lack::Without("set")),
            ("scan", Lack::Right),
        ],
        keys: vec!["~lock:*".to_owned()],
        channel: None,
        unknown: None,
    };
    assert_eq!(
        rights.lacks(&[SHOW, LOCK, SHOW]),
        [
            "+get",
            "+incr (not checked without +set)",
            "+pexpire (the server does not have the command)",
            "~lock:*"
        ]
    );
}

#[test]
fn channel_patterns_are_encoded() {
    assert_eq!(channel_pattern("lock:"), "&lk1:lock::*");
    assert_eq!(channel_pattern("a b/"), "&lk1:a%20b%2F:*");
}
