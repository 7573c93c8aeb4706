//! The file format of a history: one JSON object in each line.

use lock_protocol::kind::Kind as LockKind;
use serde_json::{Map, Value};

use crate::event::{Access, AccessKind, Call, Event, Kind, Nanos, Stall, Validity};

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Line {
    /// An event of a client.
    Event(Event),
    /// An access to a resource.
    Access(Access),
    /// A stall of a process.
    Stall(Stall),
    /// The regular end of the record of one process. Without it the process was killed.
    End {
        /// The process.
        process: u32,
        /// The moment of the end.
        at: Nanos,
    },
}

impl Line {
    /// Parses a line. Returns `None` for an incomplete line, as a killed process leaves it, and for
    /// a line of another format.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let fields = Fields(&value);
        if let Some(from) = fields.number("stalled") {
            let to = fields.number("until")?;
            let process = fields.small("process")?;
            return Some(Self::Stall(Stall { process, from, to }));
        }
        if let Some(at) = fields.number("ended") {
            let process = fields.small("process")?;
            return Some(Self::End { process, at });
        }
        if value.get("access").is_some() {
            return fields.access().map(Self::Access);
        }
        fields.event().map(Self::Event)
    }

    /// Returns the line, with its line end.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        match self {
            Self::Event(event) => {
                set("at", event.at.into());
                set("process", event.process.into());
                set("task", event.task.into());
                set("acquisition", event.acquisition.into());
                set("call", event.call.as_str().into());
                set("kind", event.kind.as_str().into());
                set("key", (&*event.key).into());
                match event.valid_until {
                    Some(Validity::Until(end)) => set("valid_until", end.into()),
                    Some(Validity::Endless) => set("valid_until", ENDLESS.into()),
                    None => None,
                };
                for (name, number) in [("token", event.token), ("limit", event.limit)] {
                    if let Some(number) = number {
                        set(name, number.into());
                    }
                }
                if let Some(kind) = kind_text(event.lock_kind) {
                    set("lock_kind", kind.into());
                }
                if let Some(note) = &event.note {
                    set("note", (&**note).into());
                }
            }
            Self::Access(access) => {
                set("at", access.at.into());
                set("process", access.process.into());
                set("acquisition", access.acquisition.into());
                set("access", access_name(access.kind).into());
                set("key", (&*access.key).into());
                set("resource", access.resource.into());
                if let AccessKind::Write { value } = access.kind {
                    set("value", value.into());
                }
                if let Some(token) = access.token {
                    set("token", token.into());
                }
            }
            Self::Stall(stall) => {
                set("process", stall.process.into());
                set("stalled", stall.from.into());
                set("until", stall.to.into());
            }
            Self::End { process, at } => {
                set("process", (*process).into());
                set("ended", (*at).into());
            }
        }
        format!("{}\n", Value::Object(fields))
    }
}

/// The validity of a lock without an end.
const ENDLESS: &str = "endless";

const READ: &str = "read";
const WRITE: &str = "write";
const REFUSED_READ: &str = "refused-read";
const REFUSED_WRITE: &str = "refused-write";

fn access_name(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Read => READ,
        AccessKind::Write { .. } => WRITE,
        AccessKind::RefusedRead => REFUSED_READ,
        AccessKind::RefusedWrite => REFUSED_WRITE,
    }
}

/// Returns the text of the kind of a lock: `read`, or `OFxWEIGHT` for permits. An exclusive lock has
/// none.
fn kind_text(kind: LockKind) -> Option<String> {
    match kind {
        LockKind::Read => Some(READ.to_owned()),
        LockKind::Permits { of, weight } => Some(format!("{of}x{weight}")),
        _ => None,
    }
}

fn lock_kind(text: &str) -> Option<LockKind> {
    if text == READ {
        return Some(LockKind::Read);
    }
    let (of, weight) = text.split_once('x')?;
    let (of, weight) = (of.parse().ok()?, weight.parse().ok()?);
    Some(LockKind::Permits { of, weight })
}

fn validity(value: &Value) -> Option<Validity> {
    if value.as_str() == Some(ENDLESS) {
        return Some(Validity::Endless);
    }
    value.as_u64().map(Validity::Until)
}

struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    fn small(&self, name: &str) -> Option<u32> {
        u32::try_from(self.number(name)?).ok()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    fn event(&self) -> Option<Event> {
        Some(Event {
            at: self.number("at")?,
            process: self.small("process")?,
            task: self.small("task")?,
            acquisition: self.number("acquisition")?,
            call: Call::named(self.text("call")?)?,
            kind: Kind::named(self.text("kind")?)?,
            key: self.text("key")?.into(),
            token: self.number("token"),
            lock_kind: match self.text("lock_kind") {
                Some(text) => lock_kind(text)?,
                None => LockKind::Exclusive,
            },
            valid_until: match self.0.get("valid_until") {
                Some(value) => Some(validity(value)?),
                None => None,
            },
            limit: self.number("limit"),
            note: self.text("note").map(Into::into),
        })
    }

    fn access(&self) -> Option<Access> {
        let kind = match self.text("access")? {
            READ => AccessKind::Read,
            WRITE => AccessKind::Write {
                value: self.number("value")?,
            },
            REFUSED_READ => AccessKind::RefusedRead,
            REFUSED_WRITE => AccessKind::RefusedWrite,
            _ => return None,
        };
        Some(Access {
            at: self.number("at")?,
            key: self.text("key")?.into(),
            process: self.small("process")?,
            acquisition: self.number("acquisition")?,
            token: self.number("token"),
            resource: self.number("resource")?,
            kind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_parsed_back_and_a_partial_line_is_not() {
        let mut event = Event::granted(5, 1, 2, "a \"quoted\" key", Some(7), 9);
        event.note = Some("no \"reply\"".into());
        event.limit = Some(3);
        let access = |kind| Line::Access(Access::new(5, "k", 1, 2, None, kind));
        let lines = [
            Line::Event(event),
            Line::Event(Event::granted(5, 1, 2, "k", None, Validity::Endless)),
            Line::Event(Event::granted(5, 1, 2, "k", None, 9).lock_kind(LockKind::Read)),
            Line::Event(
                Event::granted(5, 1, 2, "k", None, 9)
                    .lock_kind(LockKind::Permits { of: 64, weight: 8 }),
            ),
            Line::Event(Event::new(1, 2, 3, "k", Call::Lost, Kind::Dropped)),
            access(AccessKind::Read),
            access(AccessKind::Write { value: 4 }),
            access(AccessKind::RefusedRead),
            access(AccessKind::RefusedWrite),
            Line::Stall(Stall::new(3, 5, 9)),
            Line::End { process: 3, at: 10 },
        ];
        for line in lines {
            let text = line.to_text();
            assert_eq!(Line::parse(&text[..text.len() - 3]), None);
            assert_eq!(Line::parse(&text), Some(line));
        }
        assert_eq!(Line::parse("{}"), None);
    }

    #[test]
    fn every_call_and_kind_has_its_own_name() {
        for call in Call::ALL {
            assert_eq!(Call::named(call.as_str()), Some(*call));
        }
        for kind in [
            Kind::Invoke,
            Kind::Ok,
            Kind::Fail,
            Kind::Info,
            Kind::Dropped,
            Kind::Seen,
        ] {
            assert_eq!(Kind::named(kind.as_str()), Some(kind));
        }
    }
}
