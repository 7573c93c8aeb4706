//! Whatever the user's names are, the expansion means its own.

/// Without the prelude not even `Ok` or `Some` is there.
mod without_a_prelude {
    #![no_implicit_prelude]

    use ::lock_core::{LockError, LockManager, distributed_lock};

    const TTL: ::core::time::Duration = ::core::time::Duration::from_secs(1);

    #[distributed_lock(
        name = "a:{id}",
        hash_tag = "{id}",
        ttl = TTL,
        wait = "1s",
        renew = "300ms",
        max_hold = "5s",
        min_hold = "1ms",
        on_contended = skip,
        bind = held,
        manager = locks,
    )]
    async fn every_option(
        locks: &LockManager,
        id: u8,
    ) -> ::core::result::Result<::core::option::Option<u8>, LockError> {
        ::core::assert!(!held.is_lost());
        ::core::result::Result::Ok(::core::option::Option::Some(id))
    }

    #[distributed_lock(
        name = "b",
        on_contended = |_| 2,
        on_error = |_| 3,
        on_lost = continue,
        release = background,
        manager = locks,
    )]
    pub(super) async fn the_others(locks: &LockManager) -> u8 {
        1
    }

    pub(super) async fn run(locks: &LockManager) -> bool {
        let answer = every_option(locks, 7).await;
        ::core::matches!(
            answer,
            ::core::result::Result::Ok(::core::option::Option::Some(7))
        ) && the_others(locks).await == 1
    }
}

mod shadows {
    use lock_core::{LockError, LockManager, distributed_lock};

    /// Modules that a path without leading colons would find.
    mod std {
        pub(super) const HERE: u8 = 1;
    }

    mod core {
        pub(super) const HERE: u8 = 2;
    }

    mod lock_core_ {
        pub(super) const HERE: u8 = 3;
    }

    #[derive(Debug)]
    struct Option;
    struct Result;
    struct Duration;
    struct Future;
    struct Some;
    #[derive(Debug, PartialEq)]
    struct Ok(u8);
    struct Err;

    const fn drop() -> (Option, Result, Duration, Future, Some, Err) {
        (Option, Result, Duration, Future, Some, Err)
    }

    #[distributed_lock(
        name = "shadow:{guard}",
        ttl = "1s",
        on_error = |_| Ok(outcome),
        release = background,
        manager = manager,
    )]
    async fn shadowed(manager: &LockManager, guard: u8, outcome: u8, error: &str) -> Ok {
        let _ = (drop(), error);
        let context = std::HERE + core::HERE + lock_core_::HERE;
        Ok(guard + outcome + context)
    }

    pub(super) async fn run(locks: &LockManager) -> bool {
        shadowed(locks, 1, 2, "").await == Ok(9)
    }

    #[distributed_lock(name = "shadow", manager = manager)]
    async fn labels(manager: &LockManager) -> ::core::result::Result<u8, LockError> {
        let mut count = 0;
        'held: for _ in 0..3 {
            for _ in 0..2 {
                count += 1;
                if count == 3 {
                    break 'held;
                }
            }
        }
        ::core::result::Result::Ok(count)
    }

    pub(super) async fn count(locks: &LockManager) -> ::core::option::Option<u8> {
        labels(locks).await.ok()
    }
}

#[tokio::test]
async fn the_prelude_may_be_missing() {
    assert!(without_a_prelude::run(&lock_core::LockManager::in_memory()).await);
}

#[tokio::test]
async fn names_may_be_shadowed() {
    let locks = lock_core::LockManager::in_memory();
    assert!(shadows::run(&locks).await);
    assert_eq!(shadows::count(&locks).await, Some(3));
}
