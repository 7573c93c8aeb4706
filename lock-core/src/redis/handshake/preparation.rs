//! Prepares a new connection for its dialect: loads scripts, and finds out what the server can do.

use crate::error::LockError;
use crate::error::texts::{no_owner_commands, text_of};
use crate::redis::dial::Stream;
use crate::redis::errors::connect_error;
use crate::redis::login;
use crate::redis::node::Node;
use crate::telemetry::{LockEvent, Reporter};
use lock_protocol::codec::abilities::{Abilities, OpenQuestion, OwnerCheck};
use lock_protocol::codec::accepted;
use lock_protocol::dialect::{Dialect, ReleaseMethod};
use lock_protocol::op::{Refusal, RefusalKind};
use lock_protocol::resp::{CommandBuf, Replies, Reply};
use lock_protocol::scripts::{self, Script, ScriptForm};

/// The dialect whose scripts `ReleaseMethod::Auto` needs when it uses scripts.
const SCRIPTED: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};

/// What a new connection needs before its first command.
pub(super) struct Preparation<'a> {
    pub(super) node: &'a Node,
    pub(super) reporter: &'a Reporter,
    pub(super) scripts: &'a [&'static Script],
    /// `Conditional` or `Auto`, if it has to find out which commands check the owner.
    pub(super) release: Option<ReleaseMethod>,
}

impl Preparation<'_> {
    /// Writes the commands of the preparation.
    pub(super) fn write(&self, out: &mut CommandBuf<'_>) {
        write_scripts(self.scripts, ScriptForm::Flagged, out);
        if self.release.is_some() {
            OpenQuestion::Commands.encode(out);
        }
    }

    /// Reads the replies to these commands. Some servers and some dialects need further commands. The server's version
    /// runs scripts in `form`, unless the server has already loaded them in the other one.
    pub(super) async fn finish(
        &self,
        stream: &mut Stream,
        replies: &mut Replies<'_>,
        form: ScriptForm,
    ) -> Result<Abilities, LockError> {
        let abilities = Abilities::default();
        let refusal = first_refusal(&mut replies.take_part(self.scripts.len()));
        if form == ScriptForm::Plain && (refusal.is_some() || self.scripts.is_empty()) {
            abilities.use_plain_scripts();
        }
        if let Some(refusal) = refusal {
            self.load_plain(stream, self.scripts, &refusal, &abilities)
                .await?;
        }
        if let Some(release) = self.release {
            let commands = replies.next();
            self.choose_owner_check(stream, release, commands, &abilities)
                .await?;
        }
        Ok(abilities)
    }

    /// Loads the scripts without their first line, if the server refused them for it. If it does not
    /// load them, each is then sent with its text once. `refusal` is the reply to the scripts with their
    /// first line.
    async fn load_plain(
        &self,
        stream: &mut Stream,
        scripts: &[&Script],
        refusal: &Refusal,
        abilities: &Abilities,
    ) -> Result<(), LockError> {
        let is_loaded = may_refuse_text(refusal)
            && self
                .load(stream, scripts, ScriptForm::Plain)
                .await?
                .is_none();
        if is_loaded {
            abilities.use_plain_scripts();
        }
        let effect = if is_loaded {
            "the lock server refuses the flags of the scripts, and they are loaded without \
             them: while its memory is full, a release that has to write may fail"
        } else {
            "the lock server does not load scripts, and each is sent with its text once"
        };
        // A server that refuses each command for a moment, such as while it loads its data, is not restricted.
        if is_loaded || !refusal.is_temporary() {
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &self.node.server,
                command: "SCRIPT LOAD",
                effect,
                error: &text_of(refusal),
            });
        }
        Ok(())
    }

    /// Loads scripts in one pipeline. Returns the first refusal.
    async fn load(
        &self,
        stream: &mut Stream,
        scripts: &[&Script],
        form: ScriptForm,
    ) -> Result<Option<Refusal>, LockError> {
        let write = |out: &mut CommandBuf<'_>| write_scripts(scripts, form, out);
        let replies = ask(self.node, stream, write).await?;
        Ok(first_refusal(&mut Replies::new(&replies)))
    }

    /// Decides how the connection checks an owner. `commands` is the reply about the commands that
    /// the server has.
    async fn choose_owner_check(
        &self,
        stream: &mut Stream,
        release: ReleaseMethod,
        commands: Option<Reply<'_>>,
        abilities: &Abilities,
    ) -> Result<(), LockError> {
        let failed = |refusal: Refusal| {
            let text = format!(
                "cannot read the commands of the lock server at {}",
                self.node.text()
            );
            LockError::refused_as(text, &refusal)
        };
        if let Err(refusal) = accepted(commands)
            && refusal.kind == RefusalKind::Permission
        {
            if release == ReleaseMethod::Conditional {
                return Err(failed(refusal));
            }
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &self.node.server,
                command: "COMMAND INFO",
                effect: "commands that check the owner are not used",
                error: &text_of(&refusal),
            });
        }
        let commands = commands.ok_or_else(|| failed(Refusal::unreadable()))?;
        let recorded = abilities.record(OpenQuestion::Commands, commands);
        recorded.map_err(failed)?;
        if let Err(question @ OpenQuestion::Scripts) = abilities.owner_check(release) {
            let replies = ask(self.node, stream, |out| question.encode(out)).await?;
            let reply = Replies::new(&replies).next();
            let reply = reply.ok_or_else(|| failed(Refusal::unreadable()))?;
            abilities.record(question, reply).map_err(failed)?;
        }
        match abilities.owner_check(release) {
            Ok(OwnerCheck::Script) => {
                let scripts = scripts::of(SCRIPTED, false);
                let refusal = self.load(stream, &scripts, abilities.script_form()).await?;
                if let Some(refusal) = refusal {
                    self.load_plain(stream, &scripts, &refusal, abilities)
                        .await?;
                }
                Ok(())
            }
            Ok(OwnerCheck::Command(_) | OwnerCheck::Transaction) => Ok(()),
            Err(_unsupported) => Err(no_owner_commands(&self.node.text())),
        }
    }
}

/// Sends questions at once, and returns the replies to them.
pub(super) async fn ask(
    node: &Node,
    stream: &mut Stream,
    write: impl FnOnce(&mut CommandBuf<'_>),
) -> Result<Vec<u8>, LockError> {
    let replies = login::ask(stream, write).await;
    replies.map_err(|error| connect_error(&node.text(), &error.into()))
}

/// Returns whether the server may have refused a script's text rather than the command or the user.
fn may_refuse_text(refusal: &Refusal) -> bool {
    let kinds = [RefusalKind::Other, RefusalKind::UnknownCommand];
    kinds.contains(&refusal.kind) && !refusal.is_unknown_command()
}

/// Writes the commands that load scripts.
fn write_scripts(scripts: &[&Script], form: ScriptForm, out: &mut CommandBuf<'_>) {
    for script in scripts {
        out.command("SCRIPT").arg("LOAD").arg(script.text(form));
    }
}

fn first_refusal(replies: &mut Replies<'_>) -> Option<Refusal> {
    replies.find_map(|reply| Some(Refusal::of(reply.error()?)))
}
