//! `lockctl watch`: follows locks. On a terminal it redraws a table; elsewhere it writes a line for each
//! change.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use crossterm::{cursor, queue, terminal};
use lock_core::LockManager;
use lock_core::admin::{LockInfo, LockStatus};
use lock_core::observe::Observer;
use serde::Serialize;

use crate::args::{GlobalArgs, ListArgs, WatchArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::Page;
use crate::text::{human, rfc3339};
use crate::view::{self, LockRecord};
use crate::{list, table};

/// The most locks that are followed.
const LIMIT: usize = 1_000;

/// The longest interval of an observer.
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// The size of a terminal that does not tell it.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// A change of a lock, with the fields of the schema `lockctl.change/1`.
#[derive(Serialize)]
struct ChangeRecord<'a> {
    schema: &'static str,
    time: String,
    change: &'static str,
    lock: LockRecord<'a>,
}

/// Follows the locks until a signal comes.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &WatchArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let locks = connect::manager(global, None, output).await?;
    let pattern = args.pattern.as_str();
    let observer = (!pattern.contains(['*', '?', '[', '\\'])).then(|| {
        let interval = args.interval.min(LONGEST_INTERVAL);
        locks.observe(pattern).interval(interval)
    });
    let watch = Watch {
        locks,
        observer,
        global,
        args,
        output,
    };
    let is_screen = io::stdout().is_terminal() && !output.is_json();
    let follow = async {
        if is_screen {
            watch.redraw().await
        } else {
            watch.follow().await
        }
    };
    tokio::select! {
        biased;
        signal = end() => Ok(Exit::Signal(signal)),
        ended = follow => ended,
    }
}

/// Waits for a signal that ends the program.
#[cfg(unix)]
async fn end() -> u8 {
    use tokio::signal::unix::{SignalKind, signal};

    let wait = async |kind: SignalKind| match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => 2,
        () = wait(SignalKind::terminate()) => 15,
        () = wait(SignalKind::hangup()) => 1,
    }
}

#[cfg(not(unix))]
async fn end() -> u8 {
    // Without a handler, the system ends the program.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
    2
}

/// The locks that are locked now.
struct Read {
    locks: Vec<LockInfo>,
    /// Says which nodes could not be read.
    incomplete: Option<Failure>,
}

struct Watch<'a> {
    locks: LockManager,
    /// For a name, which needs no search: a search looks at all keys of the server.
    observer: Option<Observer>,
    global: &'a GlobalArgs,
    args: &'a WatchArgs,
    output: &'a Output,
}

impl Watch<'_> {
    async fn read(&self) -> Result<Read, Failure> {
        if let Some(observer) = &self.observer {
            let seen = observer.current().await;
            let lock = seen.map_err(|error| connect::failure(self.global, &error))?;
            let is_free = matches!(lock.status, LockStatus::Free);
            return Ok(Read {
                locks: if is_free { Vec::new() } else { vec![lock] },
                incomplete: None,
            });
        }
        let args = ListArgs {
            pattern: self.args.pattern.clone(),
            limit: LIMIT,
            all: false,
            older_than: None,
        };
        let found = list::matching(&self.locks, &args, self.global).await?;
        Ok(Read {
            incomplete: found.incomplete(),
            locks: found.locks,
        })
    }

    async fn pause(&self) {
        tokio::time::sleep(self.args.interval).await;
    }

    /// Writes a line for each change.
    async fn follow(&self) -> Result<Exit, Failure> {
        let mut known: BTreeMap<String, LockInfo> = BTreeMap::new();
        let mut is_down = false;
        loop {
            match self.read().await {
                Ok(Read { locks, incomplete }) => {
                    let locks = locks.into_iter().map(|lock| (lock.name.to_string(), lock));
                    let mut locks: BTreeMap<_, _> = locks.collect();
                    let was_down = std::mem::replace(&mut is_down, incomplete.is_some());
                    if let Some(failure) = incomplete {
                        if !was_down {
                            self.output.note(failure.text.as_str());
                        }
                        // A lock that the list lacks is not free.
                        for (name, lock) in &known {
                            locks.entry(name.clone()).or_insert_with(|| lock.clone());
                        }
                    }
                    self.changes(&known, &locks)?;
                    known = locks;
                }
                Err(failure) if !passes(&failure) => return Err(failure),
                Err(failure) => {
                    if !std::mem::replace(&mut is_down, true) {
                        self.output.note(failure.text.as_str());
                    }
                }
            }
            if is_closed() {
                return Ok(Exit::Success);
            }
            self.pause().await;
        }
    }

    fn changes(
        &self,
        before: &BTreeMap<String, LockInfo>,
        after: &BTreeMap<String, LockInfo>,
    ) -> Result<(), Failure> {
        for (name, lock) in before {
            if !after.contains_key(name) {
                let mut lock = lock.clone();
                lock.status = LockStatus::Free;
                lock.waiters_total = 0;
                self.change(&lock)?;
            }
        }
        for (name, lock) in after {
            if before.get(name).is_none_or(|before| differs(before, lock)) {
                self.change(lock)?;
            }
        }
        Ok(())
    }

    fn change(&self, lock: &LockInfo) -> Result<(), Failure> {
        let time = rfc3339(SystemTime::now());
        let change = view::state(lock);
        if self.output.is_json() {
            let record = ChangeRecord {
                schema: "lockctl.change/1",
                time,
                change,
                lock: LockRecord::in_list(lock),
            };
            return Ok(self.output.record(&record)?);
        }
        let [name, holder, _, _, waiting] = view::row(lock);
        let text = match &lock.status {
            LockStatus::Free => String::new(),
            _ => format!("  {holder}  waiting {waiting}"),
        };
        let mut page = Page::default();
        let line = format!("{time}  {change:<7}  {name}{text}");
        Ok(self.output.print(page.line(&line))?)
    }

    /// Redraws a table.
    async fn redraw(&self) -> Result<Exit, Failure> {
        let screen = Screen::open()?;
        loop {
            let read = self.read().await;
            let mut page = Page::default();
            let head = format!(
                "{}  every {}, Ctrl-C ends  {}",
                self.args.pattern,
                human(self.args.interval),
                rfc3339(SystemTime::now()),
            );
            page.line(&head).end_line();
            match read {
                Ok(Read { locks, incomplete }) => {
                    let rows: Vec<_> = locks.iter().map(view::row).collect();
                    // First, because the end of a long table isn't on the screen.
                    if let Some(failure) = incomplete {
                        page.line(failure.text.as_str()).end_line();
                    }
                    page.append(&table::write(view::COLUMNS, &rows));
                }
                Err(failure) if passes(&failure) => {
                    page.line(failure.text.as_str());
                }
                Err(failure) => return Err(failure),
            }
            screen.draw(&page, self.output)?;
            self.pause().await;
        }
    }
}

/// Whether it may work at the next attempt.
fn passes(failure: &Failure) -> bool {
    failure.exit == Exit::Unavailable
}

/// Whether people want to know of the difference. The rest of the lease changes all the time.
fn differs(before: &LockInfo, after: &LockInfo) -> bool {
    let token = |lock: &LockInfo| {
        let holder = lock.holder();
        // A reader that joins or leaves a group changes neither token nor label.
        holder.map(|holder| (holder.token, holder.label.clone(), lock.holders_total))
    };
    view::state(before) != view::state(after)
        || token(before) != token(after)
        || before.waiters_total != after.waiters_total
}

/// A terminal with a hidden cursor.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        let mut out = io::stdout();
        queue!(out, cursor::Hide, terminal::Clear(terminal::ClearType::All))?;
        out.flush()?;
        Ok(Self)
    }

    /// Draws from the top, and clears the rest, so that nothing flickers.
    fn draw(&self, page: &Page, output: &Output) -> io::Result<()> {
        let Self = self;
        let size = terminal::size().ok();
        // Some terminals tell a size of zero.
        let size = size.filter(|(columns, lines)| *columns > 0 && *lines > 0);
        let (columns, lines) = size.unwrap_or(USUAL_SIZE);
        let mut out = io::stdout();
        queue!(out, cursor::MoveTo(0, 0))?;
        out.flush()?;
        // The last line stays empty: a line feed there would scroll.
        let lines = usize::from(lines.saturating_sub(1));
        for line in page.cut(usize::from(columns), lines) {
            output.print(&line)?;
            queue!(out, terminal::Clear(terminal::ClearType::UntilNewLine))?;
            out.write_all(b"\r\n")?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout();
        // A terminal that is gone needs no cursor.
        let _ = queue!(out, cursor::Show).and_then(|()| out.flush());
    }
}

/// Whether the reader of stdout has ended. A write would tell it too, but `watch` may have nothing to write
/// for a long time.
#[cfg(unix)]
fn is_closed() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let stdout = io::stdout();
    // `poll` reports errors in any case.
    let mut events = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut events, Some(&at_once)).is_ok() && events[0].revents().contains(PollFlags::ERR)
}

#[cfg(not(unix))]
fn is_closed() -> bool {
    false
}
