//! Each quirk does what it says to a plain client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use test_support::fixtures::{SOON, ms};
use test_support::resp::command_bytes;
use test_support::stand_in::{Answer, HelloRefusal, Quirk, Target, limits};
use test_support::{Connection, RedisServer, Reply, StandIn, eventually};

use super::{impatient, timed_out};

fn open(stand_in: &StandIn) -> Connection {
    Connection::open(stand_in.address(), None).unwrap()
}

#[track_caller]
fn call(stand_in: &StandIn, words: &[&str]) -> Reply {
    open(stand_in).call(words).unwrap()
}

#[track_caller]
fn error(stand_in: &StandIn, words: &[&str]) -> String {
    let reply = call(stand_in, words);
    reply.error().expect("the reply is an error").to_owned()
}

#[test]
fn stand_in_forwards_in_order_and_counts() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::NoRole]);
    let mut connection = open(&stand_in);
    for words in [&["SET", "k", "v"][..], &["ROLE"], &["GET", "k"]] {
        connection.send(words).unwrap();
    }
    assert_eq!(connection.receive().unwrap().text(), "OK");
    let refused = connection.receive().unwrap();
    assert!(refused.error().unwrap().contains("unknown command"));
    assert_eq!(connection.receive().unwrap().text(), "v");
    assert_eq!(stand_in.count(&Target::Command("ROLE")), 1);
    stand_in.set([]);
    assert_eq!(
        connection.call(&["ROLE"]).unwrap().array()[0].text(),
        "master"
    );
    assert_eq!(stand_in.count(&Target::Command("ROLE")), 2);
    assert_eq!(stand_in.accepted(), 1);
}

/// A client that gets replies in another order can't tell whose they are.
#[test]
fn own_reply_waits_for_the_confirmation_of_a_subscription() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::NoRole]);
    let mut stream = TcpStream::connect(stand_in.address()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let commands = [
        &["HELLO", "3"][..],
        &["SUBSCRIBE", "news", "more"],
        &["ROLE"],
        &["UNSUBSCRIBE", "news"],
        &["ROLE"],
        &["PING"],
    ];
    stream
        .write_all(&commands.map(command_bytes).concat())
        .unwrap();
    let mut read = String::new();
    while !read.ends_with("+PONG\r\n") {
        let mut bytes = [0; 1024];
        let length = stream.read(&mut bytes).unwrap();
        assert!(length > 0, "{read}");
        read += std::str::from_utf8(&bytes[..length]).unwrap();
    }
    let kinds = [
        "$9\r\nsubscribe",
        "$11\r\nunsubscribe",
        "-ERR unknown command",
    ];
    let mut found: Vec<_> = kinds
        .iter()
        .flat_map(|kind| read.match_indices(kind))
        .collect();
    found.sort_unstable();
    let order: Vec<_> = found.into_iter().map(|(_, kind)| kind).collect();
    let [up, down, refused] = kinds;
    assert_eq!(order, [up, up, refused, down, refused], "{read}");
}

#[test]
fn info_is_that_of_another_server() {
    let node = RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .start();
    let stand_in = StandIn::start(&node, [Quirk::OldInfo, Quirk::NoRunId]);
    assert_eq!(
        error(&stand_in, &["INFO", "server", "memory"]),
        "ERR syntax error"
    );
    let info = call(&stand_in, &["INFO"]).text().to_owned();
    assert!(info.contains("redis_version:") && !info.contains("run_id:"));
    stand_in.set([Quirk::ClusterDisabledInInfo, Quirk::ServerlessCluster]);
    let info = call(&stand_in, &["INFO", "cluster"]).text().to_owned();
    assert!(info.contains("cluster_enabled:0"), "{info}");
    let slots = call(&stand_in, &["CLUSTER", "SLOTS"]);
    let range = slots.array()[0].array();
    assert_eq!(range[1].integer(), 16383);
    let ports = [2, 3].map(|at: usize| range[at].array()[1].integer());
    for port in ports {
        let address = ([127, 0, 0, 1], u16::try_from(port).unwrap()).into();
        let mut connection = Connection::open(address, None).unwrap();
        assert_eq!(connection.call(&["PING"]).unwrap().text(), "PONG");
    }
    assert_ne!(ports[0], ports[1]);
}

#[test]
fn hello_is_refused_in_each_form() {
    let server = RedisServer::start();
    let text = "ERR this proxy speaks the second version only";
    for (refusal, expected) in [
        (HelloRefusal::Unknown, "ERR unknown command 'HELLO'"),
        (HelloRefusal::NoPermission, "NOPERM "),
        (HelloRefusal::Text(text.to_owned()), text),
    ] {
        let stand_in = StandIn::start(&server, [Quirk::Hello(refusal)]);
        let refused = error(&stand_in, &["HELLO", "3"]);
        assert!(refused.starts_with(expected), "{refused}");
        assert_eq!(call(&stand_in, &["PING"]).text(), "PONG");
    }
    let stand_in = StandIn::start(&server, [Quirk::Hello(HelloRefusal::Closes)]);
    open(&stand_in).call(&["HELLO", "3"]).unwrap_err();
}

#[test]
fn limits_are_reported_by_command_or_by_connection() {
    let server = RedisServer::start();
    let answer = Answer::Error(limits::REQUESTS.to_owned());
    let stand_in = StandIn::start(&server, [Quirk::Replies(Target::Command("SET"), answer)]);
    assert_eq!(error(&stand_in, &["SET", "k", "v"]), limits::REQUESTS);
    assert_eq!(call(&stand_in, &["GET", "k"]), Reply::Nil);
    stand_in.set([Quirk::RefusesClients(limits::CLIENTS.to_owned())]);
    let refused = open(&stand_in).receive().unwrap();
    assert_eq!(refused.error(), Some(limits::CLIENTS));
}

#[test]
fn scripts_are_those_of_an_old_server() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::PlainScriptsOnly, Quirk::OldScriptErrors]);
    let flagged = "#!lua\n-- probe: reads.\nreturn redis.call('GET', KEYS[1])";
    let refused = error(&stand_in, &["SCRIPT", "LOAD", flagged]);
    assert!(
        refused.starts_with("ERR Error compiling script"),
        "{refused}"
    );
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let text = "-- write: writes.\nreturn redis.call('SET', KEYS[1], 'v')";
    let refused = error(&stand_in, &["EVAL", text, "1", "k"]);
    assert!(
        refused.starts_with("ERR Error running script (call to f_"),
        "{refused}"
    );
    assert!(
        refused.contains(": @user_script:1: -READONLY "),
        "{refused}"
    );
    let missing = "0".repeat(40);
    assert!(error(&stand_in, &["EVALSHA", &missing, "0"]).starts_with("NOSCRIPT"));
}

#[test]
fn pexpire_has_no_options() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::NoExpireOptions]);
    let script =
        "#!lua\n-- expire: sets an expiry.\nreturn redis.call('pexpire', KEYS[1], unpack(ARGV))";
    call(&stand_in, &["SCRIPT", "LOAD", script]);
    let hash = server.cli(&["SCRIPT", "LOAD", script]).text().to_owned();
    call(&stand_in, &["SET", "k", "v"]);
    for command in [
        &["PEXPIRE", "k"][..],
        &["EVAL", script, "1", "k"],
        &["EVALSHA", &hash, "1", "k"],
    ] {
        let refused = error(&stand_in, &[command, &["5000", "NX"]].concat());
        assert!(
            refused.to_lowercase().contains("number of arg"),
            "{refused}"
        );
        let plain = call(&stand_in, &[command, &["5000"]].concat());
        assert_eq!(plain.integer(), 1);
    }
    let script = "return redis.call('PEXPIRE', KEYS[1], 5000, 'XX')";
    assert_eq!(server.cli(&["EVAL", script, "1", "k"]).integer(), 1);
}

#[test]
fn owner_commands_compare_and_write() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::OwnerCommands]);
    assert!(
        !call(&stand_in, &["COMMAND", "INFO", "DELEX"]).array()[0]
            .array()
            .is_empty()
    );
    call(&stand_in, &["SET", "k", "me"]);
    let set = ["SET", "k", "new", "IFEQ", "other", "PX", "5000"];
    assert_eq!(call(&stand_in, &set), Reply::Nil);
    let set = ["SET", "k", "new", "IFEQ", "me", "PX", "5000"];
    assert_eq!(call(&stand_in, &set).text(), "OK");
    assert_eq!(call(&stand_in, &["DELEX", "k", "IFEQ", "me"]).integer(), 0);
    assert_eq!(call(&stand_in, &["DELEX", "k", "IFEQ", "new"]).integer(), 1);
}

/// Reads until the connection has sent this many bytes.
fn read(stand_in: &StandIn, words: &[&str], length: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(stand_in.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.write_all(&command_bytes(words)).unwrap();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn hostile_replies_have_each_form() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let answers = |answer| stand_in.set([Quirk::Replies(Target::Command("PING"), answer)]);
    answers(Answer::Endless);
    let endless = read(&stand_in, &["PING"], 1 << 20);
    assert!(!endless.contains(&b'\n'), "a line has no end");
    answers(Answer::Dripping(ms(20)));
    let started = Instant::now();
    assert_eq!(read(&stand_in, &["PING"], 7), b"+PONG\r\n");
    assert!(started.elapsed() >= ms(140));
    answers(Answer::Malformed);
    assert_eq!(read(&stand_in, &["PING"], 1), b"?");
    answers(Answer::Nested(1000));
    let nested = read(&stand_in, &["PING"], 4000);
    assert_eq!(nested, b"*1\r\n".repeat(1000));
    answers(Answer::EndlessItems(9));
    assert_eq!(read(&stand_in, &["PING"], 12), b"*9\r\n:1\r\n:1\r\n");
    answers(Answer::Behind(b"+first\r\n".to_vec()));
    assert_eq!(read(&stand_in, &["PING"], 15), b"+first\r\n+PONG\r\n");
    answers(Answer::Giant(1 << 40));
    let before = stand_in.streamed();
    let giant = read(&stand_in, &["PING"], 1 << 20);
    assert!(giant.starts_with(b"$1099511627776\r\nxxx"));
    // The stand-in counts the bytes after it has written them.
    eventually(SOON, || stand_in.streamed() - before >= (1 << 20) - 16);
    answers(Answer::Giant(3));
    assert_eq!(read(&stand_in, &["PING"], 9), b"$3\r\nxxx\r\n");
    answers(Answer::Silence);
    let mut silent = impatient(open(&stand_in));
    assert!(timed_out(silent.call(&["PING"])));
    assert!(timed_out(silent.call(&["GET", "k"])));
    answers(Answer::Closes);
    open(&stand_in).call(&["PING"]).unwrap_err();
    stand_in.set([Quirk::Flood]);
    let flood = read(&stand_in, &["SUBSCRIBE", "news"], 1 << 20);
    assert!(String::from_utf8_lossy(&flood).matches("noise").count() > 1000);
}
