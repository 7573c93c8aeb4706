//! The user that the README shows has all rights that locks need.

use lock_core::LockManager;
use test_support::fixtures::SOON;
use test_support::{RedisServer, Reply, eventually};
use tests::shut_down;

/// What the README has an administrator type.
fn user_command() -> Vec<String> {
    let readme = include_str!("../../../README.md").replace("\\\n", " ");
    let line = readme
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"))
        .expect("the README says which rights a user needs");
    line.split_whitespace()
        .map(|word| word.trim_matches('\'').to_owned())
        .collect()
}

/// Makes the user, and says how it connects.
fn url_of(server: &RedisServer, command: &[String]) -> String {
    assert_eq!(server.cli(command), Reply::Status("OK".into()));
    let user = &command[2];
    let password = command.iter().find_map(|word| word.strip_prefix('>'));
    let password = password.expect("the user has a password");
    format!("redis://{user}:{password}@{}", server.address())
}

/// Acquires, renews, tries, waits and releases.
async fn use_locks(server: &RedisServer, url: &str) {
    let here = LockManager::connect(url).await.unwrap();
    let there = LockManager::connect(url).await.unwrap();
    for (name, queue) in [
        ("plain", "{lock:plain}:q"),
        ("{tag}:tagged", "lock:{tag}:tagged:q"),
    ] {
        let guard = here.lock(name).acquire().await.unwrap();
        guard.renew().await.unwrap();
        assert!(there.lock(name).try_acquire().await.unwrap().is_none());
        let waiting = tokio::spawn(there.lock(name).wait(SOON).acquire());
        eventually(SOON, || server.cli(&["EXISTS", queue]) == Reply::Integer(1));
        // More dead waiters than one call looks at, ahead of the live one.
        let dead = "for i = 1, 250 do redis.call('ZADD', KEYS[1], -i, string.format('%08x', i) ..
            '-5a0b-4c53-9d55-2f1f6f3f7d10 s 2000 9999999999999 lk1:lock::dead web')
            end return 1";
        let added = server.cli(&["EVAL", dead, "1", queue]);
        assert_eq!(added, Reply::Integer(1));
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    }
    shut_down(&there).await;
    // Nothing but fencing counters is left behind.
    let counters = "return #redis.call('KEYS', '*:f')";
    assert_eq!(
        server.cli(&["DBSIZE"]),
        server.cli(&["EVAL", counters, "0"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_it_lists_are_enough() {
    let server = RedisServer::start();
    let url = url_of(&server, &user_command());
    use_locks(&server, &url).await;
    // The server keeps a record of whatever it refused.
    assert_eq!(server.cli(&["ACL", "LOG"]), Reply::Array(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_channel_locks_work_too() {
    let server = RedisServer::start();
    let mut command = user_command();
    command.retain(|word| !word.starts_with('&') && word != "+subscribe");
    command.push("resetchannels".to_owned());
    let url = url_of(&server, &command);
    use_locks(&server, &url).await;
    assert_ne!(server.cli(&["ACL", "LOG"]), Reply::Array(Vec::new()));
}
