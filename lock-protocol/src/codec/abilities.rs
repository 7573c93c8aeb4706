//! What the server of a connection supports, as far as the connection knows.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::dialect::ReleaseMethod;
use crate::op::{Refusal, RefusalKind};
use crate::resp::{CommandBuf, Reply};
use crate::scripts::ScriptForm;

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
pub enum DeleteCommand {
    /// `DELEX key IFEQ value`, of Redis.
    Delex,
    /// `DELIFEQ key value`, of Valkey.
    Delifeq,
}

/// How a connection checks the owner when it releases and renews a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerCheck {
    Command(DeleteCommand),
    Script,
    Transaction,
}

/// What to ask the server before the method is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenQuestion {
    /// Which of the commands it has.
    Commands,
    /// Whether the user may run scripts.
    Scripts,
    /// Nothing: the server lacks the commands, and the method needs them.
    Unsupported,
}

impl OpenQuestion {
    /// Writes the command that asks.
    pub fn encode(self, out: &mut CommandBuf<'_>) {
        match self {
            Self::Commands => {
                out.command("COMMAND")
                    .arg("INFO")
                    .arg("DELEX")
                    .arg("DELIFEQ");
            }
            // It fails, and its error shows whether the user may run scripts: no script has this hash.
            Self::Scripts | Self::Unsupported => {
                out.command("EVALSHA").arg(&*"0".repeat(40)).arg(0_u32);
            }
        }
    }
}

/// Set of flags in one byte: each connection has one.
#[derive(Debug, Default)]
pub struct Abilities(AtomicU8);

impl Abilities {
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn has(&self, flag: u8) -> bool {
        self.0.load(Ordering::Relaxed) & flag != 0
    }

    fn add(&self, flags: u8) {
        self.0.fetch_or(flags, Ordering::Relaxed);
    }

    /// Records the reply to a question.
    ///
    /// # Errors
    /// The server's error says nothing about the question.
    pub fn record(&self, question: OpenQuestion, reply: Reply<'_>) -> Result<(), Refusal> {
        match (question, reply.error().map(Refusal::of)) {
            // A server that refuses the question, in whatever words, has none of the commands.
            (OpenQuestion::Commands, Some(refusal))
                if refusal.is_of_command() || refusal.kind == RefusalKind::Other =>
            {
                self.know_commands(false, false);
            }
            (OpenQuestion::Commands, None) => {
                let mut infos = reply.items();
                let mut is_known = || {
                    let info = infos.as_mut().and_then(Iterator::next);
                    let fields = info.and_then(Reply::items);
                    fields.is_some_and(|mut fields| fields.next().is_some())
                };
                let (has_delex, has_delifeq) = (is_known(), is_known());
                self.know_commands(has_delex, has_delifeq);
            }
            (OpenQuestion::Scripts, Some(refusal)) if refusal.is_of_command() => {
                self.know_scripts(false);
            }
            (OpenQuestion::Scripts, Some(refusal)) if !refusal.is_unknown_script() => {
                return Err(refusal);
            }
            (OpenQuestion::Scripts, _) => self.know_scripts(true),
            (OpenQuestion::Unsupported, None) => {}
            (_, Some(refusal)) => return Err(refusal),
        }
        Ok(())
    }

    /// Records which commands the server has.
    pub fn know_commands(&self, has_delex: bool, has_delifeq: bool) {
        let delex = if has_delex { HAS_DELEX } else { 0 };
        let delifeq = if has_delifeq { HAS_DELIFEQ } else { 0 };
        self.add(COMMANDS_KNOWN | delex | delifeq);
    }

    /// Records whether the user may run scripts.
    pub fn know_scripts(&self, are_allowed: bool) {
        self.add(if are_allowed {
            SCRIPTS_KNOWN
        } else {
            SCRIPTS_KNOWN | SCRIPTS_DENIED
        });
    }

    /// Records that the server accepts the scripts only in their plain form.
    pub fn use_plain_scripts(&self) {
        self.add(PLAIN_SCRIPTS);
    }

    #[inline]
    pub fn script_form(&self) -> ScriptForm {
        if self.has(PLAIN_SCRIPTS) {
            ScriptForm::Plain
        } else {
            ScriptForm::Flagged
        }
    }

    /// Records that the server refused a command that checks an owner, although it has it.
    pub fn refuse_commands(&self) {
        self.add(COMMANDS_REFUSED);
    }

    /// Returns how this method checks the owner, or what to ask before.
    pub fn owner_check(&self, release: ReleaseMethod) -> Result<OwnerCheck, OpenQuestion> {
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
        if release == ReleaseMethod::Conditional {
            return Err(OpenQuestion::Unsupported);
        }
        self.without_commands()
    }

    /// Returns how the owner is checked without commands of the server, or what to ask before.
    pub fn without_commands(&self) -> Result<OwnerCheck, OpenQuestion> {
        if !self.has(SCRIPTS_KNOWN) {
            Err(OpenQuestion::Scripts)
        } else if self.has(SCRIPTS_DENIED) {
            Ok(OwnerCheck::Transaction)
        } else {
            Ok(OwnerCheck::Script)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Replies;

    fn record(abilities: &Abilities, question: OpenQuestion, reply: &str) -> Result<(), Refusal> {
        let reply = Replies::new(reply.as_bytes()).next().unwrap();
        abilities.record(question, reply)
    }

    fn commands(has: [bool; 2]) -> Abilities {
        let abilities = Abilities::default();
        let info = |has| {
            if has {
                "*1\r\n$5\r\ndelex\r\n"
            } else {
                "_\r\n"
            }
        };
        let reply = format!("*2\r\n{}{}", info(has[0]), info(has[1]));
        record(&abilities, OpenQuestion::Commands, &reply).unwrap();
        abilities
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
            for release in [ReleaseMethod::Conditional, ReleaseMethod::Auto] {
                let check = commands(has).owner_check(release);
                assert_eq!(check, Ok(OwnerCheck::Command(command)));
            }
        }
    }

    #[test]
    fn server_without_commands_is_asked_about_scripts() {
        let abilities = commands([false, false]);
        let conditional = abilities.owner_check(ReleaseMethod::Conditional);
        assert_eq!(conditional, Err(OpenQuestion::Unsupported));
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Err(OpenQuestion::Scripts));
        let denied = "-ERR unknown command 'EVALSHA', with args beginning with: '0'\r\n";
        record(&abilities, OpenQuestion::Scripts, denied).unwrap();
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Ok(OwnerCheck::Transaction));
    }

    #[test]
    fn refused_commands_are_not_tried_again() {
        let abilities = commands([true, false]);
        abilities.refuse_commands();
        let unknown = "-NOSCRIPT No matching script.\r\n";
        record(&abilities, OpenQuestion::Scripts, unknown).unwrap();
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Ok(OwnerCheck::Script));
        let conditional = abilities.owner_check(ReleaseMethod::Conditional);
        assert_eq!(conditional, Err(OpenQuestion::Unsupported));
    }

    #[test]
    fn unrelated_error_leaves_the_question_open() {
        let abilities = Abilities::default();
        let busy = "-LOADING the server is not ready\r\n";
        assert!(record(&abilities, OpenQuestion::Commands, busy).is_err());
        assert!(record(&abilities, OpenQuestion::Scripts, busy).is_err());
        let auto = abilities.owner_check(ReleaseMethod::Auto);
        assert_eq!(auto, Err(OpenQuestion::Commands));
    }

    #[test]
    fn refused_question_about_commands_means_none() {
        for refusal in [
            "-NOPERM no permissions to run the 'command|info' command\r\n",
            "-ERR the plan of this database does not include it\r\n",
        ] {
            let abilities = Abilities::default();
            record(&abilities, OpenQuestion::Commands, refusal).unwrap();
            let conditional = abilities.owner_check(ReleaseMethod::Conditional);
            assert_eq!(conditional, Err(OpenQuestion::Unsupported), "{refusal}");
        }
    }
}
