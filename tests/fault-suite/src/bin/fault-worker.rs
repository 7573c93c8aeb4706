//! A client process of the fault suite. What it is to do is in its argument; its input ends when
//! it is to leave.

use fault_suite::worker::{self, WorkerConfig};

fn main() {
    let config = std::env::args().nth(1);
    let config = config.and_then(|argument| WorkerConfig::parse(&argument));
    worker::work(&config.expect("the fault suite starts this program, and says what to do"));
}
