//! Functions below a `forbid`. An `allow` in the expansion would not compile.

use lock_core::LockManager;

/// The plain functions compile here, so the annotated ones must, too.
mod functions {
    // One by one: an `allow` of a lint whose group is forbidden is only a warning.
    #![forbid(
        dead_code,
        non_snake_case,
        unreachable_code,
        unused_assignments,
        unused_braces,
        unused_imports,
        unused_must_use,
        unused_mut,
        unused_parens,
        unused_qualifications,
        unused_variables,
        clippy::needless_return,
        clippy::redundant_closure,
        clippy::redundant_closure_for_method_calls,
        clippy::shadow_unrelated,
        clippy::used_underscore_binding
    )]

    use std::sync::Arc;

    use lock_core::{Lock, LockError, LockManager, distributed_lock};

    #[derive(Clone, Lock)]
    #[lock(name = "basket:{owner}", ttl = "5s", crate = ::lock_core)]
    pub(super) struct Basket {
        owner: String,
        #[lock(not_in_name)]
        goods: Vec<u8>,
    }

    impl Basket {
        pub(super) fn new() -> Self {
            Self {
                owner: "owner".into(),
                goods: Vec::new(),
            }
        }

        #[distributed_lock(name = "{self.owner}", manager = locks)]
        pub(super) async fn by_value(self, locks: &LockManager) -> Result<String, LockError> {
            Ok(self.owner)
        }

        #[distributed_lock(lock = Self::clone(&self), manager = locks, on_contended = |e| Err(e))]
        pub(super) async fn by_arc(
            self: Arc<Self>,
            locks: &LockManager,
        ) -> Result<usize, LockError> {
            Ok(self.goods.len())
        }

        #[distributed_lock(name = self.owner.as_str(), manager = locks, bind = held)]
        pub(super) async fn by_reference(
            &mut self,
            locks: &LockManager,
            mut good: u8,
        ) -> Result<usize, LockError> {
            good += u8::from(held.is_lost());
            self.goods.push(good);
            self.owner = String::new();
            Ok(self.goods.len())
        }
    }

    /// The body captures its parameters, because the closure may use them.
    #[distributed_lock(name = "{name}", manager = locks, on_contended = |_| Ok(count))]
    pub(super) async fn captured(
        locks: &LockManager,
        name: &str,
        mut count: usize,
        (mut first, second): (Vec<u8>, u8),
    ) -> Result<usize, LockError> {
        count += first.len();
        first.push(second);
        first = vec![second; first.len()];
        while let Some(last) = first.pop() {
            if last == 0 {
                count = 0;
                return Ok(count);
            }
        }
        Ok(count)
    }

    /// `manager` and the body both change `all`.
    #[distributed_lock(name = "shared", manager = all.remove(0))]
    pub(super) async fn shared(mut all: Vec<LockManager>) -> Result<usize, LockError> {
        all.clear();
        Ok(all.len())
    }

    #[distributed_lock(name = ["a", "{count}"], manager = locks, on_error = |e| e.to_string())]
    pub(super) async fn bound(locks: &LockManager, mut count: u8) -> String {
        count += 1;
        count.to_string()
    }

    #[distributed_lock(name = "skipped", manager = locks, on_contended = skip, on_error = |e| drop(e))]
    pub(super) async fn skipped(locks: &LockManager, mut count: u8) {
        while count > 0 {
            count -= 1;
        }
    }

    #[distributed_lock(name = "never", manager = locks, on_error = |e| panic!("{e}"))]
    pub(super) async fn never(locks: LockManager) -> ! {
        let _: Result<(), _> = locks.shutdown().await;
        std::future::pending().await
    }
}

/// A receiver that is assigned needs an `allow` of `unused_assignments`, and of nothing else.
mod assigned_receiver {
    #![forbid(dead_code, unreachable_code, unused_mut, unused_variables)]

    use lock_core::{LockError, LockManager, distributed_lock};

    pub(super) struct Count(pub(super) u8);

    impl Count {
        #[distributed_lock(name = "count:{self.0}", manager = locks)]
        pub(super) async fn reset(mut self, locks: &LockManager) -> Result<(), LockError> {
            self.0 = 0;
            Ok(())
        }
    }
}

#[tokio::test]
async fn functions_below_forbidden_lints_compile_and_run() {
    let locks = &LockManager::in_memory();
    let mut basket = functions::Basket::new();
    let owner = basket.clone().by_value(locks).await;
    assert_eq!(owner.expect("free"), "owner");
    let length = std::sync::Arc::new(basket.clone()).by_arc(locks).await;
    assert_eq!(length.expect("free"), 0);
    assert_eq!(basket.by_reference(locks, 1).await.expect("free"), 1);
    let captured = functions::captured(locks, "x", 1, (vec![1], 2)).await;
    assert_eq!(captured.expect("free"), 2);
    let shared = functions::shared(vec![locks.clone(), locks.clone()]).await;
    assert_eq!(shared.expect("free"), 0);
    assert_eq!(functions::bound(locks, 1).await, "2");
    functions::skipped(locks, 1).await;
    drop(functions::never(locks.clone()));
    let count = assigned_receiver::Count(1);
    count.reset(locks).await.expect("free");
}
