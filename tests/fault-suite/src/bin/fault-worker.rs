//! A client process of the fault suite. What it is to do is in its argument; its input ends when
//! it is to leave.

use fault_suite::worker::{self, Orders};

fn main() {
    let orders = std::env::args().nth(1);
    let orders = orders.and_then(|argument| Orders::parse(&argument));
    worker::work(&orders.expect("the fault suite starts this program, and says what to do"));
}
