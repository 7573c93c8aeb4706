//! Messages and confirmations between the replies to callers.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::driver::TURN_BYTES;
use super::*;
use lock_protocol::resp::LOCK_REPLY;

/// Keeps what it gets, as text.
#[derive(Default)]
struct Kept {
    seen: Mutex<Vec<String>>,
    /// How often another task has run, and how often it had when the first and the latest of them came.
    turns: AtomicUsize,
    turns_at: Mutex<Option<(usize, usize)>>,
    changed: tokio::sync::Notify,
}

impl Kept {
    fn add(&self, text: String) {
        let now = self.turns.load(Ordering::Relaxed);
        let first = self.turns_at.lock().take().map_or(now, |(first, _)| first);
        *self.turns_at.lock() = Some((first, now));
        self.seen.lock().push(text);
        self.changed.notify_one();
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Waits until it has got this many, and returns them.
    async fn next(&self, count: usize) -> Vec<String> {
        let waiting = async {
            while self.seen.lock().len() < count {
                self.changed.notified().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE / 3, waiting).await;
        waited.unwrap_or_else(|_elapsed| panic!("only {:?}", self.take()));
        self.take()
    }

    /// Runs until it is aborted, and counts its turns.
    fn count_turns(self: &Arc<Self>) -> tokio::task::JoinHandle<()> {
        let kept = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                kept.turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        })
    }

    /// Returns how often the other task ran between the first message and the latest one.
    fn turns_between(&self) -> usize {
        let (first, latest) = self.turns_at.lock().take().unwrap();
        latest - first
    }
}

impl Receiver for Kept {
    fn receive(&self, push: Push<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.add(match push {
            Push::Message { text: it, .. } if it == b"panic" => panic!("as the test wants"),
            Push::Message { text: it, .. } if it.starts_with(b"slow") => {
                std::thread::sleep(Duration::from_millis(2));
                "slow".to_owned()
            }
            Push::Message { channel, text: it } => format!("{}={}", text(channel), text(it)),
            Push::Subscribed(how, channel) => format!("up {how:?} {channel}"),
            Push::Refused(how, channel, error) => {
                format!("no {how:?} {channel} {}", error.text())
            }
            Push::Ended(how, channel) => format!("ended {how:?} {}", text(channel)),
        });
    }

    fn caught_up(&self) {
        self.add("caught up".to_owned());
    }

    fn ended(&self, is_flooded: bool) {
        self.add(if is_flooded { "flooded" } else { "over" }.to_owned());
    }
}

fn listening() -> (Arc<Transport>, UnixStream, Arc<Kept>) {
    let (transport, server) = connected();
    let kept = Arc::<Kept>::default();
    transport.receive_with(Arc::clone(&kept) as Arc<dyn Receiver>);
    (transport, server, kept)
}

fn classic(name: &str) -> Subscribed {
    (Subscribing::Classic, name.into())
}

fn sharded(name: &str) -> Subscribed {
    (Subscribing::Sharded, name.into())
}

fn frame(kind: &str, channel: &str, text: &str) -> String {
    let words = [kind, channel, text].map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!(">3\r\n{}", words.concat())
}

fn message(channel: &str, text: &str) -> String {
    frame("message", channel, text)
}

fn confirmation(kind: &str, channel: &str) -> String {
    let (kind_len, len) = (kind.len(), channel.len());
    format!(">3\r\n${kind_len}\r\n{kind}\r\n${len}\r\n{channel}\r\n:1\r\n")
}

fn command(words: &[&str]) -> String {
    let words = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let words: Vec<_> = words.collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

#[tokio::test]
async fn confirmations_name_their_channel_and_may_come_in_any_order() {
    let (transport, mut server, kept) = listening();
    transport.subscribe(
        vec![classic("old")],
        vec![classic("a"), sharded("a"), classic("b")],
    );
    let sent = [
        command(&["UNSUBSCRIBE", "old"]),
        command(&["SUBSCRIBE", "a"]),
        command(&["SSUBSCRIBE", "a"]),
        command(&["SUBSCRIBE", "b"]),
    ];
    expect(&mut server, &sent.concat()).await;
    let bytes = [
        confirmation("subscribe", "b"),
        confirmation("ssubscribe", "a"),
        message("a", "x\ny"),
        frame("smessage", "a", "z"),
        confirmation("unsubscribe", "old"),
        confirmation("subscribe", "a"),
        ">1\r\n+invalidate\r\n".to_owned(),
    ];
    reply(&mut server, &bytes.concat()).await;
    let expected = [
        "up Classic b",
        "up Sharded a",
        "a=x\ny",
        "a=z",
        "up Classic a",
        "caught up",
    ];
    assert_eq!(kept.next(expected.len()).await, expected);
    assert!(transport.shared.state.lock().awaited.is_empty());
}

#[tokio::test]
async fn error_answers_the_oldest_command_and_no_other() {
    let (transport, mut server, kept) = listening();
    let first = start(&transport, &mut server, "first").await;
    transport.subscribe(vec![classic("c")], vec![classic("a"), sharded("b")]);
    let sent = [
        command(&["UNSUBSCRIBE", "c"]),
        command(&["SUBSCRIBE", "a"]),
        command(&["SSUBSCRIBE", "b"]),
    ];
    expect(&mut server, &sent.concat()).await;
    let second = start(&transport, &mut server, "second").await;
    transport.subscribe(Vec::new(), vec![classic("d")]);
    expect(&mut server, &command(&["SUBSCRIBE", "d"])).await;
    let bytes = [
        "-NOPERM first\r\n",
        "-NOPERM unsubscribe\r\n",
        &confirmation("subscribe", "a"),
        "!12\r\nMOVED 1 h:1x\r\n",
        &message("a", "between"),
        "$2\r\nhi\r\n",
        "-NOPERM d\r\n",
    ];
    reply(&mut server, &bytes.concat()).await;
    assert_eq!(first.await.unwrap().unwrap(), "-NOPERM first\r\n");
    assert_eq!(second.await.unwrap().unwrap(), "$2\r\nhi\r\n");
    let expected = [
        "up Classic a",
        "no Sharded b MOVED 1 h:1x",
        "a=between",
        "no Classic d NOPERM d",
        "caught up",
    ];
    assert_eq!(kept.next(expected.len()).await, expected);
    reply(&mut server, "+OK\r\n").await;
    assert_eq!(kept.next(1).await, ["over"], "nobody waits for it");
}

/// It may be the reply to a caller, or that of a proxy which confirms as in RESP2. A wrong guess would shift all replies.
#[tokio::test]
async fn ordinary_reply_before_the_confirmation_ends_the_connection() {
    for text in ["+OK\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"] {
        let (transport, mut server, kept) = listening();
        transport.subscribe(Vec::new(), vec![classic("a")]);
        expect(&mut server, &command(&["SUBSCRIBE", "a"])).await;
        let calling = start(&transport, &mut server, "ask").await;
        reply(&mut server, text).await;
        assert_eq!(kept.next(1).await, ["over"]);
        calling.await.unwrap().unwrap_err();
    }
}

/// A proxy that refuses a command by itself answers before the server does. The error then counts as the refusal of the
/// subscription. If the connection went on, each caller would get the reply to the next command.
#[tokio::test]
async fn confirmation_after_the_refusal_ends_the_connection() {
    let (transport, mut server, kept) = listening();
    transport.subscribe(Vec::new(), vec![classic("a")]);
    expect(&mut server, &command(&["SUBSCRIBE", "a"])).await;
    let refused = start(&transport, &mut server, "refused").await;
    let other = start(&transport, &mut server, "other").await;
    let early = "-ERR max requests limit exceeded\r\n";
    let bytes = [early, &confirmation("subscribe", "a"), "$2\r\nhi\r\n"].concat();
    reply(&mut server, &bytes).await;
    for caller in [refused, other] {
        let error = caller.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
    let seen = kept.next(2).await;
    assert_eq!(
        seen,
        ["no Classic a ERR max requests limit exceeded", "over"]
    );
}

#[tokio::test]
async fn confirmed_end_after_the_refusal_ends_the_connection() {
    for (of_ours, kind) in [
        (classic("a"), "unsubscribe"),
        (sharded("a"), "sunsubscribe"),
    ] {
        let (transport, mut server, kept) = listening();
        transport.subscribe(vec![of_ours], Vec::new());
        expect(&mut server, &command(&[&kind.to_uppercase(), "a"])).await;
        let refused = start(&transport, &mut server, "refused").await;
        let early = "-ERR max requests limit exceeded\r\n";
        let bytes = [early, &confirmation(kind, "a"), "$2\r\nhi\r\n"].concat();
        reply(&mut server, &bytes).await;
        let error = refused.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert_eq!(kept.next(1).await, ["over"]);
    }
}

/// A server that allows no end of a subscription keeps it, until the channel's slot moves.
#[tokio::test]
async fn refused_end_that_nobody_waits_behind_keeps_the_connection() {
    let (transport, mut server, kept) = listening();
    transport.subscribe(vec![sharded("a")], Vec::new());
    expect(&mut server, &command(&["SUNSUBSCRIBE", "a"])).await;
    let bytes = ["-NOPERM\r\n", &confirmation("sunsubscribe", "a")].concat();
    reply(&mut server, &bytes).await;
    assert_eq!(kept.next(2).await, ["ended Sharded a", "caught up"]);
    let calling = start(&transport, &mut server, "ask").await;
    reply(&mut server, "$2\r\nhi\r\n").await;
    assert_eq!(calling.await.unwrap().unwrap(), "$2\r\nhi\r\n");
}

/// A reply may arrive in pieces behind a message.
#[tokio::test]
async fn receiver_has_caught_up_when_the_reply_behind_a_message_is_complete() {
    let (transport, mut server, kept) = listening();
    let calling = start(&transport, &mut server, "ask").await;
    reply(&mut server, &[&message("a", "x"), "$2\r\nh"].concat()).await;
    assert_eq!(kept.next(1).await, ["a=x"]);
    reply(&mut server, "i\r\n").await;
    assert_eq!(kept.next(1).await, ["caught up"]);
    assert_eq!(calling.await.unwrap().unwrap(), "$2\r\nhi\r\n");
}

/// A waiter may need a channel again before the reply to the end of its subscription has arrived. Each end excuses
/// one message of its own channel.
#[tokio::test]
async fn end_of_a_subscription_that_nobody_asked_for_is_told() {
    let (transport, mut server, kept) = listening();
    transport.subscribe(vec![sharded("left"), sharded("left")], Vec::new());
    let ends = ["other", "left", "left", "left"].map(|it| confirmation("sunsubscribe", it));
    reply(&mut server, &ends.concat()).await;
    let expected = ["ended Sharded other", "ended Sharded left", "caught up"];
    assert_eq!(kept.next(expected.len()).await, expected);
}

#[tokio::test]
async fn giant_message_ends_the_connection_at_once() {
    for announced in ["$65537\r\n", "$33554432\r\n"] {
        let (transport, mut server, kept) = listening();
        let begin = format!(">3\r\n$7\r\nmessage\r\n$1\r\na\r\n{announced}");
        reply(&mut server, &begin).await;
        assert_eq!(kept.next(1).await, ["flooded"]);
        assert!(call(&transport, "x", 1).await.is_err());
    }
}

/// The reply to a caller may be longer than a message, and only while it is awaited.
#[tokio::test]
async fn refusal_of_a_subscription_has_the_limit_of_a_message() {
    let (transport, server, kept) = listening();
    transport.subscribe(Vec::new(), vec![classic("a")]);
    let (_from_us, mut server) = server.into_split();
    let long = format!("-ERR {}", "x".repeat(2 * LOCK_REPLY));
    let writing = tokio::spawn(async move { server.write_all(long.as_bytes()).await });
    assert_eq!(kept.next(1).await, ["over"]);
    writing.abort();
}

/// Renewals run on the same thread.
#[tokio::test]
async fn other_tasks_run_in_a_flood() {
    let (_transport, mut server, kept) = listening();
    let text = "x".repeat(10_000);
    for (frame, messages, least_turns) in [
        // What is read at once is handled at once.
        (message("a", "x"), 4_000, 4_000 * 30 / TURN_BYTES),
        (message("a", "x"), 50, 0),
        (message("a", &text), 15, 15 * text.len() / TURN_BYTES - 1),
    ] {
        // All of it fits into the socket's buffer.
        reply(&mut server, &frame.repeat(messages)).await;
        let other = kept.count_turns();
        let mut received = 0;
        while received < messages {
            let seen = kept.next(1).await;
            received += seen.iter().filter(|it| it.starts_with("a=")).count();
        }
        other.abort();
        let turns = kept.turns_between();
        assert!(turns >= least_turns, "{turns} < {least_turns}");
    }
}

/// Replies to callers would wait behind all that the server has buffered.
#[tokio::test]
async fn flood_that_lasts_ends_the_connection() {
    let (transport, server, kept) = listening();
    let mut server = server.into_std().unwrap();
    server.set_nonblocking(false).unwrap();
    let batch = message("a", &"slow".repeat(15_000)).repeat(10);
    let flooding = std::thread::spawn(move || while server.write_all(batch.as_bytes()).is_ok() {});
    let ends = async { while !kept.next(1).await.iter().any(|it| it == "flooded") {} };
    tokio::time::timeout(PATIENCE, ends).await.unwrap();
    // The socket is closed with its last half.
    drop(transport);
    flooding.join().unwrap();
}

/// As after a pause of this process.
#[tokio::test]
async fn large_backlog_of_messages_is_read_at_once() {
    let (transport, mut server, kept) = listening();
    let bytes = message("a", &"x".repeat(1_000)).repeat(100);
    for _ in 0..30 {
        reply(&mut server, &bytes).await;
        let mut received = 0;
        while received < 100 {
            let seen = kept.next(1).await;
            received += seen.iter().filter(|it| it.starts_with("a=")).count();
        }
    }
    let calling = start(&transport, &mut server, "ask").await;
    reply(&mut server, "+OK\r\n").await;
    assert_eq!(calling.await.unwrap().unwrap(), "+OK\r\n");
}

/// They cost as much as those that somebody waits for.
#[tokio::test]
async fn other_tasks_run_in_a_flood_of_messages_for_nobody() {
    let (_transport, mut server, kept) = listening();
    let unknown = frame("invalidate", "a", &"x".repeat(10_000)).repeat(15);
    let bytes = [message("a", "first"), unknown, message("a", "last")].concat();
    reply(&mut server, &bytes).await;
    let other = kept.count_turns();
    while !kept.next(1).await.iter().any(|it| it == "a=last") {}
    other.abort();
    let turns = kept.turns_between();
    assert!(turns >= bytes.len() / TURN_BYTES - 1, "{turns}");
}

#[tokio::test]
async fn receiver_learns_of_the_end_once() {
    let (transport, server, kept) = listening();
    drop(server);
    assert_eq!(kept.next(1).await, ["over"]);
    drop(transport);
    tokio::task::yield_now().await;
    assert_eq!(kept.take(), [""; 0]);
}

#[tokio::test]
async fn receiver_that_comes_too_late_learns_of_the_end_at_once() {
    let (transport, server, first) = listening();
    drop(server);
    assert_eq!(first.next(1).await, ["over"]);
    let late = Arc::<Kept>::default();
    transport.receive_with(Arc::clone(&late) as Arc<dyn Receiver>);
    assert_eq!(late.take(), ["over"]);
}

#[tokio::test]
async fn panic_of_the_receiver_ends_the_connection() {
    let (transport, mut server, kept) = listening();
    let calling = start(&transport, &mut server, "ask").await;
    let bytes = [message("a", "before"), message("a", "panic")].concat();
    reply(&mut server, &bytes).await;
    assert_eq!(kept.next(2).await, ["a=before", "over"]);
    calling.await.unwrap().unwrap_err();
}
