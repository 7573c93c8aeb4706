//! Several tasks pay two orders at the same time: first without a lock, then with one.
//!
//! Needs no server: `cargo run -p examples --example quickstart`

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;

/// The tasks and their orders: one customer clicked three times, another one once.
const CLICKS: [(char, u32); 4] = [('A', 41), ('B', 41), ('C', 41), ('D', 42)];

/// The time that the bank needs for a charge.
const BANK: Duration = Duration::from_millis(150);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // In a service: LockManager::connect("redis://..").await?
    let locks = LockManager::in_memory();
    locks.install_global()?;

    println!("Without a lock:");
    let shop = Arc::new(Shop::open());
    let mut tasks = JoinSet::new();
    for (task, order) in CLICKS {
        tasks.spawn(pay(Arc::clone(&shop), task, order));
    }
    tasks.join_all().await;
    shop.close();

    println!("With #[distributed_lock(name = \"order:{{order}}\", ..)]:");
    let shop = Arc::new(Shop::open());
    let mut tasks = JoinSet::new();
    for (task, order) in CLICKS {
        tasks.spawn(pay_once(Arc::clone(&shop), task, order));
    }
    for paid in tasks.join_all().await {
        paid?;
    }
    shop.close();
    locks.shutdown().await?;
    Ok(())
}

/// Checks whether the order is paid, and pays it if not. While the bank works, other tasks check too.
async fn pay(shop: Arc<Shop>, task: char, order: u32) {
    if shop.is_paid(order) {
        shop.print(task, order, "is paid already");
        return;
    }
    shop.print(task, order, "is not paid: charging the card");
    tokio::time::sleep(BANK).await;
    shop.charged(order);
    shop.print(task, order, "card charged");
}

/// Does the same, with one task at a time for each order.
#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "5s")]
async fn pay_once(shop: Arc<Shop>, task: char, order: u32) -> Result<(), LockError> {
    pay(shop, task, order).await;
    Ok(())
}

struct Shop {
    opened: Instant,
    paid: Mutex<BTreeSet<u32>>,
    charges: Mutex<BTreeMap<u32, u32>>,
}

impl Shop {
    fn open() -> Self {
        Self {
            opened: Instant::now(),
            paid: Mutex::default(),
            charges: Mutex::default(),
        }
    }

    fn is_paid(&self, order: u32) -> bool {
        self.paid.lock().unwrap().contains(&order)
    }

    fn charged(&self, order: u32) {
        self.paid.lock().unwrap().insert(order);
        *self.charges.lock().unwrap().entry(order).or_default() += 1;
    }

    fn print(&self, task: char, order: u32, what: &str) {
        let ms = self.opened.elapsed().as_millis();
        println!("  {ms:>4} ms  task {task}: order {order} {what}");
    }

    /// Prints how often each card was charged.
    fn close(&self) {
        for (order, times) in self.charges.lock().unwrap().iter() {
            let verdict = if *times == 1 { "right" } else { "WRONG" };
            println!("  => order {order} was charged {times} x: {verdict}");
        }
        println!();
    }
}
