//! The harness does what its documentation says, on a real server.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tests::{
    Connection, Direction, FrozenClock, Lost, Proxy, RedisServer, Reply, eventually,
    eventually_async, eventually_some, helper,
};

const SOON: Duration = Duration::from_secs(10);

fn via(proxy: &Proxy) -> Connection {
    Connection::open(proxy.address(), None).unwrap()
}

/// For connections that are expected to hang, so that the test does not.
fn impatient(connection: Connection) -> Connection {
    connection.set_patience(Duration::from_millis(200)).unwrap();
    connection
}

fn timed_out(answer: io::Result<Reply>) -> bool {
    // Which of the two it is depends on the system.
    matches!(
        answer.unwrap_err().kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

mod server {
    use super::*;

    #[test]
    fn answers_and_is_gone_with_its_directory_after_drop() {
        let server = RedisServer::start();
        assert_eq!(server.cli(&["SET", "k", "v"]), Reply::Status("OK".into()));
        assert_eq!(server.cli(&["GET", "k"]).text(), "v");
        assert_eq!(server.cli(&["GET", "other"]), Reply::Nil);
        assert!(server.cli(&["NOPE"]).error().unwrap().starts_with("ERR"));
        let directory = server.directory().to_owned();
        let address = server.address();
        assert!(directory.exists());
        drop(server);
        assert!(!directory.exists());
        let refused = Connection::open(address, None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn many_start_at_once_on_ports_of_their_own() {
        let servers: Vec<_> = (0..12)
            .map(|_| thread::spawn(RedisServer::start))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|starting| starting.join().unwrap())
            .collect();
        for (number, server) in servers.iter().enumerate() {
            server.cli(&["SET", "number", &number.to_string()]);
        }
        for (number, server) in servers.iter().enumerate() {
            assert_eq!(
                server.cli(&["GET", "number"]).integer(),
                i64::try_from(number).unwrap()
            );
        }
    }

    #[test]
    fn asks_for_its_password() {
        let server = RedisServer::options().password("s3cret").start();
        assert!(server.url().starts_with("redis://:s3cret@127.0.0.1:"));
        assert_eq!(server.cli(&["PING"]).text(), "PONG");
        let mut stranger = Connection::open(server.address(), None).unwrap();
        let refused = stranger.call(&["PING"]).unwrap();
        assert!(refused.error().unwrap().starts_with("NOAUTH"));
        let wrong = Connection::open(server.address(), Some("wrong")).unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn forgets_all_over_a_kill_and_keeps_its_port() {
        let server = RedisServer::start();
        let port = server.port();
        server.cli(&["SET", "k", "v"]);
        server.kill9();
        assert!(server.connect().is_err());
        server.restart();
        assert_eq!(server.port(), port);
        assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
    }

    #[test]
    fn keeps_what_its_arguments_say() {
        let server = RedisServer::options()
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .start();
        server.cli(&["SET", "k", "v"]);
        server.restart();
        assert_eq!(server.cli(&["GET", "k"]).text(), "v");
        server.shutdown();
        assert!(server.connect().is_err());
        server.restart();
        assert_eq!(server.cli(&["GET", "k"]).text(), "v");
    }

    #[test]
    fn answers_that_it_is_loading() {
        let server = RedisServer::options()
            .args(["--rdbcompression", "no"])
            .start();
        let value = "v".repeat(1024);
        for number in 0..64 {
            server.cli(&["SET", &number.to_string(), &value]);
        }
        server.cli(&["SAVE"]);
        server.kill9();
        // So many microseconds for each key, and clients are looked after once in so many bytes.
        let slow = RedisServer::options()
            .args(["--key-load-delay", "50000"])
            .args(["--loading-process-events-interval-bytes", "1024"])
            .start();
        let dump = |server: &RedisServer| server.directory().join("dump.rdb");
        std::fs::copy(dump(&server), dump(&slow)).unwrap();
        slow.restart_loading();
        assert!(
            slow.cli(&["GET", "1"])
                .error()
                .unwrap()
                .starts_with("LOADING")
        );
        eventually(Duration::from_secs(30), || {
            slow.cli(&["GET", "1"]) == Reply::Bulk(value.clone().into())
        });
    }

    #[test]
    fn stands_still_and_then_does_what_it_was_sent() {
        let server = RedisServer::start();
        let mut connection = impatient(server.connect().unwrap());
        server.stop();
        server.stop();
        assert!(timed_out(connection.call(&["SET", "k", "v"])));
        drop(connection);
        server.cont();
        eventually(SOON, || {
            server.cli(&["GET", "k"]) == Reply::Bulk(b"v".into())
        });
    }

    #[test]
    fn listens_on_a_unix_socket() {
        let server = RedisServer::options().unix_socket().start();
        let path = server.unix_url();
        let path = path.strip_prefix("unix://").unwrap();
        std::os::unix::net::UnixStream::connect(path).unwrap();
    }

    #[test]
    fn counts_what_clients_send_and_not_what_scripts_do() {
        for server in [
            RedisServer::start(),
            RedisServer::options().password("s3cret").start(),
        ] {
            let mut connection = server.connect().unwrap();
            let monitor = server.monitor();
            connection.call(&["SET", "lock:a", "1"]).unwrap();
            let script = "redis.call('INCR', KEYS[1]) return redis.call('GET', KEYS[1])";
            let answer = connection.call(&["EVAL", script, "1", "lock:a"]).unwrap();
            assert_eq!(answer.text(), "2");
            connection.call(&["PING"]).unwrap();
            let recording = monitor.stop();
            let names: Vec<_> = recording
                .from_clients()
                .map(tests::monitor::Command::name)
                .collect();
            assert_eq!(names, ["SET", "EVAL", "PING"]);
            assert_eq!(recording.all().len(), 5);
            assert_eq!(recording.client_commands_about("lock:a"), 2);
        }
    }

    #[test]
    fn a_recording_survives_its_server() {
        let server = RedisServer::start();
        let monitor = server.monitor();
        server.cli(&["SET", "k", "v"]);
        server.kill9();
        assert_eq!(monitor.stop().client_commands_about("k"), 1);
    }

    #[test]
    #[should_panic(expected = "apt-get install redis-server")]
    fn missing_is_a_failure_that_says_how_to_install_it() {
        RedisServer::options()
            .program("no-such-redis-server")
            .start();
    }

    #[test]
    #[should_panic(expected = "no-such-directive")]
    fn ending_at_once_is_a_failure_with_its_log() {
        RedisServer::options()
            .arg("--no-such-directive")
            .arg("yes")
            .start();
    }

    #[test]
    fn dies_with_the_test_process() {
        let child = helper!("harness-child").spawn();
        child.tell("serve");
        let record = child.record(SOON * 3, |record| record["port"].is_number());
        let port = u16::try_from(record["port"].as_u64().unwrap()).unwrap();
        let address = ([127, 0, 0, 1], port).into();
        assert!(Connection::open(address, None).is_ok());
        child.kill9();
        let directory = std::path::PathBuf::from(record["directory"].as_str().unwrap());
        eventually(SOON, || {
            Connection::open(address, None).is_err() && !directory.exists()
        });
    }

    #[test]
    fn outlives_the_thread_that_started_it() {
        let server = thread::spawn(RedisServer::start).join().unwrap();
        // A parent-death signal would have come by the time the thread is joined and gone.
        for _ in 0..50 {
            assert_eq!(server.cli(&["PING"]).text(), "PONG");
        }
    }
}

mod proxy {
    use super::*;

    #[test]
    fn forwards_and_counts() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut first = via(&proxy);
        assert_eq!(first.call(&["SET", "k", "v"]).unwrap().text(), "OK");
        let big = "x".repeat(1 << 20);
        assert_eq!(via(&proxy).call(&["ECHO", &big]).unwrap().text(), big);
        assert_eq!(proxy.accepted(), 2);
        eventually(SOON, || proxy.open() == 1);
        drop(first);
        eventually(SOON, || proxy.open() == 0);
        assert_eq!(proxy.accepted(), 2);
    }

    #[test]
    fn delays_each_direction_and_keeps_pipelines_together() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut connection = via(&proxy);
        connection.call(&["PING"]).unwrap();
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, Duration::from_millis(60));
            let started = Instant::now();
            connection.call(&["PING"]).unwrap();
            assert!(started.elapsed() >= Duration::from_millis(60));
            proxy.forward();
        }
        proxy.delay_round_trip(Duration::from_millis(200));
        let started = Instant::now();
        for _ in 0..20 {
            connection.send(&["PING"]).unwrap();
        }
        for _ in 0..20 {
            connection.receive().unwrap();
        }
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(200), "{took:?}");
        // One delay for all and not one for each; the rest is room for a loaded machine.
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[test]
    fn short_delays_are_not_rounded_to_milliseconds() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut connection = via(&proxy);
        proxy.delay_round_trip(Duration::from_millis(1));
        let fastest = (0..50)
            .map(|_| {
                let started = Instant::now();
                connection.call(&["PING"]).unwrap();
                started.elapsed()
            })
            .min()
            .unwrap();
        assert!(fastest >= Duration::from_millis(1), "{fastest:?}");
        assert!(fastest < Duration::from_millis(2), "{fastest:?}");
    }

    #[test]
    fn cuts() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let (mut first, mut second) = (via(&proxy), via(&proxy));
        first.call(&["PING"]).unwrap();
        second.call(&["PING"]).unwrap();
        proxy.cut(0);
        assert!(first.call(&["PING"]).is_err());
        second.call(&["PING"]).unwrap();
        proxy.cut_all();
        assert!(second.call(&["PING"]).is_err());
        via(&proxy).call(&["PING"]).unwrap();
        eventually(SOON, || {
            server.cli(&["CLIENT", "LIST"]).text().lines().count() == 1
        });
    }

    #[test]
    fn loses_the_reply_of_what_was_done() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut connection = via(&proxy);
        proxy.lose_next(Lost::Reply, "INCR");
        connection.call(&["SET", "other", "1"]).unwrap();
        assert!(proxy.is_armed());
        assert!(connection.call(&["INCR", "k"]).is_err());
        assert!(!proxy.is_armed());
        assert_eq!(server.cli(&["GET", "k"]).integer(), 1);
        // Once.
        assert_eq!(via(&proxy).call(&["INCR", "k"]).unwrap().integer(), 2);
    }

    #[test]
    fn loses_a_request() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        proxy.lose_next(Lost::Request, "");
        assert!(via(&proxy).call(&["INCR", "k"]).is_err());
        assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
    }

    #[test]
    fn mutes_one_connection_until_it_is_cut() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut first = via(&proxy);
        first.call(&["PING"]).unwrap();
        let mut second = impatient(via(&proxy));
        second.call(&["PING"]).unwrap();
        proxy.mute(1, Direction::ToClient);
        assert!(timed_out(second.call(&["INCR", "k"])));
        first.call(&["PING"]).unwrap();
        assert_eq!(server.cli(&["GET", "k"]).integer(), 1);
        proxy.mute(1, Direction::ToServer);
        assert!(timed_out(second.call(&["INCR", "k"])));
        proxy.forward();
        assert!(!timed_out(second.call(&["PING"])));
        first.call(&["PING"]).unwrap();
        assert_eq!(server.cli(&["GET", "k"]).integer(), 1);
    }

    #[test]
    fn holds_back_and_lets_go_in_order() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut slow = via(&proxy);
        slow.call(&["PING"]).unwrap();
        let mut fast = via(&proxy);
        fast.call(&["PING"]).unwrap();
        proxy.hold(0, Direction::ToServer);
        slow.send(&["RPUSH", "order", "held"]).unwrap();
        slow.send(&["RPUSH", "order", "held too"]).unwrap();
        fast.call(&["RPUSH", "order", "overtakes"]).unwrap();
        proxy.resume(0);
        slow.receive().unwrap();
        slow.receive().unwrap();
        let order = fast.call(&["LRANGE", "order", "0", "-1"]).unwrap();
        let order: Vec<_> = order.array().iter().map(Reply::text).collect();
        assert_eq!(order, ["overtakes", "held", "held too"]);
    }

    #[test]
    fn swallows_everything() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut old = impatient(via(&proxy));
        old.call(&["PING"]).unwrap();
        proxy.black_hole();
        let mut new = impatient(via(&proxy));
        assert!(timed_out(old.call(&["INCR", "k"])));
        assert!(timed_out(new.call(&["INCR", "k"])));
        assert_eq!(proxy.accepted(), 2);
        // The old connection and the one that asks.
        assert_eq!(server.cli(&["CLIENT", "LIST"]).text().lines().count(), 2);
        proxy.forward();
        assert!(!timed_out(old.call(&["PING"])));
        assert!(!timed_out(new.call(&["PING"])));
        via(&proxy).call(&["PING"]).unwrap();
        assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
    }

    #[test]
    fn refuses_and_serves_again_on_the_same_port() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let mut old = via(&proxy);
        old.call(&["PING"]).unwrap();
        proxy.refuse();
        proxy.refuse();
        let refused = Connection::open(proxy.address(), None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        old.call(&["PING"]).unwrap();
        proxy.forward();
        via(&proxy).call(&["PING"]).unwrap();
        old.call(&["PING"]).unwrap();
        assert_eq!(proxy.accepted(), 2);
    }

    #[test]
    fn passes_the_password_on_in_its_url() {
        let server = RedisServer::options().password("s3cret").start();
        let proxy = Proxy::in_front_of(&server);
        assert_eq!(proxy.url(), format!("redis://:s3cret@{}", proxy.address()));
        let mut connection = Connection::open(proxy.address(), Some("s3cret")).unwrap();
        connection.call(&["PING"]).unwrap();
    }
}

#[cfg(target_os = "linux")]
mod clock {
    use super::*;

    const NEW_YEAR: u64 = 1_767_225_600_000_000;

    /// Microseconds since 1970, as the server takes it.
    fn time(server: &RedisServer) -> u64 {
        let time = server.cli(&["TIME"]);
        let [seconds, micros] = time.array() else {
            panic!("{time:?}")
        };
        u64::try_from(seconds.integer() * 1_000_000 + micros.integer()).unwrap()
    }

    #[test]
    fn is_what_the_server_tells() {
        let clock = FrozenClock::at(NEW_YEAR);
        let server = RedisServer::options().clock(&clock).start();
        assert_eq!(time(&server), NEW_YEAR);
        assert_eq!(time(&server), NEW_YEAR);
        clock.advance(Duration::from_micros(1));
        assert_eq!(time(&server), NEW_YEAR + 1);
        clock.rewind(Duration::from_secs(3600));
        assert_eq!(time(&server), clock.micros());
        assert_eq!(clock.micros(), NEW_YEAR + 1 - 3_600_000_000);
        clock.set(1);
        assert_eq!(time(&server), 1);
    }

    #[test]
    fn decides_when_keys_expire() {
        let clock = FrozenClock::at(NEW_YEAR);
        let server = RedisServer::options().clock(&clock).start();
        server.cli(&["SET", "k", "v", "PX", "1000"]);
        clock.advance(Duration::from_millis(999));
        assert_eq!(server.cli(&["PTTL", "k"]).integer(), 1);
        clock.rewind(Duration::from_millis(500));
        assert_eq!(server.cli(&["PTTL", "k"]).integer(), 501);
        clock.advance(Duration::from_millis(501));
        // A key lives in the millisecond of its expiry.
        assert_eq!(server.cli(&["GET", "k"]).text(), "v");
        clock.advance(Duration::from_millis(1));
        assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
    }

    #[test]
    fn is_what_scripts_see_too() {
        let clock = FrozenClock::at(NEW_YEAR);
        let server = RedisServer::options().clock(&clock).start();
        let script = "local t = redis.call('TIME') return t[1] .. t[2]";
        let mut connection = server.connect().unwrap();
        for _ in 0..200 {
            clock.advance(Duration::from_secs(7));
            let told = connection.call(&["EVAL", script, "0"]).unwrap();
            assert_eq!(
                told.integer(),
                i64::try_from(clock.micros() / 1_000_000 * 10).unwrap()
            );
        }
    }

    #[test]
    fn can_run_and_freeze_again() {
        let clock = FrozenClock::at(NEW_YEAR);
        let server = RedisServer::options().clock(&clock).start();
        clock.run_ahead_by(-3_600_000_000);
        let started = time(&server);
        eventually(SOON, || time(&server) > started);
        let real = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_micros();
        let behind = real - u128::from(time(&server));
        assert!((3_590_000_000..3_600_000_000).contains(&behind), "{behind}");
        clock.set(NEW_YEAR);
        assert_eq!(time(&server), NEW_YEAR);
    }

    #[test]
    fn survives_a_restart_of_the_server() {
        let clock = FrozenClock::at(NEW_YEAR);
        let server = RedisServer::options().clock(&clock).start();
        server.restart();
        assert_eq!(time(&server), NEW_YEAR);
    }
}

mod process {
    use super::*;

    #[test]
    fn speaks_in_records_and_ends_by_itself() {
        let child = helper!("harness-child").spawn();
        child.tell("one");
        child.tell("two");
        let record = child.record(SOON, |record| record["echo"] == "two");
        assert_eq!(record["echo"], "two");
        assert_eq!(child.records()[0]["pid"], child.pid());
        child.close_stdin();
        assert!(child.wait(SOON).success());
        assert_eq!(child.lines().len(), 3);
        assert!(child.wait(SOON).success());
        child.kill9();
    }

    #[test]
    fn leaves_no_torn_record_when_killed() {
        let child = helper!("harness-child").spawn();
        child.tell("stutter");
        child.record(SOON, |record| record["whole"] == true);
        child.kill9();
        assert_eq!(child.records().len(), 2);
    }

    #[test]
    fn stands_still() {
        let child = helper!("harness-child").spawn();
        child.record(SOON, |record| record["pid"].is_number());
        child.stop();
        child.tell("while it stands still");
        // The pipe is read by a thread of ours, so silence can only be watched for a while.
        thread::sleep(Duration::from_millis(100));
        assert_eq!(child.lines().len(), 1);
        child.cont();
        child.record(SOON, |record| record["echo"] == "while it stands still");
    }
}

mod waiting {
    use super::*;

    #[test]
    fn ends_when_the_condition_holds() {
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let other = Arc::clone(&done);
        let setter = thread::spawn(move || other.store(true, std::sync::atomic::Ordering::SeqCst));
        eventually(SOON, || done.load(std::sync::atomic::Ordering::SeqCst));
        setter.join().unwrap();
        let mut looks = 0;
        let answer = eventually_some(SOON, || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(answer, 3);
    }

    #[test]
    #[should_panic(expected = "did not come within 20ms")]
    fn is_bounded() {
        eventually(Duration::from_millis(20), || false);
    }

    #[tokio::test]
    async fn lets_other_tasks_run() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { sender.send(()) });
        let mut receiver = Some(receiver);
        eventually_async(SOON, async || {
            receiver.as_mut().is_some_and(|r| r.try_recv().is_ok())
        })
        .await;
        receiver.take();
    }
}
