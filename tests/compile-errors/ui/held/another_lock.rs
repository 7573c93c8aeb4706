use lock_core::typed::Holds;
use lock_core::{Held, Lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

#[derive(Lock)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

fn price(stock: &impl Holds<Stock<'static>>) -> usize {
    stock.lock().sku.len()
}

fn f(order: &Held<OrderLock>) -> usize {
    price(order)
}

fn main() {}
