//! Proxies delay, cut, lose and refuse data, and do not change it.

use std::io;
use std::net::TcpStream;
use std::panic::catch_unwind;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use test_support::fixtures::{SOON, ms};
use test_support::{Connection, Direction, Lost, Proxy, RedisServer, Reply, eventually};

use super::{impatient, timed_out, via};

#[test]
fn proxy_forwards_and_counts_connections() {
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
fn delay_applies_to_each_direction_and_keeps_pipelines_together() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let mut connection = via(&proxy);
    connection.call(&["PING"]).unwrap();
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.delay(direction, ms(60));
        let started = Instant::now();
        connection.call(&["PING"]).unwrap();
        assert!(started.elapsed() >= ms(60));
        proxy.forward();
    }
    proxy.delay_round_trip(ms(200));
    let started = Instant::now();
    for _ in 0..20 {
        connection.send(&["PING"]).unwrap();
    }
    for _ in 0..20 {
        connection.receive().unwrap();
    }
    let took = started.elapsed();
    assert!(took >= ms(200), "{took:?}");
    // All requests share one delay; the rest of the bound is for a loaded machine.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn short_delays_are_not_rounded_to_milliseconds() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let mut connection = via(&proxy);
    proxy.delay_round_trip(ms(1));
    let fastest = (0..50)
        .map(|_| {
            let started = Instant::now();
            connection.call(&["PING"]).unwrap();
            started.elapsed()
        })
        .min()
        .unwrap();
    assert!(fastest >= ms(1), "{fastest:?}");
    assert!(fastest < ms(2), "{fastest:?}");
}

#[test]
fn cut_closes_connections() {
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
fn lost_reply_belongs_to_an_executed_command() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let mut connection = via(&proxy);
    proxy.lose_next(Lost::Reply, "INCR");
    connection.call(&["SET", "other", "1"]).unwrap();
    assert!(proxy.is_armed());
    assert!(connection.call(&["INCR", "k"]).is_err());
    assert!(!proxy.is_armed());
    assert_eq!(server.cli(&["GET", "k"]).integer(), 1);
    // Only once.
    assert_eq!(via(&proxy).call(&["INCR", "k"]).unwrap().integer(), 2);
}

#[test]
fn lost_request_is_not_executed() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.lose_next(Lost::Request, "");
    assert!(via(&proxy).call(&["INCR", "k"]).is_err());
    assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
}

#[test]
fn each_request_with_the_pattern_is_lost_until_the_network_is_normal() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.lose_each("INCR");
    for _ in 0..2 {
        assert!(via(&proxy).call(&["INCR", "k"]).is_err());
        via(&proxy).call(&["PING"]).unwrap();
    }
    assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
    proxy.forward();
    assert_eq!(via(&proxy).call(&["INCR", "k"]).unwrap().integer(), 1);
}

#[test]
fn mute_silences_one_connection_until_it_is_cut() {
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
fn hold_and_resume_keep_the_order() {
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
fn black_hole_drops_everything() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let mut old = impatient(via(&proxy));
    old.call(&["PING"]).unwrap();
    proxy.black_hole();
    let mut new = impatient(via(&proxy));
    assert!(timed_out(old.call(&["INCR", "k"])));
    assert!(timed_out(new.call(&["INCR", "k"])));
    assert_eq!(proxy.accepted(), 2);
    // The old connection and the connection of this command.
    assert_eq!(server.cli(&["CLIENT", "LIST"]).text().lines().count(), 2);
    proxy.forward();
    assert!(!timed_out(old.call(&["PING"])));
    assert!(!timed_out(new.call(&["PING"])));
    via(&proxy).call(&["PING"]).unwrap();
    assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
}

#[test]
fn refuse_is_undone_on_the_same_port() {
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

/// A process that was just started has a copy of each descriptor until it runs its program. A copy of
/// the listening socket must not keep the port open.
#[test]
fn refused_port_is_closed_while_processes_start() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let done = Arc::new(AtomicBool::new(false));
    let starting = [(); 2].map(|()| {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        })
    });
    let attempts = catch_unwind(|| {
        for attempt in 0..200 {
            proxy.refuse();
            let refused = TcpStream::connect(proxy.address()).unwrap_err();
            assert_eq!(
                refused.kind(),
                io::ErrorKind::ConnectionRefused,
                "{attempt}"
            );
            proxy.forward();
        }
    });
    done.store(true, Ordering::Relaxed);
    for thread in starting {
        thread.join().unwrap();
    }
    attempts.unwrap();
}

#[test]
fn proxy_url_contains_the_password() {
    let server = RedisServer::options().password("s3cret").start();
    let proxy = Proxy::in_front_of(&server);
    assert_eq!(proxy.url(), format!("redis://:s3cret@{}", proxy.address()));
    let mut connection = Connection::open(proxy.address(), Some("s3cret")).unwrap();
    connection.call(&["PING"]).unwrap();
}

#[test]
fn replies_drip_or_never_end_until_the_network_is_normal() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let mut connection = via(&proxy);
    proxy.drip(ms(20));
    let started = Instant::now();
    connection.call(&["PING"]).unwrap();
    assert!(started.elapsed() >= ms(140));
    proxy.forward();
    connection.call(&["PING"]).unwrap();
    proxy.answer_endlessly("*3\r\n", ":1\r\n");
    let three = [1; 3].map(Reply::Integer).to_vec();
    assert_eq!(connection.call(&["PING"]).unwrap(), Reply::Array(three));
    assert_eq!(connection.receive().unwrap(), Reply::Integer(1));
    assert_eq!(proxy.open(), 1);
    proxy.forward();
    eventually(SOON, || proxy.open() == 0);
    assert_eq!(via(&proxy).call(&["PING"]).unwrap().text(), "PONG");
}

#[test]
fn subscribers_alone_are_flooded() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (mut subscriber, mut other) = (via(&proxy), via(&proxy));
    subscriber.call(&["SUBSCRIBE", "news"]).unwrap();
    proxy.flood_subscribers("+noise\r\n");
    for _ in 0..10_000 {
        assert_eq!(subscriber.receive().unwrap().text(), "noise");
    }
    assert_eq!(other.call(&["PUBLISH", "news", "x"]).unwrap().integer(), 1);
    let is_noise = |reply: &Reply| matches!(reply, Reply::Status(_));
    while is_noise(&subscriber.receive().unwrap()) {}
    proxy.forward();
    assert_eq!(other.call(&["PING"]).unwrap().text(), "PONG");
}

#[test]
fn two_servers_are_behind_one_address() {
    let (server, second) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::in_front_of(&server);
    proxy.alternate_with(&second);
    let ports = [(); 3].map(|()| {
        let port = via(&proxy).call(&["CONFIG", "GET", "port"]).unwrap();
        port.array()[1].integer()
    });
    let (one, other) = (i64::from(server.port()), i64::from(second.port()));
    assert_eq!(ports, [one, other, one]);
    proxy.forward();
    assert_eq!(via(&proxy).call(&["PING"]).unwrap().text(), "PONG");
}
