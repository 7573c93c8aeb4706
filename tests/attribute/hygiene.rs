//! The expansion uses its own names, whatever names the user defines.

/// Without the prelude not even `Ok` or `Some` is in scope.
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

/// Items whose names an expansion could use for its locals, and which table columns often have. A
/// pattern with such a name would match the item.
mod items {
    use lock_core::{LockError, LockManager, distributed_lock};

    macro_rules! items {
        ($($name:ident)*) => {
            $(
                #[allow(non_camel_case_types, dead_code, reason = "diesel generates such columns")]
                #[derive(Clone, Copy)]
                pub(super) struct $name;
            )*
        };
    }

    mod columns {
        items!(name body value error context manager outcome guard failed lost);
        items!(slot acquire output options handler bound pinned locks_of e f w cx);
    }

    #[allow(
        unused_imports,
        reason = "the columns are in scope, as with `posts::dsl::*`"
    )]
    use columns::*;

    #[allow(non_upper_case_globals, dead_code, reason = "the columns are in scope")]
    const section: u8 = 1;
    #[allow(non_upper_case_globals, dead_code, reason = "the columns are in scope")]
    static answer: u8 = 2;

    #[distributed_lock(name = "plain:{id}", manager = all)]
    pub(super) async fn plain(all: &LockManager, id: u8) -> Result<u8, LockError> {
        let _ = (name, body, section + answer);
        Ok(id)
    }

    #[distributed_lock(
        name = format!("every:{}", id.0),
        ttl = dynamic(std::time::Duration::from_secs(1)),
        on_contended = |_| 2,
        on_error = { |_| 3 },
        bind = held,
        manager = all,
    )]
    pub(super) async fn every(all: &LockManager, mut id: (u8, u8)) -> u8 {
        id.0 += 1;
        id.0 + u8::from(held.is_lost())
    }

    #[distributed_lock(
        name = "other:{id.0}",
        on_contended = skip,
        on_error = |_| None,
        on_lost = continue,
        release = background,
        manager = all,
    )]
    pub(super) async fn other(all: &LockManager, id: (u8, u8)) -> Option<u8> {
        Some(id.1)
    }
}

/// Methods that all types have: a call without the trait's path would call them.
mod blanket {
    use lock_core::{LockError, LockManager, distributed_lock};

    #[allow(
        clippy::wrong_self_convention,
        reason = "the hardest case for the expansion"
    )]
    trait Hijack: Sized {
        fn as_mut(self) -> u8 {
            1
        }

        fn lost(self) -> u8 {
            2
        }

        fn ttl(self, _: u8) -> u8 {
            3
        }

        fn poll(self) -> u8 {
            4
        }

        fn into_future(self) -> u8 {
            5
        }
    }

    impl<T> Hijack for T {}

    #[distributed_lock(
        name = "hijack:{id}",
        ttl = "1s",
        on_contended = skip,
        bind = held,
        manager = locks,
    )]
    pub(super) async fn annotated(locks: &LockManager, id: u8) -> Result<Option<u8>, LockError> {
        tokio::task::yield_now().await;
        let hijacked = id.as_mut() + id.lost() + id.ttl(0) + id.poll() + Hijack::into_future(id);
        Ok(Some(hijacked + u8::from(held.is_lost())))
    }
}

#[tokio::test]
async fn expansion_compiles_with_items_named_like_its_locals() {
    let locks = lock_core::LockManager::in_memory();
    assert_eq!(items::plain(&locks, 1).await.expect("free"), 1);
    assert_eq!(items::every(&locks, (1, 2)).await, 2);
    assert_eq!(items::other(&locks, (1, 2)).await, Some(2));
}

#[tokio::test]
async fn expansion_compiles_with_blanket_trait_methods() {
    let locks = lock_core::LockManager::in_memory();
    assert!(matches!(blanket::annotated(&locks, 1).await, Ok(Some(15))));
}

#[tokio::test]
async fn expansion_compiles_without_the_prelude() {
    assert!(without_a_prelude::run(&lock_core::LockManager::in_memory()).await);
}

#[tokio::test]
async fn expansion_compiles_with_shadowed_names() {
    let locks = lock_core::LockManager::in_memory();
    assert!(shadows::run(&locks).await);
    assert_eq!(shadows::count(&locks).await, Some(3));
}
