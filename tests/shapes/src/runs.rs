//! `run` of each kind of request, with bodies whose types are inferred: in spawned tasks, in a `JoinSet`, in boxed
//! futures and in methods of `async_trait`. They are the same with and without the attribute: it has to compile.
#![deny(warnings)]

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use lock_core::{Held, Lock, LockError, LockManager};

use crate::support::{pause, report};

#[derive(Lock)]
#[lock(name = "runs:order:{id}")]
struct OrderLock {
    id: usize,
}

#[derive(Lock)]
#[lock(name = "runs:customer:{id}")]
struct CustomerLock<'a> {
    id: &'a str,
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<usize, LockError>> + Send + 'a>>;

fn boxed<'a>(locks: &'a LockManager, name: &'a str, total: &'a mut usize) -> Boxed<'a> {
    Box::pin(async move {
        let one = locks.lock(name).run(async |held| {
            pause().await;
            *total += held.key().len();
        });
        one.await?;
        let set = locks.lock_all([name, "runs:other"]).run(async |both| {
            pause().await;
            *total += both.guards().len();
        });
        set.await?;
        let declared = locks.hold(OrderLock { id: 7 }).run(async |order| {
            pause().await;
            *total += order.id;
        });
        declared.await?;
        // A lock that borrows needs the type of the parameter.
        let body = async |customer: &Held<CustomerLock<'_>>| {
            pause().await;
            customer.id.len()
        };
        *total += locks.hold(CustomerLock { id: name }).run(body).await?;
        Ok(*total)
    })
}

#[async_trait]
trait Service {
    async fn serve(&self, name: &str) -> Result<usize, LockError>;
}

struct Shop {
    locks: LockManager,
}

#[async_trait]
impl Service for Shop {
    async fn serve(&self, name: &str) -> Result<usize, LockError> {
        let one = self.locks.lock(name).run(async |held| {
            pause().await;
            held.key().len() + name.len()
        });
        let one = one.await?;
        let set = self.locks.lock_all([name, "runs:other"]).run(async |both| {
            pause().await;
            both.guards().len() + name.len()
        });
        let set = set.await?;
        let declared = self.locks.hold(OrderLock { id: 7 }).run(async |order| {
            pause().await;
            order.id
        });
        Ok(one + set + declared.await?)
    }
}

async fn spawned(locks: LockManager) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    let shared = locks.clone();
    tasks.spawn(async move {
        let mut lines = vec![1];
        let run = shared.lock("runs:one").run(async |held| {
            pause().await;
            lines.push(held.key().len());
            lines.len()
        });
        run.await
    });
    let shared = locks.clone();
    tasks.spawn(async move {
        let run = shared.lock_all(vec![String::from("runs:a"), String::from("runs:b")]);
        run.run(async |both| {
            pause().await;
            both.into_iter().count()
        })
        .await
    });
    let shared = locks.clone();
    tasks.spawn(async move {
        let guard = shared.lock("runs:awaited").await?;
        pause().await;
        Ok(guard.key().len())
    });
    let shared = locks.clone();
    tasks.spawn(async move {
        let id = String::from("c-7");
        let customer = shared.hold(CustomerLock { id: &id }).acquire().await?;
        pause().await;
        Ok(customer.id.len())
    });
    // The future of an acquire is a type that can be stored and spawned by itself.
    let acquiring = locks.lock("runs:stored").acquire();
    let stored = tokio::spawn(acquiring).await.expect("no panic");
    let mut total = stored.map_or(0, |guard| guard.key().len());
    while let Some(done) = tasks.join_next().await {
        total += done.expect("no panic").expect("the lock is free");
    }
    total
}

pub(crate) async fn run() {
    let locks = LockManager::in_memory();
    let mut total = 0;
    let outcome = boxed(&locks, "runs:boxed", &mut total).await;
    report("runs::boxed", &format!("{:?}", outcome));
    let shop = Shop {
        locks: locks.clone(),
    };
    let served = tokio::spawn(async move { shop.serve("runs:served").await });
    report("runs::served", &format!("{:?}", served.await));
    report("runs::spawned", &format!("{}", spawned(locks).await));
}
