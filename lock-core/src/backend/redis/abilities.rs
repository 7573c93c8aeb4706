//! What the server of a connection supports, as far as the connection knows.

use std::sync::atomic::{AtomicU8, Ordering};

use redis::{RedisError, Value};

use super::errors::{is_no_permission, is_unknown_command};
use super::scripts::ScriptForm;
use lock_protocol::dialect::ReleaseMethod;

/// The replies about the commands that check an owner are known.
const COMMANDS_KNOWN: u8 = 1;
const HAS_DELEX: u8 = 1 << 1;
const HAS_DELIFEQ: u8 = 1 << 2;
/// The server has refused one of these commands.
const COMMANDS_REFUSED: u8 = 1 << 3;
/// The reply about the right to run scripts is known.
const SCRIPTS_KNOWN: u8 = 1 << 4;
const SCRIPTS_DENIED: u8 = 1 << 5;
/// The server refuses the first line of the scripts.
const PLAIN_SCRIPTS: u8 = 1 << 6;

/// The command that deletes a key if it has this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeleteCommand {
    /// `DELEX key IFEQ value`, of Redis.
    Delex,
    /// `DELIFEQ key value`, of Valkey.
    Delifeq,
}

/// How a connection checks the owner when it releases and renews a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerCheck {
    Command(DeleteCommand),
    Script,
    Transaction,
}

/// What to ask the server before the method is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenQuestion {
    /// [`ask_commands`].
    Commands,
    /// [`ask_scripts`].
    Scripts,
    /// Nothing: the server lacks the commands, and the method needs them.
    Unsupported,
}

/// Set of flags in one byte: each connection has one.
#[derive(Debug, Default)]
pub(super) struct Abilities(AtomicU8);

/// Returns the command that asks which commands the server has.
pub(super) fn ask_commands() -> redis::Cmd {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg("DELEX").arg("DELIFEQ");
    command
}

/// Returns a command that fails, and whose error shows whether the user may run scripts.
pub(super) fn ask_scripts() -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    // The hash of no script.
    command.arg("0".repeat(40)).arg(0);
    command
}

impl Abilities {
    fn has(&self, flag: u8) -> bool {
        self.0.load(Ordering::Relaxed) & flag != 0
    }

    fn add(&self, flags: u8) {
        self.0.fetch_or(flags, Ordering::Relaxed);
    }

    /// Records the reply to [`ask_commands`]. A server that refuses the question has none of the
    /// commands. Returns the error if it says nothing about that.
    pub(super) fn record_commands(
        &self,
        reply: Result<Value, RedisError>,
    ) -> Result<(), RedisError> {
        let found = match reply {
            Ok(Value::Array(found)) => found,
            Ok(_) => Vec::new(),
            Err(error) if refuses_command(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        let is_known = |at: usize| match found.get(at) {
            Some(Value::Array(fields)) => !fields.is_empty(),
            _ => false,
        };
        let mut flags = COMMANDS_KNOWN;
        if is_known(0) {
            flags |= HAS_DELEX;
        }
        if is_known(1) {
            flags |= HAS_DELIFEQ;
        }
        self.add(flags);
        Ok(())
    }

    /// Records the reply to [`ask_scripts`]. Returns the error if it says nothing about that.
    pub(super) fn record_scripts(
        &self,
        reply: Result<Value, RedisError>,
    ) -> Result<(), RedisError> {
        let flags = match reply {
            Err(error) if refuses_command(&error) => SCRIPTS_KNOWN | SCRIPTS_DENIED,
            Err(error) if error.code() != Some("NOSCRIPT") => return Err(error),
            _ => SCRIPTS_KNOWN,
        };
        self.add(flags);
        Ok(())
    }

    /// Records that the server accepts the scripts only in their plain form.
    pub(super) fn use_plain_scripts(&self) {
        self.add(PLAIN_SCRIPTS);
    }

    pub(super) fn script_form(&self) -> ScriptForm {
        if self.has(PLAIN_SCRIPTS) {
            ScriptForm::Plain
        } else {
            ScriptForm::Flagged
        }
    }

    /// Records that the server refused a command that checks an owner, although it has it.
    pub(super) fn refuse_commands(&self) {
        self.add(COMMANDS_REFUSED);
    }

    /// Returns how this method checks the owner, or what to ask before.
    pub(super) fn owner_check(&self, release: ReleaseMethod) -> Result<OwnerCheck, OpenQuestion> {
        if release == ReleaseMethod::WatchMulti {
            return Ok(OwnerCheck::Transaction);
        }
        if !release.asks_server() {
            return Ok(OwnerCheck::Script);
        }
        if !self.has(COMMANDS_KNOWN) {
            return Err(OpenQuestion::Commands);
        }
        if !self.has(COMMANDS_REFUSED) {
            if self.has(HAS_DELEX) {
                return Ok(OwnerCheck::Command(DeleteCommand::Delex));
            }
            if self.has(HAS_DELIFEQ) {
                return Ok(OwnerCheck::Command(DeleteCommand::Delifeq));
            }
        }
        if release == ReleaseMethod::Native {
            return Err(OpenQuestion::Unsupported);
        }
        self.without_commands()
    }

    /// Returns how the owner is checked without commands of the server, or what to ask before.
    pub(super) fn without_commands(&self) -> Result<OwnerCheck, OpenQuestion> {
        if !self.has(SCRIPTS_KNOWN) {
            Err(OpenQuestion::Scripts)
        } else if self.has(SCRIPTS_DENIED) {
            Ok(OwnerCheck::Transaction)
        } else {
            Ok(OwnerCheck::Script)
        }
    }
}

/// Returns whether the server does not know a command or the form of its arguments, or the user may
/// not run it. Such a command had no effect, and has none later.
pub(super) fn refuses_command(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    is_no_permission(error)
        || is_unknown_command(error)
        || text.contains("syntax error")
        || text.contains("wrong number of arguments")
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, ServerErrorKind};

    use super::*;

    fn commands(has: [bool; 2]) -> Abilities {
        let abilities = Abilities::default();
        let info = |has| {
            if has {
                Value::Array(vec![Value::BulkString(b"delex".to_vec())])
            } else {
                Value::Nil
            }
        };
        let reply = Ok(Value::Array(has.map(info).to_vec()));
        abilities.record_commands(reply).unwrap();
        abilities
    }

    fn error(text: &str) -> RedisError {
        (
            ErrorKind::Server(ServerErrorKind::ResponseError),
            "ERR",
            text.to_owned(),
        )
            .into()
    }

    #[test]
    fn abilities_take_one_byte() {
        assert_eq!(size_of::<Abilities>(), 1);
    }

    #[test]
    fn server_commands_are_preferred() {
        for (has, command) in [
            ([true, false], DeleteCommand::Delex),
            ([false, true], DeleteCommand::Delifeq),
        ] {
            for release in [ReleaseMethod::Native, ReleaseMethod::Auto] {
                let check = commands(has).owner_check(release);
                assert_eq!(check, Ok(OwnerCheck::Command(command)));
            }
        }
    }

    #[test]
    fn server_without_commands_is_asked_about_scripts() {
        let abilities = commands([false, false]);
        let native = abilities.owner_check(ReleaseMethod::Native);
        assert_eq!(native, Err(OpenQuestion::Unsupported));
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Err(OpenQuestion::Scripts));
        let denied = error("unknown command 'EVALSHA', with args beginning with: '0'");
        abilities.record_scripts(Err(denied)).unwrap();
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Ok(OwnerCheck::Transaction));
    }

    #[test]
    fn refused_commands_are_not_tried_again() {
        let abilities = commands([true, false]);
        abilities.refuse_commands();
        abilities.record_scripts(Ok(Value::Nil)).unwrap();
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Ok(OwnerCheck::Script));
        let native = abilities.owner_check(ReleaseMethod::Native);
        assert_eq!(native, Err(OpenQuestion::Unsupported));
    }

    #[test]
    fn unrelated_error_leaves_the_question_open() {
        let abilities = Abilities::default();
        let busy = || Err(error("the server is not ready"));
        assert!(abilities.record_commands(busy()).is_err());
        assert!(abilities.record_scripts(busy()).is_err());
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Err(OpenQuestion::Commands));
    }
}
