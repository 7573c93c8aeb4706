use super::*;
use crate::manager::LockManager;
use crate::request::{Declared, LockRequest};
use lock_protocol::key::LockName;
use lock_protocol::kind::Kind;

#[derive(Clone)]
struct Order(u64);

impl Lock for Order {
    type Kind = ExclusiveKind;

    fn declaration(&self) -> Declaration {
        Declaration {
            name: LockName::from(format!("order:{}", self.0)),
            kind: Kind::Exclusive,
            ttl: Some(Duration::from_secs(7)),
            wait: Some(Duration::ZERO),
        }
    }
}

#[test]
fn proof_has_the_size_of_its_parts() {
    assert_eq!(
        size_of::<Held<Order>>(),
        size_of::<LockGuard>() + size_of::<u64>()
    );
}

#[test]
fn proofs_are_send_sync_and_static() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Held<Order>>();
    check::<LockRequest<Declared<Order, Read>>>();
}

#[tokio::test(start_paused = true)]
async fn declared_times_are_those_of_the_request() {
    let locks = LockManager::in_memory();
    let held = locks.hold(Order(7)).acquire().await.unwrap();
    assert_eq!(held.guard().key(), "lock:order:7");
    assert_eq!(held.remaining(), Duration::from_secs(7));
    let other = locks.hold(Order(7)).acquire().await;
    assert!(other.unwrap_err().is_contended());
    assert!(locks.hold(Order(7)).try_acquire().await.unwrap().is_none());
    assert!(locks.hold(Order(8)).try_acquire().await.unwrap().is_some());
    held.release().await.unwrap();
    let id = locks.hold(Order(7)).run(async |order| order.0).await;
    assert_eq!(id.unwrap(), 7);
}

#[tokio::test]
async fn request_is_cloned_and_awaited() {
    let locks = LockManager::in_memory();
    let request = locks.hold(Order(7)).wait(Duration::from_millis(1));
    let held = request.clone().await.unwrap();
    assert_eq!(held.0, 7);
    assert!(request.await.unwrap_err().is_contended());
}
