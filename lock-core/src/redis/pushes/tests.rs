//! The other side of the socket is the test. Times are virtual.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;

const HEARTBEAT: Heartbeat = Heartbeat {
    interval: Duration::from_secs(3),
    limit: Duration::from_secs(1),
};
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

fn pushes() -> (Pushes<u32>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Pushes::new(Stream::Unix(ours), Some(HEARTBEAT)), theirs)
}

fn message(channel: &str, text: &str) -> Vec<u8> {
    frame("message", channel, text)
}

fn frame(kind: &str, channel: &str, text: &str) -> Vec<u8> {
    let words = [kind, channel, text].map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!(">3\r\n{}", words.concat()).into_bytes()
}

fn confirmation(kind: &str, channel: &str) -> Vec<u8> {
    let (kind_len, len) = (kind.len(), channel.len());
    format!(">3\r\n${kind_len}\r\n{kind}\r\n${len}\r\n{channel}\r\n:1\r\n").into_bytes()
}

/// Returns what `next` returns, as text.
async fn next(pushes: &mut Pushes<u32>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match pushes.next().await {
        Ok(Push::Message { channel, text: it }) => format!("{}={}", text(channel), text(it)),
        Ok(Push::Subscribed(how, channel)) => format!("up {how:?} {channel}"),
        Ok(Push::Refused(how, channel, error)) => format!("no {how:?} {channel} {}", error.text()),
        Ok(Push::Ended(how, channel)) => format!("ended {how:?} {}", text(channel)),
        Ok(Push::Reply(tag, reply)) => format!("{tag}: {}", text(reply.bytes()).trim_end()),
        Ok(Push::Other) => "other".to_owned(),
        Err(error) => format!("error {:?}", error.kind()),
    }
}

#[tokio::test]
async fn confirmations_name_their_channel_and_may_come_in_any_order() {
    let (mut pushes, mut server) = pushes();
    pushes.subscribe(Subscribing::Classic, "a".into());
    pushes.subscribe(Subscribing::Sharded, "a".into());
    pushes.subscribe(Subscribing::Classic, "b".into());
    let bytes = [
        confirmation("subscribe", "b"),
        confirmation("ssubscribe", "a"),
        confirmation("ssubscribe", "a"),
        message("a", "x\ny"),
        frame("smessage", "a", "z"),
        confirmation("subscribe", "a"),
        b">1\r\n+invalidate\r\n".to_vec(),
    ];
    server.write_all(&bytes.concat()).await.unwrap();
    for expected in [
        "up Classic b",
        "up Sharded a",
        "other",
        "a=x\ny",
        "a=z",
        "up Classic a",
        "other",
    ] {
        assert_eq!(next(&mut pushes).await, expected);
    }
    assert!(pushes.awaited.is_empty());
}

#[tokio::test]
async fn error_answers_the_oldest_command_and_no_other() {
    let (mut pushes, mut server) = pushes();
    let ask = |pushes: &mut Pushes<u32>, tag| {
        pushes.send(tag, LOCK_REPLY, |out| drop(out.command("ECHO")));
    };
    ask(&mut pushes, 1);
    pushes.subscribe(Subscribing::Classic, "a".into());
    pushes.subscribe(Subscribing::Sharded, "b".into());
    pushes.unsubscribe(Subscribing::Classic, "c".into());
    ask(&mut pushes, 2);
    pushes.subscribe(Subscribing::Classic, "d".into());
    let bytes: [&[u8]; 8] = [
        b"-NOPERM echo\r\n",
        &confirmation("subscribe", "a"),
        b"!12\r\nMOVED 1 h:1x\r\n",
        b"-NOPERM unsubscribe\r\n",
        &message("a", "between"),
        b"$2\r\nhi\r\n",
        b"-NOPERM d\r\n",
        // The server's last words.
        b"-ERR bye\r\n",
    ];
    server.write_all(&bytes.concat()).await.unwrap();
    for expected in [
        "1: -NOPERM echo",
        "up Classic a",
        "no Sharded b MOVED 1 h:1x",
        "other",
        "a=between",
        "2: $2\r\nhi",
        "no Classic d NOPERM d",
        "other",
    ] {
        assert_eq!(next(&mut pushes).await, expected);
    }
    server.write_all(b"+OK\r\n").await.unwrap();
    assert_eq!(next(&mut pushes).await, "error InvalidData");
}

/// An ordinary reply never answers a subscription whose confirmation is late.
#[tokio::test]
async fn reply_answers_the_oldest_command_behind_a_subscription() {
    let (mut pushes, mut server) = pushes();
    pushes.subscribe(Subscribing::Classic, "a".into());
    pushes.send(7, LOCK_REPLY, |out| drop(out.command("AUTH")));
    let bytes = [b"+OK\r\n".to_vec(), confirmation("subscribe", "a")];
    server.write_all(&bytes.concat()).await.unwrap();
    assert_eq!(next(&mut pushes).await, "7: +OK");
    assert_eq!(next(&mut pushes).await, "up Classic a");
}

/// A waiter may need a channel again before the reply to the end of its subscription has arrived. Each end excuses
/// one message of its own channel.
#[tokio::test]
async fn end_of_a_subscription_that_nobody_asked_for_is_told() {
    let (mut pushes, mut server) = pushes();
    pushes.unsubscribe(Subscribing::Sharded, "left".into());
    pushes.unsubscribe(Subscribing::Sharded, "left".into());
    let ends = ["other", "left", "left", "left"].map(|it| confirmation("sunsubscribe", it));
    server.write_all(&ends.concat()).await.unwrap();
    for expected in [
        "ended Sharded other",
        "other",
        "other",
        "ended Sharded left",
    ] {
        assert_eq!(next(&mut pushes).await, expected);
    }
}

/// A message shows that some client publishes; it doesn't show that the server still answers this one.
#[tokio::test(start_paused = true)]
async fn flood_of_messages_does_not_postpone_the_heartbeat() {
    let (mut pushes, mut server) = pushes();
    let began = Instant::now();
    let flood = async {
        let mut received = Vec::new();
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if server.write_all(&message("a", "x")).await.is_err() {
                break;
            }
            let mut bytes = [0; 100];
            if let Ok(len) = server.try_read(&mut bytes) {
                received.extend_from_slice(&bytes[..len]);
            }
            // The reply to the first PING comes.
            if received == PING && began.elapsed() < Duration::from_secs(4) {
                received.clear();
                server.write_all(b"+PONG\r\n").await.unwrap();
            }
        }
        received
    };
    let reading = async {
        let last = loop {
            let seen = next(&mut pushes).await;
            if seen.starts_with("error") {
                break seen;
            }
        };
        drop(pushes);
        (last, began.elapsed())
    };
    let (received, (last, found)) = tokio::join!(flood, reading);
    assert_eq!((&*last, &*received), ("error TimedOut", PING));
    let seconds = found.as_secs_f64();
    assert!((6.9..7.3).contains(&seconds), "{seconds}");
}

/// As above, for a subscription that a waiter needs again and again.
#[tokio::test(start_paused = true)]
async fn confirmations_do_not_postpone_the_heartbeat() {
    let (mut pushes, mut server) = pushes();
    let began = Instant::now();
    loop {
        pushes.subscribe(Subscribing::Classic, "a".into());
        server
            .write_all(&confirmation("subscribe", "a"))
            .await
            .unwrap();
        let seen = next(&mut pushes).await;
        if seen.starts_with("error") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() < Duration::from_millis(4_200));
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_found_after_the_limit() {
    let (mut pushes, _server) = pushes();
    let began = Instant::now();
    pushes.subscribe(Subscribing::Classic, "a".into());
    assert_eq!(next(&mut pushes).await, "error TimedOut");
    assert_eq!(began.elapsed().as_secs(), 1);
}

/// A user may lack the right to run PING.
#[tokio::test(start_paused = true)]
async fn refused_heartbeat_is_an_answer() {
    let (mut pushes, mut server) = pushes();
    let answering = async {
        for _ in 0..3 {
            let mut ping = [0; 14];
            server.read_exact(&mut ping).await.unwrap();
            assert_eq!(ping, PING);
            server.write_all(b"-NOPERM ping\r\n").await.unwrap();
        }
    };
    let reading = async {
        for _ in 0..3 {
            assert_eq!(next(&mut pushes).await, "other");
        }
    };
    tokio::join!(answering, reading);
}

#[tokio::test]
async fn giant_message_ends_the_connection_at_once() {
    for announced in ["$65537\r\n", "$33554432\r\n"] {
        let (mut pushes, mut server) = pushes();
        let begin = format!(">3\r\n$7\r\nmessage\r\n$1\r\na\r\n{announced}");
        server.write_all(begin.as_bytes()).await.unwrap();
        assert_eq!(next(&mut pushes).await, "error InvalidData");
        assert!(pushes.buffer.capacity() <= 4 * CHUNK);
    }
}

/// The reply to a command may be longer than a message, and only while it is awaited.
#[tokio::test]
async fn long_reply_is_read_if_its_command_expects_it() {
    let long = "x".repeat(200_000);
    for (largest, expected) in [
        (1024 * 1024, "3: $200000"),
        (LOCK_REPLY, "error InvalidData"),
    ] {
        let (mut pushes, server) = pushes();
        pushes.send(3, largest, |out| drop(out.command("LIST")));
        let (_from_us, mut server) = server.into_split();
        let reply = format!("${}\r\n{long}\r\n", long.len());
        let answering = tokio::spawn(async move { server.write_all(reply.as_bytes()).await });
        let read = next(&mut pushes).await;
        assert!(read.starts_with(expected), "{}", &read[..20]);
        if read.starts_with('3') {
            answering.await.unwrap().unwrap();
        }
    }
}

/// A `next` that is dropped at each byte loses none, and no byte is scanned twice.
#[tokio::test]
async fn dropped_next_loses_nothing() {
    let (mut pushes, mut server) = pushes();
    let text = "y".repeat(3_000);
    let bytes = [message("a", &text), message("b", "z")].concat();
    let last = bytes.len() - 1;
    let mut received = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        server.write_all(&[*byte]).await.unwrap();
        let mut reading = std::pin::pin!(next(&mut pushes));
        tokio::select! {
            biased;
            seen = &mut reading => received.push(seen),
            () = tokio::task::yield_now(), if at < last => {}
        }
    }
    if received.len() < 2 {
        received.push(next(&mut pushes).await);
    }
    assert_eq!(received, [format!("a={text}"), "b=z".to_owned()]);
}

/// Everything in front of the last byte is known to the scan, so the last byte costs no more than the others.
#[tokio::test]
async fn dripping_message_is_scanned_once() {
    let (mut pushes, mut server) = pushes();
    let bytes = [
        b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n+".to_vec(),
        vec![b'x'; 60_000],
    ]
    .concat();
    for piece in bytes.chunks(100) {
        server.write_all(piece).await.unwrap();
        tokio::select! {
            biased;
            seen = next(&mut pushes) => panic!("{seen}"),
            () = tokio::time::sleep(Duration::ZERO) => {}
        }
    }
    // All of it was seen, although nothing was complete.
    assert_eq!(pushes.filled, bytes.len());
    let unread = pushes.buffer[..pushes.filled].to_vec();
    assert_eq!(format!("{:?}", pushes.scan), {
        let mut scan = FrameScan::default();
        assert_eq!(scan.scan(&unread, LOCK_REPLY), Ok(None));
        format!("{scan:?}")
    });
    server.write_all(b"\r\n").await.unwrap();
    assert!(next(&mut pushes).await.starts_with("a=xxx"));
}

/// The rest waits for the socket, while messages are read.
#[tokio::test]
async fn write_larger_than_the_socket_takes_is_remembered() {
    let (mut pushes, mut server) = pushes();
    let argument = "q".repeat(4 * 1024 * 1024);
    pushes.send(1, LOCK_REPLY, |out| {
        out.command("ECHO").arg(&*argument);
    });
    let sent = pushes.out.clone();
    server.write_all(&message("a", "early")).await.unwrap();
    assert_eq!(next(&mut pushes).await, "a=early");
    assert!(pushes.written < sent.len(), "the socket took all of it");
    let mut received = vec![0; sent.len()];
    let receiving = async {
        server.read_exact(&mut received).await.unwrap();
        server.write_all(b"+OK\r\n").await.unwrap();
    };
    let (reply, ()) = tokio::join!(next(&mut pushes), receiving);
    assert_eq!(reply, "1: +OK");
    assert!(received == sent, "other bytes arrived");
    assert!(pushes.out.capacity() == 0);
}

/// Renewals run on the same thread.
#[tokio::test]
async fn other_tasks_run_in_a_flood() {
    let (mut pushes, mut server) = pushes();
    for (frame, messages, least_turns) in [
        (message("a", "x"), 1_000, 1_000 / TURN_FRAMES - 1),
        (message("a", &"x".repeat(10_000)), 15, 1),
    ] {
        // All of it fits into the socket's buffer.
        server.write_all(&frame.repeat(messages)).await.unwrap();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..messages {
            let _message = next(&mut pushes).await;
        }
        other.abort();
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= least_turns, "{turns}");
    }
}

#[tokio::test]
async fn end_of_the_stream_is_an_error() {
    let (mut pushes, server) = pushes();
    drop(server);
    assert_eq!(next(&mut pushes).await, "error UnexpectedEof");
}
