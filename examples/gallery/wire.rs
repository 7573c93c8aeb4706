//! A way to the server that is cut, once, at a command.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::stage::{Fault, Server};

/// Where the connection is cut, at the first command that holds these bytes.
#[derive(Clone, Copy)]
pub enum Cut {
    /// The command does not arrive.
    Before(&'static str),
    /// The command is done; its answer does not arrive.
    After(&'static str),
}

/// Passes everything on between clients and the server until the cut, and everything again after it,
/// on new connections.
pub struct Wire {
    address: SocketAddr,
    listening: JoinHandle<()>,
    whole: Arc<AtomicBool>,
}

impl Wire {
    pub async fn to(server: &Server, cut: Cut) -> Result<Self, Fault> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let whole = Arc::new(AtomicBool::new(true));
        let (port, uncut) = (server.port(), Arc::clone(&whole));
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, port, cut, Arc::clone(&uncut)));
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

/// Ends, and closes both sides with it, when either side does, or at the cut.
async fn pass(
    mut client: TcpStream,
    port: u16,
    cut: Cut,
    whole: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    // Else the last bytes of a command wait for a confirmation of those before.
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut asked, mut answered) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            length = client.read(&mut asked) => {
                let command = &asked[..length?];
                let (Cut::Before(word) | Cut::After(word)) = cut;
                let is_it = command.windows(word.len()).any(|part| part == word.as_bytes());
                if is_it && whole.swap(false, Ordering::SeqCst) {
                    if matches!(cut, Cut::After(_)) {
                        server.write_all(command).await?;
                        // Done, since it is answered.
                        server.readable().await?;
                    }
                    return Ok(());
                }
                if command.is_empty() {
                    return Ok(());
                }
                server.write_all(command).await?;
            }
            length = server.read(&mut answered) => {
                let answer = &answered[..length?];
                if answer.is_empty() {
                    return Ok(());
                }
                client.write_all(answer).await?;
            }
        }
    }
}
