//! Prepares a new connection for its dialect: loads scripts, and finds out what the server can do.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::backend::redis::connector::Connector;
use crate::backend::redis::errors::{
    error_text, is_no_permission, is_of_command, is_transient, is_unknown_script, lock_error,
    may_refuse_text,
};
use crate::backend::redis::node::Node;
use crate::backend::redis::scripts::{self, Script, ScriptForm};
use crate::error::LockError;
use crate::error::texts::no_owner_commands;
use crate::telemetry::LockEvent;
use lock_protocol::codec::abilities::{Abilities, OpenQuestion, OwnerCheck};
use lock_protocol::dialect::{Dialect, ReleaseMethod};

/// The dialect whose scripts `ReleaseMethod::Auto` needs when it uses scripts.
const SCRIPTED: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};

impl Connector {
    /// Reads the replies to the preparation of the dialect: to its scripts, and to the question for commands.
    pub(super) async fn prepare(
        &self,
        node: &Node,
        handle: &mut MultiplexedConnection,
        replies: &mut impl Iterator<Item = Result<Value, RedisError>>,
    ) -> Result<Abilities, LockError> {
        let abilities = Abilities::default();
        let loaded = replies.by_ref().take(self.scripts.len());
        // All of them, so that the next reply is that of the next command.
        let refused = loaded
            .filter_map(Result::err)
            .fold(None, |first, error| first.or(Some(error)));
        if let Some(error) = refused {
            self.load_plain(node, handle, &self.scripts, error, &abilities)
                .await;
        }
        if let Some(release) = self.release {
            let commands = replies.next().unwrap_or(Ok(Value::Nil));
            self.choose_owner_check(node, handle, release, commands, &abilities)
                .await?;
        }
        Ok(abilities)
    }

    /// Loads the scripts without their first line, if the server refused them for it. If it does not
    /// load them, each is then sent with its text once. `error` is the reply to the scripts with their
    /// first line.
    async fn load_plain(
        &self,
        node: &Node,
        handle: &mut MultiplexedConnection,
        scripts: &[&Script],
        error: RedisError,
        abilities: &Abilities,
    ) {
        if !may_refuse_text(&error) || load(handle, scripts, ScriptForm::Plain).await.is_err() {
            self.report_unloaded(node, &error);
            return;
        }
        abilities.use_plain_scripts();
        self.reporter.emit(&LockEvent::ServerRestricted {
            server: &node.server,
            command: "SCRIPT LOAD",
            effect: "the lock server refuses the flags of the scripts, and they are loaded without \
                     them: while its memory is full, a release that has to write may fail",
            error: &error_text(&error),
        });
    }

    /// A server that refuses each command for a moment, such as while it loads its data, is not restricted.
    fn report_unloaded(&self, node: &Node, error: &RedisError) {
        if is_transient(error) {
            return;
        }
        self.reporter.emit(&LockEvent::ServerRestricted {
            server: &node.server,
            command: "SCRIPT LOAD",
            effect: "the lock server does not load scripts, and each is sent with its text once",
            error: &error_text(error),
        });
    }

    /// Decides how the connection checks an owner. `commands` is the reply about the commands that
    /// the server has.
    async fn choose_owner_check(
        &self,
        node: &Node,
        handle: &mut MultiplexedConnection,
        release: ReleaseMethod,
        commands: Result<Value, RedisError>,
        abilities: &Abilities,
    ) -> Result<(), LockError> {
        let failed = |error: RedisError| {
            let text = format!(
                "cannot read the commands of the lock server at {}",
                node.text
            );
            lock_error(text, &error)
        };
        if let Err(error) = &commands
            && is_no_permission(error)
        {
            if release == ReleaseMethod::Native {
                return commands.map(drop).map_err(failed);
            }
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server,
                command: "COMMAND INFO",
                effect: "commands that check the owner are not used",
                error: &error_text(error),
            });
        }
        // A server that refuses the question has none of the commands.
        let infos = match commands {
            Ok(Value::Array(infos)) => infos,
            Ok(_) => Vec::new(),
            Err(error) if is_of_command(&error) => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        let has = |at| matches!(infos.get(at), Some(Value::Array(info)) if !info.is_empty());
        abilities.know_commands(has(0), has(1));
        if abilities.owner_check(release) == Err(OpenQuestion::Scripts) {
            let reply = handle.send_packed_command(&ask_scripts()).await;
            let are_allowed = match reply.and_then(Value::extract_error) {
                Err(error) if is_of_command(&error) => false,
                Err(error) if !is_unknown_script(&error) => return Err(failed(error)),
                _ => true,
            };
            abilities.know_scripts(are_allowed);
        }
        match abilities.owner_check(release) {
            Ok(OwnerCheck::Script) => {
                let scripts = scripts::of(SCRIPTED, false);
                let loaded = load(handle, &scripts, ScriptForm::Flagged).await;
                if let Err(error) = loaded {
                    self.load_plain(node, handle, &scripts, error, abilities)
                        .await;
                }
                Ok(())
            }
            Ok(OwnerCheck::Command(_) | OwnerCheck::Transaction) => Ok(()),
            Err(_unsupported) => Err(no_owner_commands(&node.text)),
        }
    }
}

/// Returns the command that asks which commands the server has.
pub(super) fn ask_commands() -> Cmd {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg("DELEX").arg("DELIFEQ");
    command
}

/// Returns a command that fails, and whose error shows whether the user may run scripts.
fn ask_scripts() -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    // The hash of no script.
    command.arg("0".repeat(40)).arg(0);
    command
}

/// Loads scripts in one pipeline. Returns the first error.
async fn load(
    handle: &mut MultiplexedConnection,
    scripts: &[&Script],
    form: ScriptForm,
) -> Result<(), RedisError> {
    let mut pipeline = Pipeline::with_capacity(scripts.len());
    for script in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text(form));
    }
    pipeline.ignore_errors();
    let replies = handle
        .send_packed_commands(&pipeline, 0, pipeline.len())
        .await?;
    replies
        .into_iter()
        .try_for_each(|reply| reply.extract_error().map(drop))
}
