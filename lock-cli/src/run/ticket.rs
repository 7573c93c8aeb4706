//! Reads the ticket of `--resume -`.

use std::io;
use std::os::fd::AsFd;

use lock_core::LockTicket;
use tokio::sync::oneshot;

use crate::exit::Exit;
use crate::failure::Failure;

/// Longer than any ticket.
const LONGEST: usize = 4_096;

/// Reads the first line of stdin, and leaves the rest to CMD.
///
/// # Cancel safety
/// Dropping the future leaves a thread that reads on, which ends with the process.
pub(super) async fn read() -> Result<LockTicket, Failure> {
    let (sender, receiver) = oneshot::channel();
    // Not a task of the runtime: its end would wait for the read.
    std::thread::spawn(move || {
        // The receiver is gone after a signal.
        let _ = sender.send(read_line(io::stdin()));
    });
    let line = match receiver.await {
        Ok(Ok(line)) => line,
        Ok(Err(error)) => {
            return Err(Failure::internal(
                "cannot read the ticket from stdin",
                &error,
            ));
        }
        Err(error) => {
            return Err(Failure::internal(
                "cannot read the ticket from stdin",
                &error,
            ));
        }
    };
    let text = String::from_utf8_lossy(&line);
    text.trim().parse().map_err(|error| {
        let text = format!("invalid --resume: {error}");
        Failure::new(Exit::Usage, "invalid-ticket", text)
    })
}

/// Reads up to the end of the line, byte by byte, because a buffer would keep what CMD is to read.
fn read_line(input: impl AsFd) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LONGEST {
        match rustix::io::read(&input, &mut byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn first_line_is_read_and_the_rest_stays() {
        let (mut sender, mut receiver) = UnixStream::pair().unwrap();
        sender.write_all(b"lt1.00\nfor the command").unwrap();
        drop(sender);
        assert_eq!(read_line(&receiver).unwrap(), b"lt1.00");
        let mut rest = String::new();
        receiver.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "for the command");
        assert_eq!(read_line(&receiver).unwrap(), b"");
    }

    #[test]
    fn line_without_an_end_is_cut() {
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || sender.write_all(&[b'x'; 2 * LONGEST]));
        assert_eq!(read_line(&receiver).unwrap().len(), LONGEST);
        drop(receiver);
        let _ = writer.join().unwrap();
    }
}
