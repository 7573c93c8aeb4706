//! The user in `guide::redis` has all rights that locks need.

use lock_core::LockManager;
use test_support::fixtures::SOON;
use test_support::guide::acl_command;
use test_support::{RedisServer, Reply, eventually};
use tests::shut_down;

/// Creates the user, and returns the URL to connect as this user.
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
        // More dead waiters than one call checks, before the live one.
        let dead = "for i = 1, 250 do redis.call('ZADD', KEYS[1], -i, string.format('%08x', i) ..
            '-5a0b-4c53-9d55-2f1f6f3f7d10 s 2000 9999999999999 lk1:lock::dead web')
            end return 1";
        let added = server.cli(&["EVAL", dead, "1", queue]);
        assert_eq!(added, Reply::Integer(1));
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    }
    shut_down(&there).await;
    // Only the fencing counters are left.
    let counters = "return #redis.call('KEYS', '*:f')";
    assert_eq!(
        server.cli(&["DBSIZE"]),
        server.cli(&["EVAL", counters, "0"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_in_the_guide_are_sufficient() {
    let server = RedisServer::start();
    let url = url_of(&server, &acl_command("locks"));
    use_locks(&server, &url).await;
    // The server logs every command that it refused.
    assert_eq!(server.cli(&["ACL", "LOG"]), Reply::Array(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_work_without_the_channel() {
    let server = RedisServer::start();
    let mut command = acl_command("locks");
    command.retain(|word| !word.starts_with('&') && word != "+subscribe");
    command.push("resetchannels".to_owned());
    let url = url_of(&server, &command);
    use_locks(&server, &url).await;
    assert_ne!(server.cli(&["ACL", "LOG"]), Reply::Array(Vec::new()));
}
