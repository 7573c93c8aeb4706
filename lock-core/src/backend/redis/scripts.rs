//! The commands of the client library that run the scripts of `lock-protocol`.

use redis::Cmd;

pub(crate) use lock_protocol::scripts::*;

/// The capacity for the arguments of a command without queue entries, beside script and keys. It is
/// generous: a buffer that grows costs more than one that is a little too large.
const ARGS: usize = 16;
const ARGS_LEN: usize = 192;

/// The commands that run a script: by its hash, which the handshake has loaded, or by its text, for a server that
/// does not know it.
pub(crate) trait ScriptCommands {
    fn by_hash(&self, form: ScriptForm, keys: &[&str], write_args: impl FnOnce(&mut Cmd)) -> Cmd;
    fn by_text(&self, form: ScriptForm, keys: &[&str], write_args: impl FnOnce(&mut Cmd)) -> Cmd;
}

impl ScriptCommands for Script {
    fn by_hash(&self, form: ScriptForm, keys: &[&str], write_args: impl FnOnce(&mut Cmd)) -> Cmd {
        command("EVALSHA", self.hash(form), keys, write_args)
    }

    fn by_text(&self, form: ScriptForm, keys: &[&str], write_args: impl FnOnce(&mut Cmd)) -> Cmd {
        command("EVAL", self.text(form), keys, write_args)
    }
}

fn command(verb: &str, script: &str, keys: &[&str], write_args: impl FnOnce(&mut Cmd)) -> Cmd {
    let keys_len: usize = keys.iter().map(|key| key.len()).sum();
    let mut command = Cmd::with_capacity(ARGS, script.len() + keys_len + ARGS_LEN);
    command.arg(verb).arg(script).arg(keys.len()).arg(keys);
    write_args(&mut command);
    command
}
