//! Every example runs and shows what it promises to show.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use lock_core::LockManager;
use serde_json::Value;
use test_support::process::Process;
use test_support::{Helper, Recording, RedisServer, Reply, eventually, eventually_some};
use tests::shut_down;

/// Bound on what takes some milliseconds.
const SOON: Duration = Duration::from_secs(30);

/// The program of an example.
///
/// Cargo tells a test where the programs of its own package are, but not those of another, so it
/// is asked. Where a whole test run has built the examples, this builds nothing.
fn example(name: &str) -> Helper {
    static PROGRAMS: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(build);
    let program = programs
        .get(name)
        .unwrap_or_else(|| panic!("there is no example `{name}`"));
    Helper::new(program)
}

fn build() -> BTreeMap<String, PathBuf> {
    // <target>/<profile>/deps/<this test>
    let this = std::env::current_exe().expect("the system knows what it runs");
    let folder = |levels: usize| this.ancestors().nth(levels).expect("cargo built this");
    let profile = match folder(2).file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        // The same packages and features as ./scripts/test has, else much is built twice.
        .args(["build", "--workspace", "--all-features", "--examples"])
        .args(["--profile", profile, "--target-dir"])
        .arg(folder(3))
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs this test and can be run by it");
    assert!(output.status.success(), "the examples do not compile");
    let messages = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    messages
        .lines()
        .filter_map(|line| {
            let message: Value = serde_json::from_str(line).expect("cargo was asked for JSON");
            let name = message["target"]["name"].as_str()?.to_owned();
            let program = message["executable"].as_str()?.into();
            (message["target"]["kind"][0] == "example").then_some((name, program))
        })
        .collect()
}

mod quickstart {
    use super::*;

    #[test]
    fn pays_twice_without_the_lock_and_once_with_it() {
        let shown = example("quickstart").spawn();
        assert!(shown.wait(SOON).success());
        let lines = shown.lines();
        let verdicts: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.trim().strip_prefix("=> "))
            .collect();
        assert_eq!(
            verdicts,
            [
                "order 41 was charged 3 x: WRONG",
                "order 42 was charged 1 x: right",
                "order 41 was charged 1 x: right",
                "order 42 was charged 1 x: right",
            ],
            "{lines:#?}"
        );
    }
}

mod orders {
    use super::*;

    /// An instance of the service.
    struct Instance {
        process: Process,
        address: String,
    }

    /// The server, the database, and what all instances have in common.
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
            let process = example("orders")
                .arg("--redis")
                .arg(self.server.url())
                .arg("--ledger")
                .arg(self.ledger_file())
                .arg("--bank")
                .arg(self.bank.as_millis().to_string())
                .spawn();
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

        /// What stands in the database about an order.
        fn ledger(&self, order: u32) -> Vec<String> {
            let ledger = std::fs::read_to_string(self.ledger_file()).unwrap_or_default();
            let begin = format!("{order} ");
            ledger
                .lines()
                .filter_map(|line| line.strip_prefix(&begin))
                .map(str::to_owned)
                .collect()
        }

        /// Waits until so many requests stand in the queue of an order's lock.
        fn await_queue(&self, order: u32, length: i64) {
            let queue = format!("{{lock:order:{order}}}:q");
            eventually(SOON, || {
                self.server.cli(&["ZCARD", &queue]) == Reply::Integer(length)
            });
        }
    }

    impl Instance {
        /// Sends a request; the status and the text of the answer.
        fn send(&self, method: &str, path: &str) -> (u16, String) {
            let mut stream = TcpStream::connect(&self.address).expect("the instance listens");
            stream.set_read_timeout(Some(SOON)).expect("not zero");
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\
                 content-length: 0\r\n\r\n"
            )
            .expect("the instance reads");
            let mut answer = String::new();
            stream
                .read_to_string(&mut answer)
                .expect("the instance answers in time");
            let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a body");
            let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
            (status.expect("a status line"), text.trim().to_owned())
        }

        fn pay(&self, order: u32) -> (u16, String) {
            self.send("POST", &format!("/orders/{order}/payment"))
        }

        /// A payment that takes as long as any, and after which the order is as it was.
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
            let mut answers: Vec<_> = thread::scope(|scope| {
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
            answers.sort();
            let mut expected = vec![(409, format!("order {order}: already paid")); REQUESTS];
            expected[0] = (200, format!("order {order}: paid"));
            assert_eq!(answers, expected);
            let ledger = shop.ledger(order);
            assert_eq!(ledger.len(), 1, "{ledger:?}");
            assert!(ledger[0].starts_with("paid "), "{ledger:?}");
        }
    }

    #[test]
    fn an_order_that_is_being_paid_cannot_be_cancelled() {
        let shop = Shop::open(Duration::from_secs(2));
        let [here, there] = [shop.instance(), shop.instance()];
        thread::scope(|scope| {
            let paying = scope.spawn(|| here.pay(1));
            eventually(SOON, || {
                shop.server.cli(&["EXISTS", "lock:order:1"]) == Reply::Integer(1)
            });
            // A text of the service: that of the error names the host and process of the holder.
            let text = "another request works on this order; try again in a moment";
            assert_eq!(there.cancel(1), (423, text.to_owned()));
            // Another order is another lock.
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
        let text = "orders cannot be changed at the moment; try again later";
        assert_eq!(instance.cancel(2), (503, text.to_owned()));
        assert!(shop.ledger(2).is_empty());
        shop.server.restart();
        assert_eq!(instance.pay(2).0, 200);
    }

    #[test]
    fn a_killed_instance_costs_others_no_more_than_the_ttl() {
        let shop = Shop::open(Duration::from_millis(500));
        let [here, there] = [shop.instance(), shop.instance()];
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(&here.address).expect("the instance listens");
                let request = "POST /orders/1/payment HTTP/1.1\r\nhost: shop\r\n\r\n";
                stream.write_all(request.as_bytes()).expect("it reads");
                // Not answered: the instance is killed.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            eventually(SOON, || {
                shop.server.cli(&["EXISTS", "lock:order:1"]) == Reply::Integer(1)
            });
            here.process.kill9();
        });
        assert!(shop.ledger(1).is_empty());
        // The ttl is 5 s, and a payment waits for 10.
        assert_eq!(there.pay(1).0, 200);
    }

    /// The commands that clients sent for each section of one lock, by the nonce of the section.
    fn sections(recording: &Recording, key: &str) -> BTreeMap<String, Vec<Sent>> {
        let mut sections: BTreeMap<String, Vec<Sent>> = BTreeMap::new();
        for command in recording.from_clients() {
            if !command.words.iter().any(|word| word == key) {
                continue;
            }
            // EVALSHA hash number-of-keys keys.. nonce ..
            assert_eq!(command.name(), "EVALSHA", "{command:?}");
            let keys: usize = command.words[2].parse().expect("a number of keys");
            let sent = if keys == 1 { Sent::Renew } else { Sent::Other };
            let nonce = command.words[3 + keys].clone();
            sections.entry(nonce).or_default().push(sent);
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
    async fn a_contended_section_costs_two_commands() {
        const SECTIONS: u32 = 6;
        let shop = Arc::new(Shop::open(Duration::from_millis(10)));
        let instances = Arc::new([shop.instance(), shop.instance()]);
        let locks = LockManager::connect(&shop.server.url()).await.unwrap();
        // Held here until all stand in the queue, so that each of them had to wait.
        let guard = locks.lock("order:5").acquire().await.unwrap();
        let monitor = shop.server.monitor();
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
        // The test's own: its acquire came before the recording.
        let before = sections.len();
        sections.retain(|_, sent| sent.len() > 1);
        assert_eq!(before - sections.len(), 1);
        assert_eq!(sections.len(), SECTIONS as usize);
        for (nonce, sent) in &sections {
            assert_eq!(sent, &[Sent::Other, Sent::Other], "{nonce}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_renewal_costs_one_more() {
        // Longer than two thirds of a second, when the lease of a hand-over is first extended,
        // and shorter than a third of the ttl behind that.
        let shop = Arc::new(Shop::open(Duration::from_millis(1500)));
        let instance = shop.instance();
        let locks = LockManager::connect(&shop.server.url()).await.unwrap();
        let guard = locks.lock("order:5").acquire().await.unwrap();
        let monitor = shop.server.monitor();
        let request = thread::spawn(move || instance.pay_with_declined_card(5));
        shop.await_queue(5, 1);
        guard.release().await.unwrap();
        request.join().unwrap();
        let sections = sections(&monitor.stop(), "lock:order:5");
        let longest = sections.values().max_by_key(|sent| sent.len()).unwrap();
        assert_eq!(longest, &[Sent::Other, Sent::Renew, Sent::Other]);
    }
}

mod nightly_job {
    use super::*;

    #[test]
    fn one_instance_runs_and_the_others_skip() {
        let server = RedisServer::start();
        let instances: Vec<_> = (0..4)
            .map(|_| {
                example("nightly_job")
                    .env("DISTRIBUTED_LOCK_URL", server.url())
                    .arg("--takes")
                    .arg("3000")
                    .spawn()
            })
            .collect();
        let mut said: Vec<Vec<String>> = instances
            .iter()
            .map(|instance| {
                assert!(instance.wait(SOON).success());
                instance.lines()
            })
            .collect();
        said.sort();
        assert!(said[0][0].starts_with("running"), "{said:#?}");
        assert!(said[0][1].starts_with("finished"), "{said:#?}");
        for skipped in &said[1..] {
            assert!(skipped[0].starts_with("skipped"), "{said:#?}");
        }
        assert_eq!(
            server.cli(&["EXISTS", "lock:nightly-report"]),
            Reply::Integer(0)
        );
    }

    #[test]
    fn does_not_run_when_it_cannot_ask() {
        let server = RedisServer::start();
        let url = server.url();
        server.kill9();
        let instance = example("nightly_job").arg("--redis").arg(url).spawn();
        assert!(!instance.wait(SOON).success());
        assert_eq!(instance.lines(), [""; 0]);
    }
}

mod fenced {
    use super::*;

    #[test]
    fn refuses_the_late_write_of_a_holder_that_was_stopped() {
        let server = RedisServer::start();
        let shown = example("fenced").arg("--redis").arg(server.url()).spawn();
        assert!(shown.wait(SOON).success());
        let lines = shown.lines();
        let verdicts: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("=> "))
            .collect();
        assert_eq!(
            verdicts,
            [
                "without a token: 50 left, the parent's write is lost",
                "with a token: 70 left, the late write was rejected",
            ]
        );
    }
}

mod gallery {
    use super::*;

    /// A row of the table: what was done by hand, and what the library did.
    struct Row {
        by_hand: String,
        library: String,
    }

    fn table(lines: &[String]) -> Vec<Row> {
        let rows = lines.iter().filter(|line| line.starts_with("| "));
        rows.skip(1)
            .map(|row| {
                let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
                let [_, by_hand, library] = cells[..] else {
                    panic!("not three cells: {row}");
                };
                let [by_hand, library] = [by_hand, library].map(|cell| cell.trim().to_owned());
                Row { by_hand, library }
            })
            .collect()
    }

    /// The numbers in a cell.
    fn figures(cell: &str) -> Vec<u64> {
        let words = cell.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    }

    #[test]
    fn each_mistake_happens_by_hand_and_not_with_the_library() {
        let shown = example("gallery").spawn();
        assert!(shown.wait(SOON).success());
        let lines = shown.lines();
        let table = table(&lines);
        assert_eq!(table.len(), 9, "{lines:#?}");
        for (row, act) in table.iter().zip(1..) {
            let (by_hand, library) = (figures(&row.by_hand), figures(&row.library));
            let shown = format!("act {act}: {} | {}", row.by_hand, row.library);
            assert!(by_hand[0] > 0, "{shown}");
            match act {
                // Free after the ttl, and never without one.
                1 | 9 => {
                    assert!(row.by_hand.starts_with("still locked"), "{shown}");
                    assert!(row.library.starts_with("free after"), "{shown}");
                    assert!(library[0] < by_hand[0], "{shown}");
                }
                2 => {
                    assert!(row.by_hand.contains("TTL -1"), "{shown}");
                    assert!(row.library.contains("TTL 1 s"), "{shown}");
                    assert_eq!(library[0], 0, "{shown}");
                }
                // Somebody has to wait in either; in one of them, for its turn.
                7 => {
                    assert!(library[0] < by_hand[0], "{shown}");
                    assert!(library[1] < by_hand[1], "{shown}");
                }
                _ => assert_eq!(library[0], 0, "{shown}"),
            }
        }
        assert!(table[2].library.ends_with("says `Lost`"), "{lines:#?}");
    }

    #[test]
    fn shows_nothing_without_a_server() {
        let shown = example("gallery").env("PATH", "nowhere").spawn();
        assert!(!shown.wait(SOON).success());
        assert_eq!(shown.lines(), [""; 0]);
    }
}

mod readme {
    use super::*;

    /// What the README has an administrator type.
    fn user_command() -> Vec<String> {
        let readme = include_str!("../README.md").replace("\\\n", " ");
        let line = readme
            .lines()
            .find(|line| line.starts_with("ACL SETUSER"))
            .expect("the README says which rights a user needs");
        line.split_whitespace()
            .map(|word| word.trim_matches('\'').to_owned())
            .collect()
    }

    /// Makes the user, and says how it connects.
    fn url_of(server: &RedisServer, command: &[String]) -> String {
        assert_eq!(server.cli(command), Reply::Status("OK".into()));
        let user = &command[2];
        let password = command.iter().find_map(|word| word.strip_prefix('>'));
        let password = password.expect("the user has a password");
        format!("redis://{user}:{password}@{}", server.address())
    }

    /// Acquires, renews, tries, waits and releases.
    async fn use_locks(server: &RedisServer, url: &str) {
        let here = LockManager::connect(url).await.unwrap();
        let there = LockManager::connect(url).await.unwrap();
        for (name, queue) in [
            ("plain", "{lock:plain}:q"),
            ("{tag}:tagged", "lock:{tag}:tagged:q"),
        ] {
            let guard = here.lock(name).acquire().await.unwrap();
            guard.renew().await.unwrap();
            assert!(there.lock(name).try_acquire().await.unwrap().is_none());
            let waiting = tokio::spawn(there.lock(name).wait(SOON).acquire());
            eventually(SOON, || server.cli(&["EXISTS", queue]) == Reply::Integer(1));
            // More dead waiters than one call looks at, ahead of the live one.
            let dead =
                "for i = 1, 250 do redis.call('ZADD', KEYS[1], -i, string.format('%08x', i) ..
                '-5a0b-4c53-9d55-2f1f6f3f7d10 s 2000 9999999999999 lk1:lock::dead web')
                end return 1";
            let added = server.cli(&["EVAL", dead, "1", queue]);
            assert_eq!(added, Reply::Integer(1));
            guard.release().await.unwrap();
            drop(waiting.await.unwrap().unwrap());
        }
        shut_down(&there).await;
        // Nothing but fencing counters is left behind.
        let counters = "return #redis.call('KEYS', '*:f')";
        assert_eq!(
            server.cli(&["DBSIZE"]),
            server.cli(&["EVAL", counters, "0"])
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_rights_it_lists_are_enough() {
        let server = RedisServer::start();
        let url = url_of(&server, &user_command());
        use_locks(&server, &url).await;
        // The server keeps a record of whatever it refused.
        assert_eq!(server.cli(&["ACL", "LOG"]), Reply::Array(Vec::new()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_the_channel_locks_work_too() {
        let server = RedisServer::start();
        let mut command = user_command();
        command.retain(|word| !word.starts_with('&') && word != "+subscribe");
        command.push("resetchannels".to_owned());
        let url = url_of(&server, &command);
        use_locks(&server, &url).await;
        assert_ne!(server.cli(&["ACL", "LOG"]), Reply::Array(Vec::new()));
    }
}
