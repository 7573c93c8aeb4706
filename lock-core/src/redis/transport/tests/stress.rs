//! Callers of two runtimes, which stop waiting at any moment, and a server that stalls and answers in
//! pieces. Each call has to end, and each reply has to belong to its command.

use std::time::Instant;

use redis::io::tcp::socket2::SockRef;
use test_support::Random;
use tokio::task::JoinSet;

use super::*;
use lock_protocol::resp::{Replies, Reply};

/// For how long new connections are tried. A run with a longer time finds rarer interleavings.
const SPAN: Duration = Duration::from_millis(1500);
/// No call takes longer, unless its wake-up was lost.
const LOST: Duration = Duration::from_secs(20);
const CALLERS: usize = 6;
const CALLS: usize = 25;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// All callers finish first.
    Finished,
    ServerCloses,
    Garbage,
    RuntimeEnds,
}

const ENDINGS: [Ending; 4] = [
    Ending::Finished,
    Ending::ServerCloses,
    Ending::Garbage,
    Ending::RuntimeEnds,
];

/// Waits for a moment, or only lets other tasks run.
async fn pause(random: &mut Random) {
    match random.below(10) {
        0 => tokio::time::sleep(Duration::from_micros(random.number() % 800)).await,
        1..4 => tokio::task::yield_now().await,
        _ => {}
    }
}

/// The commands are lines of an id and a padding. A reply holds the id, and a padding of its own.
async fn serve(mut socket: UnixStream, ending: Ending, mut random: Random) {
    let mut left = match ending {
        Ending::Finished => usize::MAX,
        _ => random.below(200_000),
    };
    let (mut bytes, mut replies) = (Vec::new(), Vec::new());
    while socket.read_buf(&mut bytes).await.unwrap_or(0) > 0 {
        pause(&mut random).await;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).collect();
            let id = line.split(|byte| *byte == b' ').next().unwrap();
            let mut text = [id, b" "].concat();
            let padding = *random.pick(&[0, 0, 3, 5_000]);
            text.resize(text.len() + padding, b'-');
            if random.chance(5) {
                replies.extend_from_slice(b">2\r\n+push\r\n$1\r\nx\r\n");
            }
            replies.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
            replies.extend_from_slice(&text);
            replies.extend_from_slice(b"\r\n");
        }
        while !replies.is_empty() {
            let most = *random.pick(&[1, 20, 5_000, usize::MAX]);
            let piece = most.min(replies.len());
            if socket.write_all(&replies[..piece]).await.is_err() {
                return;
            }
            replies.drain(..piece);
            left = left.saturating_sub(piece);
            if left == 0 && ending == Ending::ServerCloses {
                return;
            }
            pause(&mut random).await;
        }
        if left == 0 && ending == Ending::Garbage {
            let _may_be_closed = socket.write_all(b"garbage\r\n").await;
        }
    }
}

/// Returns the id in a reply.
fn id_of(reply: Reply<'_>) -> String {
    let text = reply.text().unwrap();
    let id = text.split(|byte| *byte == b' ').next().unwrap();
    String::from_utf8_lossy(id).into_owned()
}

/// Makes calls one after the other, and stops waiting for some of them. Returns whether one failed.
async fn call_often(transport: Arc<Transport>, caller: usize, mut random: Random) -> bool {
    for number in 0..CALLS {
        let count = 1 + random.below(3);
        let ids: Vec<_> = (0..count)
            .map(|part| format!("{caller}.{number}.{part}"))
            .collect();
        let padding = "-".repeat(*random.pick(&[0, 10, 300, 20_000]));
        let calling = transport.call(
            |out: &mut Vec<u8>| {
                for id in &ids {
                    out.extend_from_slice(format!("{id} {padding}\n").as_bytes());
                }
            },
            expected(count),
        );
        let stops = random.chance(30);
        let limit = if stops {
            Duration::from_micros(random.number() % 600)
        } else {
            LOST
        };
        match tokio::time::timeout(limit, calling).await {
            Ok(Ok(replies)) => {
                let found: Vec<_> = Replies::new(&replies).map(id_of).collect();
                assert_eq!(found, ids);
            }
            Ok(Err(_failed)) => return true,
            Err(_elapsed) => assert!(stops, "call {caller}.{number} was not woken"),
        }
        if random.chance(50) {
            pause(&mut random).await;
        }
    }
    false
}

fn one_connection(callers: [&tokio::runtime::Runtime; 2], random: &mut Random) {
    let ending = *random.pick(&ENDINGS);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let own = builder.worker_threads(1).enable_all().build().unwrap();
    let (ours, theirs) = own.block_on(async { UnixStream::pair().unwrap() });
    // So that commands are sent in parts.
    SockRef::from(&ours).set_send_buffer_size(4096).unwrap();
    let theirs = {
        // Another runtime, so that the server outlives the runtime of the connection.
        let theirs = theirs.into_std().unwrap();
        callers[0].block_on(async { UnixStream::from_std(theirs).unwrap() })
    };
    callers[0].spawn(serve(theirs, ending, random.fork()));
    let transport = own.block_on(async { Transport::start(Stream::Unix(ours), link()) });
    let transport = Arc::new(transport);
    let mut calling = JoinSet::new();
    for caller in 0..CALLERS {
        let call = call_often(Arc::clone(&transport), caller, random.fork());
        // Some callers are on the runtime of the driver, as most callers are.
        let runtime = match caller % 3 {
            0 if ending != Ending::RuntimeEnds => own.handle(),
            at => callers[at % 2].handle(),
        };
        calling.spawn_on(call, runtime);
    }
    if ending == Ending::RuntimeEnds {
        std::thread::sleep(random.millis(0, 3));
        own.shutdown_timeout(LOST);
    }
    let failed = callers[0].block_on(calling.join_all());
    if ending != Ending::Finished {
        return;
    }
    assert_eq!(failed, [false; CALLERS], "{ending:?}");
    // The replies to calls that were dropped arrive later.
    test_support::eventually(LOST, || {
        let state = transport.shared.state.lock();
        state.awaited.is_empty() && state.out.is_empty()
    });
    let state = transport.shared.state.lock();
    assert_eq!(state.free.len(), state.slots.len(), "all slots are free");
    assert!(!state.is_sending && state.slots.iter().all(|slot| slot.waker.is_none()));
}

#[test]
fn each_call_ends_with_its_own_replies() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    let callers = [runtime(), runtime()];
    let seed = std::env::var("LOCK_TRANSPORT_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(1);
    let mut random = Random::new(seed);
    let ends = Instant::now() + SPAN;
    while Instant::now() < ends {
        one_connection([&callers[0], &callers[1]], &mut random);
    }
}
