//! Prepares a new connection for its dialect: loads scripts, and finds out what the server can do.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use crate::backend::redis::abilities::{Abilities, OpenQuestion, ask_scripts};
use crate::backend::redis::connection::Connector;
use crate::backend::redis::errors::{error_text, is_no_permission, lock_error, no_owner_commands};
use crate::error::LockError;
use crate::protocol::dialect::ReleaseMethod;
use crate::telemetry::LockEvent;

impl Connector {
    /// Reports scripts that the server did not load. Each is then sent with its text once.
    pub(super) fn report_unloaded(&self, error: &RedisError) {
        self.reporter.emit(&LockEvent::ServerRestricted {
            server: &self.server,
            command: "SCRIPT LOAD",
            effect: "the lock server does not load scripts, and each is sent with its text once",
            error: &error_text(error),
        });
    }

    /// Decides how the connection checks an owner. `commands` is the reply about the commands that
    /// the server has.
    pub(super) async fn choose_owner_check(
        &self,
        handle: &mut MultiplexedConnection,
        release: ReleaseMethod,
        commands: Result<Value, RedisError>,
        abilities: &Abilities,
    ) -> Result<(), LockError> {
        let failed = |error: RedisError| {
            let text = format!(
                "cannot read the commands of the lock server at {}",
                self.address
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
                server: &self.server,
                command: "COMMAND INFO",
                effect: "commands that check the owner are not used",
                error: &error_text(error),
            });
        }
        abilities.record_commands(commands).map_err(failed)?;
        if abilities.owner_check(release) == Err(OpenQuestion::Scripts) {
            let reply = handle.send_packed_command(&ask_scripts()).await;
            let reply = reply.and_then(Value::extract_error);
            abilities.record_scripts(reply).map_err(failed)?;
        }
        match abilities.owner_check(release) {
            Ok(_) => Ok(()),
            Err(_unsupported) => Err(no_owner_commands(&self.address)),
        }
    }
}
