//! A proxy that cuts the connection to the server once, at a chosen command.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::stage::{BoxError, Server};

/// Where the proxy cuts the connection: at the first command that contains these bytes.
#[derive(Clone, Copy)]
pub enum Cut {
    /// The command does not reach the server.
    Before(&'static str),
    /// The server runs the command, and its reply does not reach the client.
    After(&'static str),
}

/// Forwards all data until the cut. After the cut it forwards new connections.
pub struct Wire {
    address: SocketAddr,
    listening: JoinHandle<()>,
    whole: Arc<AtomicBool>,
}

impl Wire {
    pub async fn to(server: &Server, cut: Cut) -> Result<Self, BoxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let whole = Arc::new(AtomicBool::new(true));
        let (port, uncut) = (server.port(), Arc::clone(&whole));
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, port, cut, Arc::clone(&uncut)));
            }
        });
        Ok(Self {
            address,
            listening,
            whole,
        })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn was_cut(&self) -> bool {
        !self.whole.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Forwards one connection. Closes both sides when one side closes, and at the cut.
async fn forward(
    mut client: TcpStream,
    port: u16,
    cut: Cut,
    whole: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    // Without this, the last bytes of a command wait until earlier bytes are acknowledged.
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut from_client, mut from_server) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            length = client.read(&mut from_client) => {
                let command = &from_client[..length?];
                let (Cut::Before(word) | Cut::After(word)) = cut;
                let matches = command.windows(word.len()).any(|part| part == word.as_bytes());
                if matches && whole.swap(false, Ordering::SeqCst) {
                    if matches!(cut, Cut::After(_)) {
                        server.write_all(command).await?;
                        // The server has run the command once a reply arrives.
                        server.readable().await?;
                    }
                    return Ok(());
                }
                if command.is_empty() {
                    return Ok(());
                }
                server.write_all(command).await?;
            }
            length = server.read(&mut from_server) => {
                let reply = &from_server[..length?];
                if reply.is_empty() {
                    return Ok(());
                }
                client.write_all(reply).await?;
            }
        }
    }
}
