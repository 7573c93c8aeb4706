//! The rights of operators in `guide::redis`.

use lock_core::LockManager;
use lock_core::admin::AdminError;
use test_support::fixtures::{KEY, LONG, NAME, SOON};
use test_support::guide::acl_command;
use test_support::{RedisServer, Reply};
use tests::{backend_error_kind, connect, granted, start_waiter};

async fn operator(server: &RedisServer, command: &[String]) -> LockManager {
    assert_eq!(server.cli(command), Reply::Status("OK".into()));
    let url = format!("redis://operator:secret@{}", server.address());
    LockManager::connect(&url).await.unwrap()
}

/// Does everything that an operator may do.
async fn use_all(server: &RedisServer, operator: &LockManager) -> Result<(), AdminError> {
    let locks = connect(server).await;
    for waits in [false, true] {
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let waiter = if waits {
            Some(start_waiter(server, locks.lock(NAME).wait(SOON), 1).await)
        } else {
            None
        };
        assert!(operator.holder(NAME).await?.is_some());
        assert_eq!(operator.admin().list("*").await?.locks.len(), 1);
        operator.admin().force_release(NAME).await?;
        let released = operator.admin().force_release(NAME).free_at_once().await?;
        assert_eq!(released.is_granted, waits);
        if let Some(waiter) = waiter {
            granted(SOON, waiter).await.release().await.unwrap();
        }
        drop(held);
    }
    let held = locks
        .lock(NAME)
        .ttl(LONG)
        .permits(2)
        .acquire()
        .await
        .unwrap();
    let waiter = start_waiter(server, locks.lock(NAME).read().wait(SOON), 1).await;
    assert!(operator.holder(NAME).await?.is_some());
    let released = operator.admin().force_release(NAME).free_at_once().await?;
    assert!(released.is_granted);
    granted(SOON, waiter).await.release().await.unwrap();
    drop(held);
    server.cli(&["SET", KEY, "theirs", "PX", "60000"]);
    operator
        .admin()
        .force_release(NAME)
        .remove_foreign()
        .await?;
    server.cli(&["HSET", KEY, "uuid-a:1", "1"]);
    let seen = operator.admin().inspect_foreign(NAME).await?;
    let release = operator.admin().force_release(NAME).remove_foreign();
    release.expect_unchanged(&seen).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_of_operators_in_the_guide_are_sufficient() {
    let server = RedisServer::start();
    let operator = operator(&server, &acl_command("operator")).await;
    use_all(&server, &operator).await.unwrap();
    // The server logs every command that it refused.
    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused, Reply::Array(Vec::new()), "{refused:?}");
}

/// An operator has no right that no command needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_of_operators_in_the_guide_are_needed() {
    let command = acl_command("operator");
    for right in [
        "+scan",
        "+zcard",
        "+dump",
        "+set",
        "+del",
        "+incr",
        "+zrem",
        "+pttl",
        "+zrank",
        "+zadd",
        "+pexpireat",
    ] {
        let server = RedisServer::start();
        let mut fewer = command.clone();
        fewer.retain(|word| word != right);
        assert_eq!(
            fewer.len() + 1,
            command.len(),
            "{right} is not in the guide"
        );
        let operator = operator(&server, &fewer).await;
        let Err(AdminError::Lock(error)) = use_all(&server, &operator).await else {
            panic!("{right} is not needed");
        };
        let kind = backend_error_kind::<()>(Err(error));
        assert_eq!(
            kind,
            lock_core::error::BackendErrorKind::Permission,
            "{right}"
        );
    }
}

/// A program that watches a lock must not fill the server's log of refused commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_of_a_hash_without_dump_is_refused_only_to_identify_it() {
    let server = RedisServer::start();
    let mut command = acl_command("operator");
    command.retain(|word| word != "+dump");
    let operator = operator(&server, &command).await;
    server.cli(&["HSET", KEY, "uuid-a:1", "1"]);
    assert!(operator.holder(NAME).await.unwrap().is_none());
    operator.admin().inspect(NAME).await.unwrap();
    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused, Reply::Array(Vec::new()), "{refused:?}");
    let kind = backend_error_kind(operator.admin().inspect_foreign(NAME).await);
    assert_eq!(kind, lock_core::error::BackendErrorKind::Permission);
}
