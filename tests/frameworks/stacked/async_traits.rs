//! `#[async_trait]`, which always expands first, and its counterpart in tonic.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{LockError, LockManager, distributed_lock};

use crate::is_held;

#[async_trait]
trait Ship: Send + Sync {
    async fn by_ref(&self, id: u8) -> Result<bool, LockError>;
    async fn by_mut<'a>(&mut self, names: &'a [String]) -> Result<&'a str, LockError>;
    async fn by_arc(self: Arc<Self>, mut id: u8, pair: (u8, u8)) -> Result<u8, LockError>;
    async fn without(locks: &LockManager) -> Result<u8, LockError>
    where
        Self: Sized;

    #[distributed_lock(name = "provided:{id}", manager = self.locks())]
    async fn provided(&self, id: u8) -> Result<bool, LockError> {
        tokio::task::yield_now().await;
        Ok(is_held(self.locks(), "provided:4").await && id == 4)
    }

    fn locks(&self) -> &LockManager;
}

struct Van {
    locks: LockManager,
    id: u8,
}

#[async_trait]
impl Ship for Van {
    #[distributed_lock(name = "van:{self.id}:{id}", wait = "1s", manager = self.locks)]
    async fn by_ref(&self, id: u8) -> Result<bool, LockError> {
        tokio::task::yield_now().await;
        Ok(is_held(&self.locks, "van:3:4").await && self.id + 1 == id)
    }

    #[distributed_lock(name = "van:{self.id}", on_lost = continue, manager = self.locks)]
    async fn by_mut<'a>(&mut self, names: &'a [String]) -> Result<&'a str, LockError> {
        self.id += 1;
        Ok(&names[0])
    }

    #[distributed_lock(name = "van:{id}", bind = held, manager = self.locks)]
    async fn by_arc(self: Arc<Self>, mut id: u8, (left, right): (u8, u8)) -> Result<u8, LockError> {
        assert_eq!(held.key(), "lock:van:1");
        id += left + right + self.id;
        Ok(id)
    }

    #[distributed_lock(name = "van", on_contended = |e| Err(e), manager = locks)]
    async fn without(locks: &LockManager) -> Result<u8, LockError> {
        Ok(u8::from(is_held(locks, "van").await))
    }

    fn locks(&self) -> &LockManager {
        &self.locks
    }
}

#[tokio::test]
async fn async_trait_method_may_hold_a_lock() {
    let locks = LockManager::in_memory();
    let mut van = Van {
        locks: locks.clone(),
        id: 3,
    };
    assert!(van.by_ref(4).await.expect("free"));
    assert!(van.provided(4).await.expect("free"));
    assert_eq!(van.by_mut(&["a".into()]).await.expect("free"), "a");
    let van: Arc<dyn Ship> = Arc::new(van);
    let task = tokio::spawn(van.by_arc(1, (2, 3)));
    assert_eq!(task.await.expect("no panic").expect("free"), 10);
    assert_eq!(Van::without(&locks).await.expect("free"), 1);
    assert!(!is_held(&locks, "van").await);
}

/// Parameters that only the attribute uses. The compiler reports none of them as unused.
#[async_trait]
trait Named {
    async fn by_template(&self, id: u8) -> Result<bool, LockError>;
    async fn by_expression(&self, names: Vec<String>) -> Result<bool, LockError>;
    async fn by_option(&self, id: u8, wait: Duration) -> Result<u8, LockError>;
    async fn with_other_variables(&self, id: u8) -> Result<u8, LockError>;
}

#[async_trait]
impl Named for Van {
    #[distributed_lock(name = "van:{id}", manager = self.locks)]
    async fn by_template(&self, id: u8) -> Result<bool, LockError> {
        Ok(is_held(&self.locks, "van:5").await)
    }

    #[distributed_lock(name = names.join("-"), manager = self.locks)]
    async fn by_expression(&self, names: Vec<String>) -> Result<bool, LockError> {
        Ok(is_held(&self.locks, "a-b").await)
    }

    #[distributed_lock(name = "van:{id}", wait = dynamic(wait), manager = self.locks)]
    async fn by_option(&self, id: u8, wait: Duration) -> Result<u8, LockError> {
        Ok(id + self.id)
    }

    #[distributed_lock(name = "van:{id}", manager = self.locks)]
    async fn with_other_variables(&self, id: u8) -> Result<u8, LockError> {
        let doubled = |id: u8| 2 * id;
        Ok(doubled(self.id))
    }
}

#[tokio::test]
async fn async_trait_parameter_may_be_used_by_the_attribute_only() {
    let van = Van {
        locks: LockManager::in_memory(),
        id: 3,
    };
    assert!(van.by_template(5).await.expect("free"));
    let names = vec!["a".into(), "b".into()];
    assert!(van.by_expression(names).await.expect("free"));
    let wait = Duration::from_secs(1);
    assert_eq!(van.by_option(4, wait).await.expect("free"), 7);
    assert_eq!(van.with_other_variables(4).await.expect("free"), 6);
}

#[async_trait(?Send)]
trait Local {
    async fn run(&self, cell: &std::cell::Cell<u8>) -> Result<u8, LockError>;
}

#[async_trait(?Send)]
impl Local for Van {
    #[distributed_lock(name = "local", manager = self.locks)]
    async fn run(&self, cell: &std::cell::Cell<u8>) -> Result<u8, LockError> {
        tokio::task::yield_now().await;
        cell.set(1);
        Ok(cell.get())
    }
}

#[tokio::test]
async fn async_trait_method_need_not_be_send() {
    let van = Van {
        locks: LockManager::in_memory(),
        id: 3,
    };
    let cell = std::cell::Cell::new(0);
    assert_eq!(van.run(&cell).await.expect("free"), 1);
}

/// A service trait as tonic generates it from a protocol file.
#[tonic::async_trait]
trait Orders: Send + Sync + 'static {
    async fn ship(
        &self,
        request: tonic::Request<u64>,
    ) -> Result<tonic::Response<String>, tonic::Status>;
}

struct Service {
    locks: LockManager,
}

#[tonic::async_trait]
impl Orders for Service {
    #[distributed_lock(
        name = format!("order:{}", request.get_ref()),
        ttl = "30s",
        wait = "0s",
        on_contended = |e| Err(tonic::Status::aborted(e.to_string())),
        on_error = |e| Err(tonic::Status::unavailable(e.to_string())),
        manager = self.locks,
    )]
    async fn ship(
        &self,
        request: tonic::Request<u64>,
    ) -> Result<tonic::Response<String>, tonic::Status> {
        let order = request.into_inner();
        if order == 0 {
            return Err(tonic::Status::not_found("no such order"));
        }
        Ok(tonic::Response::new(format!("shipped {order}")))
    }
}

#[tokio::test]
async fn tonic_service_method_may_hold_a_lock() {
    let locks = LockManager::in_memory();
    let service = Service {
        locks: locks.clone(),
    };
    let shipped = service.ship(tonic::Request::new(7)).await;
    assert_eq!(shipped.expect("free").into_inner(), "shipped 7");
    let missing = service.ship(tonic::Request::new(0)).await;
    assert_eq!(missing.expect_err("none").code(), tonic::Code::NotFound);
    let _guard = locks.lock("order:7").acquire().await.expect("free");
    let busy = service.ship(tonic::Request::new(7)).await;
    assert_eq!(busy.expect_err("held").code(), tonic::Code::Aborted);
}
