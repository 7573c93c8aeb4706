//! The commands of the guide that a reader pastes into a shell.

use std::process::Command;

/// Replaces `redis-cli` by a function that prints its arguments.
const PRINT: &str = "redis-cli() { printf '%s\\0' \"$@\"; }\n";

const REDIS: &str = include_str!("../../../lock-core/docs/redis.md");
const TOPOLOGIES: &str = include_str!("../../../lock-core/docs/topologies.md");

/// Returns the words of the command in `guide::redis` that creates this user, as bash reads them.
#[track_caller]
pub fn acl_command(user: &str) -> Vec<String> {
    command(REDIS, &format!("redis-cli ACL SETUSER {user} "))
}

/// Returns the words of the command in `guide::topologies` that gives the user more rights in a cluster.
#[track_caller]
pub fn acl_command_for_clusters() -> Vec<String> {
    command(TOPOLOGIES, "redis-cli ACL SETUSER locks ")
}

/// Returns the words of the command in `guide::topologies` that creates a user of the Sentinels, without the
/// port.
#[track_caller]
pub fn acl_command_for_sentinels() -> Vec<String> {
    let mut words = command(TOPOLOGIES, "redis-cli -p 26379 ACL SETUSER watcher ");
    words.drain(..2);
    words
}

/// Returns the words of the command on a page that begins so, as bash reads them.
#[track_caller]
fn command(page: &str, begin: &str) -> Vec<String> {
    let at = page.find(&format!("```sh\n{begin}"));
    let block = &page[at.expect("the page has the command") + "```sh\n".len()..];
    let (block, _) = block.split_once("```").expect("the block ends");
    let bash = Command::new("bash")
        .args(["-euc", &format!("{PRINT}{block}")])
        .output()
        .expect("bash runs");
    let errors = String::from_utf8_lossy(&bash.stderr);
    assert!(bash.status.success() && errors.is_empty(), "{errors}");
    let words = String::from_utf8(bash.stdout).expect("the words are text");
    words
        .split_terminator('\0')
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn bash_reads_the_command_as_written() {
    let words = acl_command("locks");
    assert_eq!(words[..5], ["ACL", "SETUSER", "locks", "on", ">secret"]);
    assert!(words.iter().all(|word| !word.contains('\'')), "{words:?}");
    assert!(words.contains(&"&lk1:lock::*".to_owned()), "{words:?}");
    assert_eq!(acl_command_for_clusters()[..3], ["ACL", "SETUSER", "locks"]);
    assert_eq!(
        acl_command_for_sentinels()[..3],
        ["ACL", "SETUSER", "watcher"]
    );
}
