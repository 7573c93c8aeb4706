//! What is recorded, and how it stands in a file: one JSON object in each line.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rustix::time::ClockId;
use serde_json::{Map, Value, json};

/// A moment, in nanoseconds of the machine's boot clock.
pub type Nanos = u64;

/// Now, on the clock of all records.
pub fn now() -> Nanos {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("the machine was booted");
    let nanos = u64::try_from(now.tv_nsec).expect("a part of a second");
    seconds * 1_000_000_000 + nanos
}

/// A duration as a difference of moments.
pub fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).expect("less than ages")
}

/// What a client did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Asked for the lock; its ok begins a hold.
    Acquire,
    /// Asked for an extension of a hold.
    Renew,
    /// Gave a hold up.
    Release,
    /// Read the protected resource, and wrote back what it read and one.
    Write,
    /// Was notified of the loss of a held lock.
    Lost,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It begins. Stamped before anything else happens.
    Invoke,
    /// It happened. Stamped after everything else.
    Ok,
    /// It certainly did not happen.
    Fail,
    /// Whether it happened, or will happen, is not known.
    Info,
    /// Not a step, but a look at a hold: until when it is valid.
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
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Write,
        Self::Lost,
    ];

    /// As it stands in a file.
    pub fn name(self) -> &'static str {
        let found = CALLS.iter().find(|(call, _)| *call == self);
        found.expect("all calls are listed").1
    }
}

impl Kind {
    /// As it stands in a file.
    pub fn name(self) -> &'static str {
        let found = KINDS.iter().find(|(kind, _)| *kind == self);
        found.expect("all kinds are listed").1
    }
}

/// One line of a client's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Nanos,
    /// Which process. A process that takes the place of a killed one has another number.
    pub worker: u32,
    /// Which of its tasks.
    pub task: u32,
    /// Which acquisition of this process it belongs to.
    pub hold: u64,
    /// What.
    pub call: Call,
    /// How far.
    pub kind: Kind,
    /// The lock's name.
    pub key: String,
    /// The token of the hold.
    pub token: Option<u64>,
    /// At least until when the hold is valid, as the guard said.
    pub until: Option<Nanos>,
    /// How long the call may take.
    pub within: Option<Nanos>,
    /// For people.
    pub note: Option<String>,
}

impl Event {
    /// As a line, with its end.
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

/// A time in which a process, or all tasks of its runtime, did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Which process.
    pub worker: u32,
    /// The last sign of life before.
    pub from: Nanos,
    /// The first one after.
    pub to: Nanos,
}

impl Stall {
    /// As a line, with its end.
    pub fn to_line(&self) -> String {
        let line = json!({ "w": self.worker, "stalled": self.from, "until": self.to });
        format!("{line}\n")
    }
}

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Of what a client did.
    Event(Event),
    /// Of what its canary saw.
    Stall(Stall),
}

impl Line {
    /// Reads a line back. `None` when it is not whole, as a kill leaves the last one.
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

/// Writes a record, one system call for each line, so that a kill loses none that was written.
#[derive(Debug)]
pub struct Recorder(File);

impl Recorder {
    /// Records to a file, behind what is there.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
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
