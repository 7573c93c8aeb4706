//! The other side of the socket is the test.

use tokio::net::UnixStream;

use super::*;

/// A reader, and the other side of its socket.
fn reader() -> (Subscriber, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let subscriber = Subscriber {
        stream: Stream::Unix(ours),
        run_id: 7,
        login: None,
        sent: VecDeque::new(),
        silent_since: None,
        is_refusal_known: false,
        was_confirmed: false,
        idle_search_at: Clock::System.now(),
        buffer: Vec::new(),
        scan: FrameScan::default(),
    };
    (subscriber, theirs)
}

/// A waiter may need a channel again before the reply to the end of its subscription has arrived.
#[tokio::test]
async fn each_end_of_a_subscription_excuses_one_message_of_its_channel() {
    let (mut reader, _server) = reader();
    let slots = SlotChannels::new(&"lk1:p:u".into(), &Arc::default(), &Arc::default());
    let keys = KeyChannels::new(true, &Arc::default(), &Arc::default());
    let channels = NodeChannels {
        slots: &slots,
        keys: &keys,
    };
    let [left, other] = [7, 8].map(|slot| slots.touch(slot));
    let twice = vec![Arc::clone(&left), Arc::clone(&left)];
    reader
        .unsubscribe(Subscribing::Sharded, twice)
        .await
        .unwrap();
    assert!(reader.silent_since.is_some());
    for _ in 0..2 {
        assert!(!reader.has_moved(Subscribing::Sharded, &left, channels));
        assert!(slots.channels.phase(&7).is_some());
    }
    assert!(reader.silent_since.is_none(), "nothing is awaited");
    // The messages that the reader did not ask for.
    for (channel, slot) in [(&left, 7), (&other, 8)] {
        assert!(reader.has_moved(Subscribing::Sharded, channel, channels));
        assert!(slots.channels.phase(&slot).is_none());
    }
    assert!(
        !reader.has_moved(Subscribing::Sharded, &other, channels),
        "it is not known"
    );
}

/// The reply to one channel says nothing about another one.
#[tokio::test]
async fn end_of_a_subscription_excuses_no_other_channel() {
    let (mut reader, _server) = reader();
    let slots = SlotChannels::new(&"lk1:p:u".into(), &Arc::default(), &Arc::default());
    let keys = KeyChannels::new(true, &Arc::default(), &Arc::default());
    let channels = NodeChannels {
        slots: &slots,
        keys: &keys,
    };
    let [left, other] = [7, 8].map(|slot| slots.touch(slot));
    reader
        .unsubscribe(Subscribing::Sharded, vec![Arc::clone(&left)])
        .await
        .unwrap();
    assert!(reader.has_moved(Subscribing::Sharded, &other, channels));
    assert!(!reader.has_moved(Subscribing::Sharded, &left, channels));
}
