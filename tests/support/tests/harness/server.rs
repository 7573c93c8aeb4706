//! Servers start, restart, stop, and end with their test.

use std::io;
use std::thread;
use std::time::Duration;

use test_support::fixtures::SOON;
use test_support::{Connection, RedisServer, Reply, eventually, helper};

use super::{impatient, timed_out};

#[test]
fn server_replies_and_is_removed_with_its_directory_on_drop() {
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
fn concurrent_servers_have_different_ports() {
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
fn server_requires_its_password() {
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
fn restart_after_a_kill_loses_data_and_keeps_the_port() {
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
fn restart_with_persistence_keeps_data() {
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
fn restart_loading_returns_while_the_server_loads() {
    let server = RedisServer::options()
        .args(["--rdbcompression", "no"])
        .start();
    let value = "v".repeat(1024);
    for number in 0..64 {
        server.cli(&["SET", &number.to_string(), &value]);
    }
    server.cli(&["SAVE"]);
    server.kill9();
    // The delay of each key in microseconds, and the number of bytes after which the server serves
    // clients.
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
fn stopped_server_executes_its_commands_after_cont() {
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
fn server_listens_on_a_unix_socket() {
    let server = RedisServer::options().unix_socket().start();
    let path = server.unix_url();
    let path = path.strip_prefix("unix://").unwrap();
    std::os::unix::net::UnixStream::connect(path).unwrap();
}

#[test]
fn monitor_counts_client_commands_without_script_commands() {
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
            .map(test_support::monitor::Command::name)
            .collect();
        assert_eq!(names, ["SET", "EVAL", "PING"]);
        assert_eq!(recording.all().len(), 5);
        assert_eq!(recording.client_commands_about("lock:a"), 2);
    }
}

#[test]
fn recording_survives_its_server() {
    let server = RedisServer::start();
    let monitor = server.monitor();
    server.cli(&["SET", "k", "v"]);
    server.kill9();
    assert_eq!(monitor.stop().client_commands_about("k"), 1);
}

#[test]
#[should_panic(expected = "apt-get install redis-server")]
fn missing_server_program_panics_with_install_instructions() {
    RedisServer::options()
        .program("no-such-redis-server")
        .start();
}

#[test]
#[should_panic(expected = "no-such-directive")]
fn server_that_exits_at_once_panics_with_its_log() {
    RedisServer::options()
        .arg("--no-such-directive")
        .arg("yes")
        .start();
}

#[test]
fn server_dies_with_the_test_process() {
    let child = helper!("harness-child").spawn();
    child.send_line("serve");
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
fn server_outlives_the_thread_that_started_it() {
    let server = thread::spawn(RedisServer::start).join().unwrap();
    // A parent-death signal would have arrived by the time the thread is joined.
    for _ in 0..50 {
        assert_eq!(server.cli(&["PING"]).text(), "PONG");
    }
}
