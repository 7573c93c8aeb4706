//! The example `orders`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use lock_core::LockManager;
use test_support::fixtures::{LONG, SOON, exists};
use test_support::process::Process;
use test_support::{Helper, Recording, RedisServer, Reply, eventually, eventually_some};

use super::example;
use super::service::{send, terminate};

/// An instance of the service.
struct Instance {
    process: Process,
    address: String,
}

/// The server, the database, and the settings of all instances.
struct Shop {
    server: RedisServer,
    bank: Duration,
}

impl Shop {
    fn open(bank: Duration) -> Self {
        let server = RedisServer::start();
        Self { server, bank }
    }

    fn instance(&self) -> Instance {
        Self::start(&self.program())
    }

    fn program(&self) -> Helper {
        example("orders")
            .arg("--redis")
            .arg(self.server.url())
            .arg("--ledger")
            .arg(self.ledger_file())
            .arg("--bank")
            .arg(self.bank.as_millis().to_string())
    }

    fn start(program: &Helper) -> Instance {
        let process = program.spawn();
        let address = eventually_some(SOON, || {
            let lines = process.lines();
            let address = lines.first()?.strip_prefix("listening on http://")?;
            Some(address.to_owned())
        });
        Instance { process, address }
    }

    fn ledger_file(&self) -> PathBuf {
        self.server.directory().join("orders.ledger")
    }

    /// Returns the entries of an order in the database.
    fn ledger(&self, order: u32) -> Vec<String> {
        let ledger = std::fs::read_to_string(self.ledger_file()).unwrap_or_default();
        let begin = format!("{order} ");
        ledger
            .lines()
            .filter_map(|line| line.strip_prefix(&begin))
            .map(str::to_owned)
            .collect()
    }

    /// Waits until this many requests are in the queue of an order's lock.
    fn await_queue(&self, order: u32, length: i64) {
        let queue = format!("{{lock:order:{order}}}:q");
        eventually(SOON, || {
            self.server.cli(&["ZCARD", &queue]) == Reply::Integer(length)
        });
    }
}

impl Instance {
    /// Sends a request, and returns the status and the text of the reply.
    fn send(&self, method: &str, path: &str) -> (u16, String) {
        send(&self.address, method, path, &[], "")
    }

    fn pay(&self, order: u32) -> (u16, String) {
        self.send("POST", &format!("/orders/{order}/payment"))
    }

    /// Sends a payment that takes as long as any other and does not change the order.
    fn pay_with_declined_card(&self, order: u32) {
        let path = format!("/orders/{order}/payment?card=declined");
        let (status, text) = self.send("POST", &path);
        assert_eq!(status, 402, "{text}");
    }

    fn cancel(&self, order: u32) -> (u16, String) {
        self.send("DELETE", &format!("/orders/{order}"))
    }
}

#[test]
fn two_instances_race_and_one_payment_is_made() {
    const REQUESTS: usize = 8;
    let shop = Shop::open(Duration::from_millis(50));
    let instances = [shop.instance(), shop.instance()];
    for order in 1..=3 {
        let start = Barrier::new(REQUESTS);
        let mut replies: Vec<_> = thread::scope(|scope| {
            let requests: Vec<_> = (0..REQUESTS)
                .map(|number| {
                    let (start, instance) = (&start, &instances[number % instances.len()]);
                    scope.spawn(move || {
                        start.wait();
                        instance.pay(order)
                    })
                })
                .collect();
            requests.into_iter().map(|r| r.join().unwrap()).collect()
        });
        replies.sort();
        let mut expected = vec![(409, format!("order {order}: already paid")); REQUESTS];
        expected[0] = (200, format!("order {order}: paid"));
        assert_eq!(replies, expected);
        let ledger = shop.ledger(order);
        assert_eq!(ledger.len(), 1, "{ledger:?}");
        assert!(ledger[0].starts_with("paid "), "{ledger:?}");
    }
}

#[test]
fn order_in_payment_cannot_be_cancelled() {
    let shop = Shop::open(Duration::from_secs(2));
    let [here, there] = [shop.instance(), shop.instance()];
    thread::scope(|scope| {
        let paying = scope.spawn(|| here.pay(1));
        eventually(SOON, || {
            shop.server.cli(&["EXISTS", "lock:order:1"]) == Reply::Integer(1)
        });
        // The service's own title, and nothing about the host and the process of the holder.
        let (status, text) = there.cancel(1);
        assert_eq!(status, 409, "{text}");
        assert!(
            text.contains("\"title\":\"Another request works on this order\""),
            "{text}"
        );
        // Another order has another lock.
        assert_eq!(there.cancel(2), (200, "order 2: cancelled".to_owned()));
        assert_eq!(paying.join().unwrap().0, 200);
    });
    assert_eq!(there.cancel(1), (409, "order 1: already paid".to_owned()));
    assert_eq!(here.pay(2), (409, "order 2: already cancelled".to_owned()));
}

#[test]
fn nothing_is_paid_while_the_lock_server_is_down() {
    let shop = Shop::open(Duration::from_millis(10));
    let instance = shop.instance();
    assert_eq!(instance.pay(1).0, 200);
    shop.server.kill9();
    let (status, text) = instance.cancel(2);
    assert_eq!(status, 503, "{text}");
    assert!(
        text.contains("\"title\":\"The lock service is not available\""),
        "{text}"
    );
    assert!(shop.ledger(2).is_empty());
    shop.server.restart();
    assert_eq!(instance.pay(2).0, 200);
}

#[test]
fn killed_instance_costs_other_instances_at_most_the_ttl() {
    let shop = Shop::open(Duration::from_millis(500));
    let [here, there] = [shop.instance(), shop.instance()];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = TcpStream::connect(&here.address).expect("the instance listens");
            let request = "POST /orders/1/payment HTTP/1.1\r\nhost: shop\r\n\r\n";
            stream
                .write_all(request.as_bytes())
                .expect("the instance reads");
            // No reply comes, because the instance is killed.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        eventually(SOON, || {
            shop.server.cli(&["EXISTS", "lock:order:1"]) == Reply::Integer(1)
        });
        here.process.kill9();
    });
    assert!(shop.ledger(1).is_empty());
    // The ttl is 5 s, and a payment waits for 10 s.
    assert_eq!(there.pay(1).0, 200);
}

/// The bank has the order when the client goes away, so the ledger must get its line.
#[test]
fn payment_ends_although_its_client_disconnects() {
    let shop = Shop::open(Duration::from_millis(500));
    let instance = shop.instance();
    let mut stream = TcpStream::connect(&instance.address).expect("the instance listens");
    let request = "POST /orders/1/payment HTTP/1.1\r\nhost: shop\r\n\r\n";
    let sent = stream.write_all(request.as_bytes());
    sent.expect("the instance reads");
    eventually(SOON, || exists(&shop.server, "lock:order:1"));
    drop(stream);
    // Waits for the payment, if it still runs.
    assert_eq!(instance.pay(1), (409, "order 1: already paid".to_owned()));
    assert_eq!(shop.ledger(1).len(), 1);
}

#[test]
fn stopped_instance_ends_its_payment_and_leaves_no_lock() {
    let shop = Shop::open(Duration::from_secs(1));
    let instance = shop.instance();
    thread::scope(|scope| {
        let paying = scope.spawn(|| instance.pay(1));
        eventually(SOON, || exists(&shop.server, "lock:order:1"));
        terminate(&instance.process);
        assert_eq!(paying.join().unwrap().0, 200);
    });
    assert!(instance.process.wait(SOON).success());
    assert!(!exists(&shop.server, "lock:order:1"));
}

#[test]
fn request_without_end_does_not_keep_a_stopped_instance() {
    let shop = Shop::open(LONG);
    let instance = Shop::start(&shop.program().arg("--drain").arg("200"));
    thread::scope(|scope| {
        let address = &instance.address;
        scope.spawn(move || {
            let mut stream = TcpStream::connect(address).expect("the instance listens");
            let request = "POST /orders/1/payment HTTP/1.1\r\nhost: shop\r\n\r\n";
            let sent = stream.write_all(request.as_bytes());
            sent.expect("the instance reads");
            // No reply comes, because the process ends.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        eventually(SOON, || exists(&shop.server, "lock:order:1"));
        terminate(&instance.process);
        // The exit code says that a lock is left. It ends with its ttl.
        assert!(!instance.process.wait(SOON).success());
    });
    eventually(SOON, || !exists(&shop.server, "lock:order:1"));
    assert!(shop.ledger(1).is_empty());
}

/// Returns the commands that clients sent for each section of one lock, by the section's owner id.
fn sections(recording: &Recording, key: &str) -> BTreeMap<String, Vec<Sent>> {
    let mut sections: BTreeMap<String, Vec<Sent>> = BTreeMap::new();
    for command in recording.from_clients() {
        if !command.words.iter().any(|word| word == key) {
            continue;
        }
        // EVALSHA hash number-of-keys keys.. owner-id ..
        assert_eq!(command.name(), "EVALSHA", "{command:?}");
        let keys: usize = command.words[2].parse().expect("a number of keys");
        let sent = if keys == 1 { Sent::Renew } else { Sent::Other };
        let owner_id = command.words[3 + keys].clone();
        sections.entry(owner_id).or_default().push(sent);
    }
    sections
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Renew,
    /// Acquire or release.
    Other,
}

#[tokio::test(flavor = "multi_thread")]
async fn contended_section_costs_two_commands() {
    const SECTIONS: u32 = 6;
    let shop = Arc::new(Shop::open(Duration::from_millis(10)));
    let instances = Arc::new([shop.instance(), shop.instance()]);
    let locks = LockManager::connect(&shop.server.url()).await.unwrap();
    // The test holds the lock until all requests are in the queue, so that each request waits.
    let guard = locks.lock("order:5").acquire().await.unwrap();
    let (monitor, started) = (shop.server.monitor(), Instant::now());
    let requests: Vec<_> = (0..SECTIONS)
        .map(|number| {
            let instances = Arc::clone(&instances);
            thread::spawn(move || instances[number as usize % 2].pay_with_declined_card(5))
        })
        .collect();
    shop.await_queue(5, SECTIONS.into());
    guard.release().await.unwrap();
    for request in requests {
        request.join().unwrap();
    }
    let mut sections = sections(&monitor.stop(), "lock:order:5");
    // Without the test's own section: its acquire came before the recording.
    let before = sections.len();
    sections.retain(|_, sent| sent.len() > 1);
    assert_eq!(before - sections.len(), 1);
    assert_eq!(sections.len(), SECTIONS as usize);
    // On a busy machine, a waiter polls after 750 ms at the earliest, and a holder renews after 667 ms.
    let others: usize = sections.values().map(|sent| sent.len() - 2).sum();
    let took = usize::try_from(started.elapsed().as_millis()).unwrap();
    let most = if took < 650 {
        0
    } else {
        sections.len() * took / 650
    };
    assert!(others <= most, "{took} ms: {sections:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_costs_one_more_command() {
    // Longer than two thirds of a second, when the first renewal extends the handover lease.
    // Shorter than the next renewal, after another third of the ttl.
    let shop = Arc::new(Shop::open(Duration::from_millis(1500)));
    let instance = shop.instance();
    let locks = LockManager::connect(&shop.server.url()).await.unwrap();
    let guard = locks.lock("order:5").acquire().await.unwrap();
    let (monitor, started) = (shop.server.monitor(), Instant::now());
    let request = thread::spawn(move || instance.pay_with_declined_card(5));
    shop.await_queue(5, 1);
    guard.release().await.unwrap();
    request.join().unwrap();
    let sections = sections(&monitor.stop(), "lock:order:5");
    let longest = sections.values().max_by_key(|sent| sent.len()).unwrap();
    let renewals = longest.iter().filter(|it| **it == Sent::Renew).count();
    let took = usize::try_from(started.elapsed().as_millis()).unwrap();
    // More only if the payment took long enough for another renewal, or the queue for a poll.
    let more = took / 2_300;
    assert!(
        renewals >= 1 && longest.len() <= 3 + 2 * more,
        "{took} ms: {longest:?}"
    );
}
