//! The recorded events and their file format: one JSON object in each line.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rustix::time::ClockId;
use serde_json::{Map, Value, json};

/// A moment, in nanoseconds of the machine's boot clock.
pub type Nanos = u64;

/// Returns the current moment on the clock of all records.
pub fn now() -> Nanos {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("the machine was booted");
    let nanos = u64::try_from(now.tv_nsec).expect("a part of a second");
    seconds * 1_000_000_000 + nanos
}

/// Converts a duration to a difference of moments.
pub fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).expect("the duration fits in 64 bits")
}

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Acquires the lock; its `ok` begins a held lock.
    Acquire,
    /// Renews a held lock.
    Renew,
    /// Releases a held lock.
    Release,
    /// Reads the protected resource, and writes back the value plus one.
    Write,
    /// Receives the notification that a held lock is lost.
    Lost,
}

/// The stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It begins. Stamped before anything else happens.
    Invoke,
    /// It succeeded. Stamped after everything else.
    Ok,
    /// It certainly had no effect.
    Fail,
    /// It is not known whether it had, or will have, an effect.
    Info,
    /// Not a stage: a record of the time until which a held lock is valid.
    Seen,
}

const CALLS: [(Call, &str); 5] = [
    (Call::Acquire, "acquire"),
    (Call::Renew, "renew"),
    (Call::Release, "release"),
    (Call::Write, "write"),
    (Call::Lost, "lost"),
];

const KINDS: [(Kind, &str); 5] = [
    (Kind::Invoke, "invoke"),
    (Kind::Ok, "ok"),
    (Kind::Fail, "fail"),
    (Kind::Info, "info"),
    (Kind::Seen, "seen"),
];

impl Call {
    /// All operations.
    pub const ALL: [Self; 5] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Write,
        Self::Lost,
    ];

    /// Returns the name used in files.
    pub fn name(self) -> &'static str {
        let found = CALLS.iter().find(|(call, _)| *call == self);
        found.expect("all calls are listed").1
    }
}

impl Kind {
    /// Returns the name used in files.
    pub fn name(self) -> &'static str {
        let found = KINDS.iter().find(|(kind, _)| *kind == self);
        found.expect("all kinds are listed").1
    }
}

/// One line of a client's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The moment of the event.
    pub at: Nanos,
    /// The process. A process that replaces a killed process has another number.
    pub worker: u32,
    /// The task within the process.
    pub task: u32,
    /// The number of the acquisition within the process.
    pub hold: u64,
    /// The operation.
    pub call: Call,
    /// The stage of the operation.
    pub kind: Kind,
    /// The lock's name.
    pub key: String,
    /// The fencing token of the held lock.
    pub token: Option<u64>,
    /// The earliest end of the validity of the held lock, as reported by the guard.
    pub until: Option<Nanos>,
    /// The limit of the call's duration.
    pub within: Option<Nanos>,
    /// A note for human readers.
    pub note: Option<String>,
}

impl Event {
    /// Returns the event as a line with its line end.
    pub fn to_line(&self) -> String {
        let mut map = Map::new();
        map.insert("t".into(), self.at.into());
        map.insert("w".into(), self.worker.into());
        map.insert("k".into(), self.task.into());
        map.insert("h".into(), self.hold.into());
        map.insert("f".into(), self.call.name().into());
        map.insert("e".into(), self.kind.name().into());
        map.insert("key".into(), self.key.as_str().into());
        let mut number = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                map.insert(name.into(), value.into());
            }
        };
        number("token", self.token);
        number("until", self.until);
        number("within", self.within);
        if let Some(note) = &self.note {
            map.insert("note".into(), note.as_str().into());
        }
        format!("{}\n", Value::Object(map))
    }

    fn from_value(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let small = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let (call, kind) = (text("f")?, text("e")?);
        Some(Self {
            at: number("t")?,
            worker: small("w")?,
            task: small("k")?,
            hold: number("h")?,
            call: CALLS.iter().find(|(_, name)| *name == call)?.0,
            kind: KINDS.iter().find(|(_, name)| *name == kind)?.0,
            key: text("key")?.to_owned(),
            token: number("token"),
            until: number("until"),
            within: number("within"),
            note: text("note").map(ToOwned::to_owned),
        })
    }
}

/// A period in which a process, or all tasks of its runtime, did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The process.
    pub worker: u32,
    /// The last sign of life before the stall.
    pub from: Nanos,
    /// The first sign of life after the stall.
    pub to: Nanos,
}

impl Stall {
    /// Returns the stall as a line with its line end.
    pub fn to_line(&self) -> String {
        let line = json!({ "w": self.worker, "stalled": self.from, "until": self.to });
        format!("{line}\n")
    }
}

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// An event of a client.
    Event(Event),
    /// A stall that the process's canary observed.
    Stall(Stall),
}

impl Line {
    /// Parses a line. Returns `None` for an incomplete line, as a killed process leaves it.
    pub fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        if let Some(from) = number("stalled") {
            return Some(Self::Stall(Stall {
                worker: u32::try_from(number("w")?).ok()?,
                from,
                to: number("until")?,
            }));
        }
        Event::from_value(&value).map(Self::Event)
    }
}

/// Writes a record with one system call for each line, so that a kill loses no written line.
#[derive(Debug)]
pub struct Recorder(File);

impl Recorder {
    /// Opens a file and appends to it.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened.
    pub fn to(file: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(file)?;
        Ok(Self(file))
    }

    /// Writes one line.
    pub fn write(&self, line: &str) {
        (&self.0)
            .write_all(line.as_bytes())
            .expect("the record can be written");
    }
}
