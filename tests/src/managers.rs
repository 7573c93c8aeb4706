//! Managers, and the keys that they leave on the server.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lock_core::dialect::{Dialect, ReleaseMethod};
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockGuard, LockManager, LockManagerBuilder, LockRequest};
use test_support::fixtures::{NAME, SOON, keys, ms};
use test_support::{RedisServer, Reply};

/// The dialect of `SET NX PX` that releases by a script.
pub const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};

/// The dialect of `SET NX PX` that releases in a transaction.
pub const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::WatchMulti,
};

/// The dialect of `SET NX PX` that releases by commands of the server, which not all servers have.
pub const SET_NX_PX_CONDITIONAL: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Conditional,
};

/// The dialect of `SET NX PX` that releases in the best way that the server supports.
pub const SET_NX_PX_AUTO: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Auto,
};

/// Returns whether the server under test has commands that check the owner.
pub fn has_owner_commands(server: &RedisServer) -> bool {
    let found = server.cli(&["COMMAND", "INFO", "DELEX", "DELIFEQ"]);
    let is_known = |reply: &Reply| matches!(reply, Reply::Array(fields) if !fields.is_empty());
    found.array().iter().any(is_known)
}

/// Returns all dialects that the server under test supports.
pub fn supported_dialects() -> Vec<Dialect> {
    static HAS_COMMANDS: OnceLock<bool> = OnceLock::new();
    let has_commands = *HAS_COMMANDS.get_or_init(|| has_owner_commands(&RedisServer::start()));
    let all = Dialect::all().iter().copied();
    all.filter(|dialect| has_commands || *dialect != SET_NX_PX_CONDITIONAL)
        .collect()
}

/// Connects a manager to a server. Its requests try once, unless they set a `wait`.
pub async fn connect(server: &RedisServer) -> LockManager {
    connect_to(&server.url()).await
}

/// Makes requests without `wait` try once, so that a test that does not wait fails at once and not
/// after the default wait.
pub fn one_attempt(builder: LockManagerBuilder) -> LockManagerBuilder {
    builder.default_wait(Duration::ZERO)
}

/// Connects a manager to a URL. Its requests try once, unless they set a `wait`.
pub async fn connect_to(url: &str) -> LockManager {
    one_attempt(LockManager::builder())
        .connect(url)
        .await
        .unwrap()
}

/// Connects a manager to the server that `DISTRIBUTED_LOCK_URL` names, as [`connect`] does.
pub async fn connect_to_env() -> LockManager {
    connect_to(
        &std::env::var("DISTRIBUTED_LOCK_URL").expect("DISTRIBUTED_LOCK_URL names the server"),
    )
    .await
}

/// Connects a manager with this command timeout to a URL.
pub async fn connect_with_timeout(url: &str, timeout: Duration) -> LockManager {
    let builder = one_attempt(LockManager::builder()).command_timeout(timeout);
    builder.connect(url).await.unwrap()
}

/// Waits until all releases and cancels are done.
///
/// # Panics
///
/// Panics if that takes longer than [`SOON`].
pub async fn shut_down(locks: &LockManager) {
    let started = Instant::now();
    loop {
        let open = locks.health().cleanups_open;
        if open == 0 {
            return;
        }
        assert!(started.elapsed() < SOON, "{open} are open");
        tokio::time::sleep(ms(1)).await;
    }
}

/// Acquires and releases [`NAME`](test_support::fixtures::NAME) once. From then on the manager has
/// its connection, and the server knows the scripts.
pub async fn acquire_and_release(locks: &LockManager) {
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// Acquires and releases the lock among a thousand others, however busy the machine is. A holder that
/// doesn't run for two seconds loses its handover lease, and still sends its commands.
pub async fn section_of_a_queue(request: LockRequest) {
    let held = request.wait(Duration::from_secs(60)).acquire().await;
    let released = held.unwrap().release().await;
    assert!(
        matches!(released, Ok(()) | Err(LockError::Lost { .. })),
        "{released:?}"
    );
}

/// Shuts the manager down, and checks that the server has no key but fencing counters.
pub async fn assert_nothing_left(server: &RedisServer, locks: &LockManager) {
    shut_down(locks).await;
    assert_eq!(keys(server), Vec::<String>::new());
}

/// The fencing token of a lock that has one.
#[track_caller]
pub fn fencing_token(held: &LockGuard) -> u64 {
    held.fencing_token()
        .expect("every grant has a token")
        .as_u64()
}

/// The kind of a backend error. A contended lock is no backend error.
#[track_caller]
pub fn backend_error_kind<T: Debug>(outcome: Result<T, LockError>) -> BackendErrorKind {
    match outcome {
        Err(LockError::Backend(error)) => error.kind(),
        other => panic!("expected a backend error: {other:?}"),
    }
}
