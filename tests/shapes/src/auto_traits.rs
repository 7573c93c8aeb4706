//! Futures that are `Send` or `'static`: spawned tasks require both.
#![deny(warnings)]

use std::fmt::Debug;
use std::future::Future;
use std::sync::Mutex;

use lock_core::LockError;

use crate::support::{Tracked, pause};

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "auto_traits:spawned")
)]
async fn spawned(a: Tracked, b: String) -> Result<usize, LockError> {
    let local = Tracked("local");
    pause().await;
    Ok(a.length() + b.len() + local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "auto_traits:borrowing")
)]
async fn borrowing<'a>(a: &'a mut Vec<u8>, b: &Mutex<u8>) -> Result<&'a [u8], LockError> {
    let number = *b.lock().map_err(|_| LockError::NotConfigured)?;
    pause().await;
    a.push(number);
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "auto_traits:generic")
)]
async fn generic<T: Debug + Send>(a: T, b: &(dyn Debug + Sync)) -> Result<String, LockError> {
    pause().await;
    Ok(format!("{:?} {:?}", a, b))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "auto_traits:not_kept")
)]
async fn not_kept() -> Result<u8, LockError> {
    let number = {
        let counted = std::rc::Rc::new(1);
        *counted
    };
    pause().await;
    Ok(number)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "auto_traits:opaque")
)]
async fn opaque(a: Tracked) -> Result<impl Fn() -> usize + Send, LockError> {
    Ok(move || a.length())
}

/// Not `Send`, with and without the attribute.
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "auto_traits:local")
)]
async fn local(a: std::rc::Rc<Tracked>) -> Result<usize, LockError> {
    pause().await;
    Ok(a.length())
}

struct Shared<T>(T);

impl<T: Send + Sync> Shared<T> {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "auto_traits:method")
    )]
    async fn method(&self, a: Tracked) -> Result<&T, LockError> {
        pause().await;
        drop(a);
        Ok(&self.0)
    }
}

fn task<F: Future + Send + 'static>(future: F) -> F {
    future
}

fn send<F: Future + Send>(future: F) -> F {
    future
}

pub(crate) async fn run() {
    show!(spawned => task(spawned(Tracked("a"), "b".to_owned())));
    show!(borrowing => send(borrowing(&mut vec![1], &Mutex::new(2))));
    show!(generic => send(generic(Tracked("a"), &1)));
    show!(not_kept => task(not_kept()));
    show!(opaque => async { task(opaque(Tracked("a"))).await.map(|length| length()) });
    show!(local(std::rc::Rc::new(Tracked("a"))));
    show!(method => send(Shared(1).method(Tracked("a"))));
}
