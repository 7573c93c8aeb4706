//! A frozen clock is the only clock of its server.

use std::time::Duration;

use test_support::fixtures::{SOON, ms};
use test_support::{FrozenClock, RedisServer, Reply, eventually};

const NEW_YEAR: u64 = 1_767_225_600_000_000;

/// Returns the server's time, in microseconds since 1970.
fn time(server: &RedisServer) -> u64 {
    let time = server.cli(&["TIME"]);
    let [seconds, micros] = time.array() else {
        panic!("{time:?}")
    };
    u64::try_from(seconds.integer() * 1_000_000 + micros.integer()).unwrap()
}

#[test]
fn frozen_clock_is_the_time_of_the_server() {
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
fn frozen_clock_decides_when_keys_expire() {
    let clock = FrozenClock::at(NEW_YEAR);
    let server = RedisServer::options().clock(&clock).start();
    server.cli(&["SET", "k", "v", "PX", "1000"]);
    clock.advance(ms(999));
    assert_eq!(server.cli(&["PTTL", "k"]).integer(), 1);
    clock.rewind(ms(500));
    assert_eq!(server.cli(&["PTTL", "k"]).integer(), 501);
    clock.advance(ms(501));
    // A key still exists in the millisecond of its expiry.
    assert_eq!(server.cli(&["GET", "k"]).text(), "v");
    clock.advance(ms(1));
    assert_eq!(server.cli(&["GET", "k"]), Reply::Nil);
}

#[test]
fn frozen_clock_is_the_time_of_scripts() {
    let clock = FrozenClock::at(NEW_YEAR);
    let server = RedisServer::options().clock(&clock).start();
    let script = "local t = redis.call('TIME') return t[1] .. t[2]";
    let mut connection = server.connect().unwrap();
    for _ in 0..200 {
        clock.advance(Duration::from_secs(7));
        let reply = connection.call(&["EVAL", script, "0"]).unwrap();
        assert_eq!(
            reply.integer(),
            i64::try_from(clock.micros() / 1_000_000 * 10).unwrap()
        );
    }
}

#[test]
fn frozen_clock_can_run_and_freeze_again() {
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
fn frozen_clock_survives_a_restart_of_the_server() {
    let clock = FrozenClock::at(NEW_YEAR);
    let server = RedisServer::options().clock(&clock).start();
    server.restart();
    assert_eq!(time(&server), NEW_YEAR);
}
