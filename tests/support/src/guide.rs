//! The commands of the guide that a reader pastes into a shell.

use std::process::Command;

/// Replaces `redis-cli` by a function that prints its arguments.
const PRINT: &str = "redis-cli() { printf '%s\\0' \"$@\"; }\n";

/// Returns the words of the command in `guide::redis` that creates this user, as bash reads them.
#[track_caller]
pub fn acl_command(user: &str) -> Vec<String> {
    let page = include_str!("../../../lock-core/docs/redis.md");
    let begin = format!("```sh\nredis-cli ACL SETUSER {user} ");
    let at = page.find(&begin);
    let block = &page[at.expect("`guide::redis` has the command") + "```sh\n".len()..];
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
}
