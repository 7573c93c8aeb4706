//! A server that sends more on the subscription than a client reads, and one that no longer replies there.
//!
//! A program of its own, because a flood takes all time of a processor that tests of times need.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use lock_core::LockManager;
use test_support::fixtures::{LONG, NAME, SOON, ms};
use test_support::{RedisServer, eventually_async};
use tests::start_waiter;

/// What the client sends before the name of a channel.
const SUBSCRIBE: &[u8] = b"\r\nSUBSCRIBE\r\n$";

/// Messages in one write, so that the proxy is never the slower side.
const BATCH: usize = 10;

/// About as much as fits into a message.
const TEXT: usize = 60_000;

/// Lines that can be read: a client with the right to publish can send them to any waiter.
const FORGED: &str = "h 01234567 1700000000000000 1000\n";

/// What a proxy adds to the subscription, as fast as the client reads unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    /// Messages of lines that nobody can read.
    Nonsense,
    /// Messages of lines that could be for a waiter.
    Forged,
    /// A short message each 10 ms, and none of the server's own bytes.
    Alone,
}

impl Added {
    fn text(self) -> String {
        match self {
            Self::Nonsense => "\n".repeat(TEXT),
            Self::Forged => FORGED.repeat(TEXT / FORGED.len()),
            Self::Alone => "x".to_owned(),
        }
    }
}

/// Forwards everything, and adds messages to each connection that subscribes, as fast as the client reads.
struct Flood {
    address: SocketAddr,
    /// How often a connection has subscribed.
    subscriptions: Arc<AtomicUsize>,
    /// How many messages were sent.
    messages: Arc<AtomicUsize>,
}

impl Flood {
    fn in_front_of(server: &RedisServer, added: Added) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let flood = Self {
            address: listener.local_addr().unwrap(),
            subscriptions: Arc::default(),
            messages: Arc::default(),
        };
        let upstream = server.address();
        let (subscriptions, messages) = (
            Arc::clone(&flood.subscriptions),
            Arc::clone(&flood.messages),
        );
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(upstream) else {
                    return;
                };
                let (to_client, from_others) = mpsc::channel();
                let ours = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (flooding, counted) = (to_client.clone(), Arc::clone(&subscriptions));
                thread::spawn(move || send_to_server(ours, &flooding, &counted));
                thread::spawn(move || read_from_server(server, &to_client));
                let messages = Arc::clone(&messages);
                thread::spawn(move || send_to_client(client, &from_others, added, &messages));
            }
        });
        flood
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

enum ToClient {
    FromServer(Vec<u8>),
    /// The client subscribes to this channel.
    Flood(String),
}

fn send_to_server(
    (mut client, mut server): (TcpStream, TcpStream),
    to_client: &Sender<ToClient>,
    subscriptions: &AtomicUsize,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = client.read(&mut buffer) {
        let sent = &buffer[..len];
        if let Some(at) = sent.windows(SUBSCRIBE.len()).position(|it| it == SUBSCRIBE) {
            subscriptions.fetch_add(1, Ordering::Relaxed);
            let rest = String::from_utf8_lossy(&sent[at + SUBSCRIBE.len()..]).into_owned();
            let channel = rest.split("\r\n").nth(1).unwrap().to_owned();
            let _sent = to_client.send(ToClient::Flood(channel));
        }
        if server.write_all(sent).is_err() {
            return;
        }
    }
    let _closed = server.shutdown(std::net::Shutdown::Both);
}

fn read_from_server(mut server: TcpStream, to_client: &Sender<ToClient>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = server.read(&mut buffer) {
        let bytes = buffer[..len].to_vec();
        if to_client.send(ToClient::FromServer(bytes)).is_err() {
            return;
        }
    }
}

fn send_to_client(
    mut client: TcpStream,
    to_client: &Receiver<ToClient>,
    added: Added,
    messages: &AtomicUsize,
) {
    let mut flood: Option<Vec<u8>> = None;
    let mut announced = None;
    loop {
        let next = match &flood {
            None => to_client.recv().map_err(|_| TryRecvError::Disconnected),
            Some(_) => to_client.try_recv(),
        };
        let result = match (next, &flood) {
            (Ok(ToClient::Flood(channel)), _) => {
                announced = Some(channel);
                Ok(())
            }
            (Ok(ToClient::FromServer(_)), Some(_)) if added == Added::Alone => Ok(()),
            (Ok(ToClient::FromServer(bytes)), _) => {
                let written = client.write_all(&bytes);
                // The confirmation has arrived.
                if let Some(channel) = announced.take() {
                    let text = added.text();
                    let (len, of_text) = (channel.len(), text.len());
                    let message = format!(
                        ">3\r\n$7\r\nmessage\r\n${len}\r\n{channel}\r\n${of_text}\r\n{text}\r\n"
                    );
                    flood = Some(message.repeat(BATCH).into_bytes());
                }
                written
            }
            (Err(TryRecvError::Empty), Some(batch)) => {
                messages.fetch_add(BATCH, Ordering::Relaxed);
                if added == Added::Alone {
                    thread::sleep(ms(10));
                }
                client.write_all(batch)
            }
            (Err(_), _) => return,
        };
        if result.is_err() {
            return;
        }
    }
}

/// Renewals share the connection with the messages, and the thread.
async fn assert_no_lock_is_lost(added: Added) {
    let server = RedisServer::start();
    let flood = Flood::in_front_of(&server, added);
    let locks = LockManager::connect(&flood.url()).await.unwrap();
    let mut held = Vec::new();
    for number in 0..20 {
        let request = locks.lock(format!("held-{number}")).ttl(ms(500));
        held.push(request.acquire().await.unwrap());
    }
    let busy = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    eventually_async(SOON, async || {
        flood.messages.load(Ordering::Relaxed) > BATCH
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let lost = held.iter().filter(|guard| guard.is_lost()).count();
    let messages = flood.messages.load(Ordering::Relaxed);
    assert_eq!(lost, 0, "of 20, in a flood of {messages} messages");
    assert!(messages > 2 * BATCH, "{messages}");
    let subscriptions = flood.subscriptions.load(Ordering::Relaxed);
    assert_eq!(
        subscriptions, 1,
        "no subscription in the pause after a flood"
    );
    busy.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_on_the_subscription_loses_no_lock() {
    assert_no_lock_is_lost(Added::Nonsense).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_forged_notifications_loses_no_lock() {
    assert_no_lock_is_lost(Added::Forged).await;
}

/// The subscription is checked each 3 s, and messages are no reply to that question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_only_sends_messages_is_replaced() {
    let server = RedisServer::start();
    let flood = Flood::in_front_of(&server, Added::Alone);
    let timeout = Duration::from_secs(1);
    let builder = LockManager::builder().command_timeout(timeout);
    let locks = builder.connect(&flood.url()).await.unwrap();
    let busy = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    let began = Instant::now();
    eventually_async(SOON, async || {
        flood.subscriptions.load(Ordering::Relaxed) > 1
    })
    .await;
    let (found, within) = (
        began.elapsed(),
        Duration::from_secs(3) + timeout + ms(1_500),
    );
    assert!(found < within, "after {found:?}");
    busy.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
