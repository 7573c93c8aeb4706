//! The Lua scripts, and the commands that run them.

use std::sync::{LazyLock, OnceLock};

use redis::Cmd;

use lock_protocol::dialect::{Dialect, ReleaseMethod, Scheme};
use lock_protocol::resp::{Command, CommandBuf};

/// The marks of shared parts in a script's source, and the parts, in the order in which they are
/// inserted: a part contains the marks of later ones.
const INCLUDES: [(&str, &str); 3] = [
    (
        "-- include grant_next.lua\n",
        include_str!("scripts/grant_next.lua"),
    ),
    ("-- include group.lua\n", include_str!("scripts/group.lua")),
    (
        "-- include next_token.lua\n",
        include_str!("scripts/next_token.lua"),
    ),
];

/// The scripts and the part that run the scripts of one lock for each lock of a set. Inserted before
/// [`INCLUDES`], without the first line of a script.
const SET_INCLUDES: [(&str, &str); 3] = [
    (
        "-- include acquire.lua\n",
        include_str!("scripts/acquire.lua"),
    ),
    (
        "-- include release.lua\n",
        include_str!("scripts/release.lua"),
    ),
    (
        "-- include each_lock.lua\n",
        include_str!("scripts/each_lock.lua"),
    ),
];

/// The capacity for the arguments of a command without queue entries, beside script and keys. It is
/// generous: a buffer that grows costs more than one that is a little too large.
const ARGS: usize = 16;
const ARGS_LEN: usize = 192;

/// The options of `PEXPIRE` that servers before Redis 7 do not know, and what replaces them in the plain
/// form of a script. Redis 7 needs one call where the plain form needs two.
const PLAIN_PARTS: [(&str, &str); 3] = [
    (
        "redis.call('PEXPIRE', KEYS[1], remaining, 'GT') == 0",
        "true",
    ),
    (
        "  redis.call('PEXPIRE', KEYS[1], ARGV[2], 'LT')\n",
        "  local left = redis.call('PTTL', KEYS[1])\n  \
         if left < 0 or left > tonumber(ARGV[2]) then\n    \
         redis.call('PEXPIRE', KEYS[1], ARGV[2])\n  end\n",
    ),
    (
        "    redis.call('PEXPIREAT', key, ends, 'GT')\n",
        "    local left = redis.call('PTTL', key)\n    \
         if left >= 0 and now_ms + left < tonumber(ends) then\n      \
         redis.call('PEXPIREAT', key, ends)\n    end\n",
    ),
];

/// The form of the scripts that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptForm {
    /// With a first line that names the language and the flags.
    Flagged,
    /// Without it, for servers that refuse it. Without the flags, a command of the script that needs
    /// memory may fail while the server's memory is full.
    Plain,
}

/// The text of a script in one form, and its hash.
struct ScriptText {
    source: String,
    hash: String,
}

impl ScriptText {
    fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// A script in both forms.
pub(crate) struct Script {
    flagged: ScriptText,
    /// Made when a server needs it.
    plain: OnceLock<ScriptText>,
}

impl Script {
    fn new(source: &str) -> Self {
        let of_sets = SET_INCLUDES
            .iter()
            .filter(|(mark, _)| source.contains(mark))
            .fold(source.to_owned(), |source, (mark, part)| {
                let body = part.split_once('\n').filter(|_| part.starts_with("#!"));
                source.replace(mark, body.map_or(part, |(_, body)| body))
            });
        let source = INCLUDES
            .iter()
            .fold(of_sets, |source, (mark, part)| source.replace(mark, part));
        Self {
            flagged: ScriptText::new(source),
            plain: OnceLock::new(),
        }
    }

    fn in_form(&self, form: ScriptForm) -> &ScriptText {
        match form {
            ScriptForm::Flagged => &self.flagged,
            ScriptForm::Plain => self.plain.get_or_init(|| {
                let source = &self.flagged.source;
                let source = source.split_once('\n').map_or(&**source, |(_, rest)| rest);
                let replace =
                    |source: String, (part, plain): &(&str, &str)| source.replace(part, plain);
                ScriptText::new(PLAIN_PARTS.iter().fold(source.to_owned(), replace))
            }),
        }
    }

    pub(crate) fn source(&self, form: ScriptForm) -> &str {
        &self.in_form(form).source
    }

    /// Returns the command that runs the script by its hash. The handshake has loaded the script.
    pub(crate) fn by_hash(
        &self,
        form: ScriptForm,
        keys: &[&str],
        write_args: impl FnOnce(&mut Cmd),
    ) -> Cmd {
        Self::command("EVALSHA", &self.in_form(form).hash, keys, write_args)
    }

    /// Returns the command that runs the script by its text, for a server that does not know it.
    pub(crate) fn by_text(
        &self,
        form: ScriptForm,
        keys: &[&str],
        write_args: impl FnOnce(&mut Cmd),
    ) -> Cmd {
        Self::command("EVAL", &self.in_form(form).source, keys, write_args)
    }

    /// Appends the command that runs the script by its hash.
    pub(crate) fn write_by_hash(
        &self,
        form: ScriptForm,
        out: &mut Vec<u8>,
        keys: &[&str],
        write_args: impl FnOnce(&mut Command<'_>),
    ) {
        write_command(out, "EVALSHA", &self.in_form(form).hash, keys, write_args);
    }

    /// Appends the command that runs the script by its text.
    pub(crate) fn write_by_text(
        &self,
        form: ScriptForm,
        out: &mut Vec<u8>,
        keys: &[&str],
        write_args: impl FnOnce(&mut Command<'_>),
    ) {
        write_command(out, "EVAL", &self.in_form(form).source, keys, write_args);
    }

    fn command(verb: &str, script: &str, keys: &[&str], write_args: impl FnOnce(&mut Cmd)) -> Cmd {
        let keys_len: usize = keys.iter().map(|key| key.len()).sum();
        let mut command = Cmd::with_capacity(ARGS, script.len() + keys_len + ARGS_LEN);
        command.arg(verb).arg(script).arg(keys.len()).arg(keys);
        write_args(&mut command);
        command
    }
}

fn write_command(
    out: &mut Vec<u8>,
    verb: &str,
    script: &str,
    keys: &[&str],
    write_args: impl FnOnce(&mut Command<'_>),
) {
    let mut buffer = CommandBuf::new(out);
    let mut command = buffer.command(verb);
    command.arg(script).arg(keys.len());
    for key in keys {
        command.arg(*key);
    }
    write_args(&mut command);
}

/// A script that notifies waiters, for a single server and for a cluster.
pub(crate) struct NotifyingScript {
    pub(crate) classic: Script,
    /// With sharded notifications: of classic ones, each node of a cluster counts its own subscribers only.
    pub(crate) sharded: Script,
}

impl NotifyingScript {
    fn new(source: &str) -> Self {
        let classic = Script::new(source);
        let sharded = classic.flagged.source.replace("'NUMSUB'", "'SHARDNUMSUB'");
        let sharded = Script::new(&sharded.replace("'PUBLISH'", "'SPUBLISH'"));
        Self { classic, sharded }
    }

    pub(crate) fn of(&self, is_sharded: bool) -> &Script {
        if is_sharded {
            &self.sharded
        } else {
            &self.classic
        }
    }
}

pub(crate) static ACQUIRE: LazyLock<NotifyingScript> =
    LazyLock::new(|| NotifyingScript::new(include_str!("scripts/acquire.lua")));
pub(crate) static RELEASE: LazyLock<NotifyingScript> =
    LazyLock::new(|| NotifyingScript::new(include_str!("scripts/release.lua")));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));

// For sets of locks. The handshake does not load them, because many clients never send them.
pub(crate) static ACQUIRE_ALL: LazyLock<NotifyingScript> =
    LazyLock::new(|| NotifyingScript::new(include_str!("scripts/acquire_all.lua")));
pub(crate) static RELEASE_ALL: LazyLock<NotifyingScript> =
    LazyLock::new(|| NotifyingScript::new(include_str!("scripts/release_all.lua")));

// The second round of an acquisition at a quorum of servers.
pub(crate) static RAISE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/raise.lua")));

/// For a slot that moves. The handshake does not load it.
pub(crate) static DROP: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/drop.lua")));

// Scripts of operators, for all dialects. The handshake does not load them, because most clients
// never send them.
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/inspect.lua")));
pub(crate) static FORCE_RELEASE: LazyLock<NotifyingScript> =
    LazyLock::new(|| NotifyingScript::new(include_str!("scripts/force_release.lua")));

// Scripts of the other dialects.
pub(crate) static SETNX_EXPIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/setnx_expire.lua")));
pub(crate) static OWNER_RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/renew.lua")));
pub(crate) static OWNER_REPAIR: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/repair.lua")));
pub(crate) static OWNER_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/release.lua")));
pub(crate) static DEADLINE_ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/deadline_acquire.lua")));
pub(crate) static DEADLINE_RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/deadline_renew.lua")));
pub(crate) static DEADLINE_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/deadline_release.lua")));
pub(crate) static REDISSON_ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/redisson_acquire.lua")));
pub(crate) static REDISSON_RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/redisson_renew.lua")));
pub(crate) static REDISSON_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/redisson_release.lua")));
// For operators.
pub(crate) static REDISSON_INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/redisson_inspect.lua")));
pub(crate) static REDISSON_FORCE_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/dialects/redisson_force_release.lua")));

/// Returns the scripts that the handshake loads for a dialect. Other scripts are sent with their
/// text once.
pub(crate) fn of(dialect: Dialect, is_sharded: bool) -> Vec<&'static Script> {
    match dialect.scheme() {
        None => vec![ACQUIRE.of(is_sharded), RELEASE.of(is_sharded), &RENEW],
        Some(Scheme::SetnxExpire) => vec![&OWNER_RENEW, &OWNER_RELEASE, &OWNER_REPAIR],
        Some(Scheme::DeadlineGetset) => {
            vec![&DEADLINE_ACQUIRE, &DEADLINE_RENEW, &DEADLINE_RELEASE]
        }
        Some(Scheme::LuaSetnxExpire) => vec![&SETNX_EXPIRE, &OWNER_RENEW, &OWNER_RELEASE],
        Some(Scheme::SetNxPx(ReleaseMethod::Script)) => vec![&OWNER_RENEW, &OWNER_RELEASE],
        Some(Scheme::Redisson(_)) => vec![&REDISSON_ACQUIRE, &REDISSON_RENEW, &REDISSON_RELEASE],
        // `Auto` loads its scripts when it knows that it needs them.
        Some(Scheme::SetNxPx(_)) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dialects_without_scripts_load_none() {
        for dialect in Dialect::ALL {
            let needs_none = dialect.capabilities().without_scripts;
            assert_eq!(of(*dialect, false).is_empty(), needs_none, "{dialect}");
        }
    }

    #[test]
    fn scripts_include_the_shared_function() {
        let scripts = [&*ACQUIRE, &RELEASE, &FORCE_RELEASE];
        for script in scripts.iter().flat_map(|it| [&it.classic, &it.sharded]) {
            let source = script.source(ScriptForm::Flagged);
            assert!(source.contains("local function grant_next("));
            assert!(source.contains("redis.call('INCR'"));
            for (mark, _) in INCLUDES {
                assert!(!script.source(ScriptForm::Flagged).contains(mark), "{mark}");
            }
        }
        for script in scripts {
            let sharded = script.sharded.source(ScriptForm::Flagged);
            assert_eq!(sharded.matches("'SPUBLISH'").count(), 3);
            assert_eq!(sharded.matches("'SHARDNUMSUB'").count(), 1);
            assert!(!sharded.contains("'PUBLISH'") && !sharded.contains("'NUMSUB'"));
        }
    }

    #[test]
    fn scripts_of_sets_include_those_of_one_lock() {
        for script in [ACQUIRE_ALL.of(true), RELEASE_ALL.of(false)] {
            let source = script.source(ScriptForm::Flagged);
            assert_eq!(source.matches("#!lua").count(), 1);
            assert!(source.contains("local function each_lock("));
            for (mark, _) in SET_INCLUDES.iter().chain(&INCLUDES) {
                assert!(!source.contains(mark), "{mark}");
            }
        }
    }

    /// A server that refuses the first line may also be older than Redis 7.
    #[test]
    fn plain_form_has_neither_first_line_nor_newer_options() {
        let all = Dialect::ALL.iter().flat_map(|dialect| of(*dialect, false));
        let others = [
            &*INSPECT,
            FORCE_RELEASE.of(false),
            &*RAISE,
            &*DROP,
            ACQUIRE_ALL.of(false),
            RELEASE_ALL.of(false),
        ];
        for script in all.chain(others) {
            let plain = script.source(ScriptForm::Plain);
            assert!(script.source(ScriptForm::Flagged).starts_with("#!lua"));
            assert!(plain.starts_with("-- "), "{plain}");
            let newer = |line: &&str| {
                line.contains("PEXPIRE") && (line.contains("'GT'") || line.contains("'LT'"))
            };
            assert_eq!(plain.lines().find(newer), None);
        }
        let scripts = [&RENEW, &OWNER_RELEASE, &RENEW];
        for (script, (_, part)) in scripts.into_iter().zip(PLAIN_PARTS) {
            assert!(script.source(ScriptForm::Plain).contains(part), "{part}");
        }
    }
}
