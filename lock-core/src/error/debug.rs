//! How errors look in `{:?}`: in one line, with the text for people. `main` prints errors in this form.

use std::fmt::{self, Debug};

use super::{BackendError, LockError, ShutdownIncomplete};
use lock_protocol::error_line::write_line;

/// Implements `Debug` for the variants of [`LockError`] that have named fields, or none.
macro_rules! debug {
    ($($variant:ident { $($field:ident),* },)*) => {
        impl Debug for LockError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant { $($field),* } if f.alternate() => f
                        .debug_struct(stringify!($variant))
                        $(.field(stringify!($field), $field))*
                        .finish(),)*
                    $(Self::$variant { .. } => write_line(f, stringify!($variant), self),)*
                    Self::Backend(error) if f.alternate() => {
                        f.debug_tuple("Backend").field(error).finish()
                    }
                    Self::Backend(error) => {
                        write_line(f, format_args!("Backend({:?})", error.kind()), self)
                    }
                }
            }
        }
    };
}

debug! {
    Contended { key, holder, requested },
    Timeout { key, waited, holder, requested, position },
    Lost { key, reason },
    WouldDeadlock { key },
    ForeignKey { key, found, advice },
    InvalidDialect { dialect, reason },
    InvalidName { name, reason },
    InvalidTtl { ttl, setting },
    InvalidSetting { setting, value, advice },
    InvalidOverride { template, reason },
    InvalidRenewal { every },
    InvalidMaxHold { longest },
    InvalidMinHold { shortest },
    InvalidWait { wait },
    InvalidKind { kind, reason },
    NotConfigured {},
    NoRuntime {},
    AlreadyInstalled {},
    ShuttingDown {},
    Forked {},
    NoQuorum { granted, needed, servers },
}

impl Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            self.fmt_fields(f)
        } else {
            write_line(f, format_args!("{:?}", self.kind()), self)
        }
    }
}

impl Debug for ShutdownIncomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { open, held } = self;
        if f.alternate() {
            let mut fields = f.debug_struct("ShutdownIncomplete");
            fields.field("open", open).field("held", held).finish()
        } else {
            write_line(f, "ShutdownIncomplete", self)
        }
    }
}
