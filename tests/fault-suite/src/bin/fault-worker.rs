//! A client process of the fault suite. Its argument holds its configuration, and it ends when its
//! stdin is closed.

use fault_suite::worker::{self, WorkerConfig};

fn main() {
    let config = std::env::args().nth(1);
    let config = config.and_then(|argument| WorkerConfig::parse(&argument));
    worker::work(&config.expect("the fault suite starts this program, and passes a configuration"));
}
