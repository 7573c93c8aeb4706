//! The signals that this process gets.

use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::processes;

/// The signals that go to the command. Those before the first user signal end the wait.
pub(super) const FORWARDED: [Signal; 7] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// What happened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A child ended or stopped.
    ChildChanged,
    /// The user wants to stop this job, as by Ctrl-Z.
    Suspend,
    /// A signal for the command.
    Signal(Signal),
}

/// The handlers of the signals.
pub(super) struct Signals {
    forwarded: Vec<(Signal, Stream)>,
    children: Stream,
    suspend: Option<Stream>,
}

impl Signals {
    /// Installs the handlers. A signal that the parent ignores stays ignored, also for the command:
    /// so `nohup` works, and a shell protects its background jobs from Ctrl-C.
    pub(super) fn install() -> io::Result<Self> {
        let ignored = processes::ignored_signals();
        let listen = |wanted: Signal| signal(SignalKind::from_raw(wanted.as_raw()));
        let heard = |wanted: &Signal| !ignored.contains(*wanted);
        let forwarded = FORWARDED.into_iter().filter(heard);
        let suspend = heard(&Signal::TSTP).then_some(Signal::TSTP);
        Ok(Self {
            forwarded: forwarded
                .map(|wanted| Ok((wanted, listen(wanted)?)))
                .collect::<io::Result<_>>()?,
            children: signal(SignalKind::child())?,
            suspend: suspend.map(listen).transpose()?,
        })
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> Event {
        std::future::poll_fn(|cx| {
            // A command that has ended gets no more signals.
            if self.children.poll_recv(cx).is_ready() {
                return Poll::Ready(Event::ChildChanged);
            }
            for (signal, stream) in &mut self.forwarded {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(Event::Signal(*signal));
                }
            }
            let suspend = self.suspend.as_mut();
            match suspend.map(|stream| stream.poll_recv(cx)) {
                Some(Poll::Ready(_)) => Poll::Ready(Event::Suspend),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for a signal that ends the wait for the lock.
    pub(super) async fn end_of_wait(&mut self) -> Signal {
        loop {
            match self.next().await {
                Event::Signal(Signal::USR1 | Signal::USR2 | Signal::WINCH)
                | Event::ChildChanged => {}
                Event::Signal(signal) => return signal,
                Event::Suspend => processes::stop_this_process(),
            }
        }
    }
}
