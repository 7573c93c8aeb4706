//! How errors look in `{:?}`: in one line, with the text for people. `main` prints errors in this form.

use std::borrow::Cow;
use std::fmt::{self, Debug};

use super::{BackendError, InvalidSetting, LockError, ShutdownIncomplete};
use lock_protocol::error_line::write_line;

/// Implements `Debug` for an error: its variants that have named fields, or none, and then its variants that hold
/// another error, with what their line names about it.
macro_rules! debug {
    (
        $error:ident { $($variant:ident { $($field:ident),* },)* }
        $($outer:ident($inner:ident) => $name:expr,)*
    ) => {
        impl Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant { $($field),* } if f.alternate() => f
                        .debug_struct(stringify!($variant))
                        $(.field(stringify!($field), $field))*
                        .finish(),)*
                    $(Self::$outer($inner) if f.alternate() => {
                        f.debug_tuple(stringify!($outer)).field($inner).finish()
                    })*
                    _ => write_line(f, self.variant(), self),
                }
            }
        }

        impl $error {
            /// The variant, as `{:?}` names it.
            fn variant(&self) -> Cow<'static, str> {
                match self {
                    $(Self::$variant { .. } => stringify!($variant).into(),)*
                    $(Self::$outer($inner) => format!(concat!(stringify!($outer), "({})"), $name).into(),)*
                }
            }
        }
    };
}

debug! {
    LockError {
        Contended { key, holder, requested },
        Done { key, since, by, free_in },
        Timeout { key, waited, holder, requested, position },
        QueueFull { key, position, holder, requested, pace },
        Lost { key, reason },
        TicketEnded { key, reason },
        WouldDeadlock { key },
        ForeignKey { key, found, advice },
        NotConfigured {},
        NoRuntime {},
        AlreadyInstalled {},
        ShuttingDown {},
        Forked {},
        NoQuorum { granted, needed, servers },
    }
    Invalid(setting) => setting.variant(),
    Backend(error) => format_args!("{:?}", error.kind()),
}

debug! {
    InvalidSetting {
        Dialect { dialect, reason },
        Name { name, reason },
        Ttl { ttl, setting },
        Renewal { every },
        MaxHold { longest },
        MinHold { shortest },
        OncePer { reason },
        Wait { wait },
        OutageWait { outage_wait },
        Kind { kind, reason },
        Override { template, reason },
        Ticket { reason },
        Manager { setting, value, advice },
    }
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
