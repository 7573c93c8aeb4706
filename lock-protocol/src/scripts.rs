//! The Lua scripts: their texts and hashes.
//!
//! A script is its first line, a head of constants and an ordered list of parts. Each part is a whole file of `lua/`, and
//! nothing inside it is replaced, so that a file reads as the server runs it and can be run by hand with `cat`:
//!
//! ```text
//! #!lua flags=allow-oom                                                  first/*.lua
//! local PUBLISH, NUMSUB, LEGACY = 'PUBLISH', 'NUMSUB', false             head/*.lua
//! .. release.lua .. next_token.lua .. group.lua .. grant_next.lua ..     parts, in this order
//! ```
//!
//! The forms of a script differ in these two pieces only:
//!
//! | Form | First line | `PUBLISH`, `NUMSUB` | `LEGACY` |
//! |---|---|---|---|
//! | classic | yes | `PUBLISH`, `NUMSUB` | `false` |
//! | sharded, for a node of a cluster | yes | `SPUBLISH`, `SHARDNUMSUB` | `false` |
//! | [`Plain`](ScriptForm::Plain), either of both | none | as above | `true` |
//!
//! **The order of the parts is a matter of server time.** Lua makes a function anew in each run that reaches it, so the
//! functions of a slow path stand *behind* the fast path, which returns before it reaches them: in front they would cost
//! an uncontended acquire and release 0.4 µs of 8.5. Only what the fast path itself calls stands in front of it.
//!
//! A script of a set runs whole scripts as functions (`Part::Function`), with `KEYS` and `ARGV` as parameters. Their
//! parts read both by name, and so find those of one lock.

use std::sync::OnceLock;

use sha1_smol::Sha1;

use crate::dialect::{Dialect, ReleaseMethod, Scheme};

/// The form of the scripts that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptForm {
    /// With a first line that names the language and the flags.
    Flagged,
    /// Without it, for servers that refuse it. Such a server may be older than Redis 7. Without the flags, a command of
    /// the script that needs memory may fail while the server's memory is full.
    Plain,
}

/// The first line of a script: what it may do.
#[derive(Clone, Copy)]
enum FirstLine {
    /// It writes.
    Writes,
    /// It frees something, so that it runs while the server's memory is full.
    Frees,
    /// It changes nothing, so that it runs on a server that refuses writes.
    Reads,
}

impl FirstLine {
    fn text(self) -> &'static str {
        match self {
            Self::Writes => include_str!("lua/first/writes.lua"),
            Self::Frees => include_str!("lua/first/frees.lua"),
            Self::Reads => include_str!("lua/first/reads.lua"),
        }
    }
}

/// A piece of a script's text.
enum Part {
    /// A file.
    File(&'static str),
    /// A local function of `KEYS` and `ARGV` whose body is these parts.
    Function(&'static str, &'static [Part]),
}

impl Part {
    fn write(&self, out: &mut String) {
        match self {
            Self::File(text) => out.push_str(text),
            Self::Function(name, body) => {
                out.push_str("local function ");
                out.push_str(name);
                out.push_str("(KEYS, ARGV)\n");
                body.iter().for_each(|part| part.write(out));
                out.push_str("end\n");
            }
        }
    }
}

/// The head of a script: the constants in which its forms differ.
fn head(is_sharded: bool, form: ScriptForm) -> &'static str {
    match (is_sharded, form) {
        (false, ScriptForm::Flagged) => include_str!("lua/head/classic.lua"),
        (true, ScriptForm::Flagged) => include_str!("lua/head/sharded.lua"),
        (false, ScriptForm::Plain) => include_str!("lua/head/legacy.lua"),
        (true, ScriptForm::Plain) => include_str!("lua/head/sharded_legacy.lua"),
    }
}

/// The text of a script in one form, and its hash.
struct ScriptText {
    text: String,
    hash: String,
}

/// A script in both forms, each made when it is first needed.
pub struct Script {
    first_line: FirstLine,
    parts: &'static [Part],
    is_sharded: bool,
    flagged: OnceLock<ScriptText>,
    plain: OnceLock<ScriptText>,
}

impl Script {
    const fn new(first_line: FirstLine, parts: &'static [Part]) -> Self {
        Self {
            first_line,
            parts,
            is_sharded: false,
            flagged: OnceLock::new(),
            plain: OnceLock::new(),
        }
    }

    fn in_form(&self, form: ScriptForm) -> &ScriptText {
        let made = match form {
            ScriptForm::Flagged => &self.flagged,
            ScriptForm::Plain => &self.plain,
        };
        made.get_or_init(|| {
            let mut text = String::new();
            if form == ScriptForm::Flagged {
                text.push_str(self.first_line.text());
            }
            text.push_str(head(self.is_sharded, form));
            self.parts.iter().for_each(|part| part.write(&mut text));
            let hash = Sha1::from(&text).digest().to_string();
            ScriptText { text, hash }
        })
    }

    /// Returns the name by which the server knows the script: the SHA-1 of its text, as 40 hexadecimal digits.
    #[inline]
    pub fn hash(&self, form: ScriptForm) -> &str {
        &self.in_form(form).hash
    }

    /// Returns what the server runs.
    pub fn text(&self, form: ScriptForm) -> &str {
        &self.in_form(form).text
    }
}

/// A script that notifies waiters, for a single server and for a cluster.
pub struct NotifyingScript {
    classic: Script,
    /// With sharded notifications: of classic ones, each node of a cluster counts its own subscribers only.
    sharded: Script,
}

impl NotifyingScript {
    const fn new(first_line: FirstLine, parts: &'static [Part]) -> Self {
        let mut sharded = Script::new(first_line, parts);
        sharded.is_sharded = true;
        Self {
            classic: Script::new(first_line, parts),
            sharded,
        }
    }

    #[inline]
    pub fn of(&self, is_sharded: bool) -> &Script {
        if is_sharded {
            &self.sharded
        } else {
            &self.classic
        }
    }
}

/// The part in a file.
macro_rules! file {
    ($path:literal) => {
        Part::File(include_str!($path))
    };
}

const ATTEMPT: Part = file!("lua/attempt.lua");
const NEXT_TOKEN: Part = file!("lua/next_token.lua");
const GROUP: Part = file!("lua/group.lua");
const GRANT_NEXT: Part = file!("lua/grant_next.lua");
const KEEP: Part = file!("lua/keep.lua");

/// The fast path needs a token.
const ACQUIRE_PARTS: &[Part] = &[
    NEXT_TOKEN,
    file!("lua/acquire.lua"),
    ATTEMPT,
    GROUP,
    GRANT_NEXT,
    file!("lua/acquire_slow.lua"),
];
/// Here it does not.
const RELEASE_PARTS: &[Part] = &[
    file!("lua/release.lua"),
    ATTEMPT,
    NEXT_TOKEN,
    GROUP,
    GRANT_NEXT,
    KEEP,
    file!("lua/release_slow.lua"),
];

pub static ACQUIRE: NotifyingScript = NotifyingScript::new(FirstLine::Writes, ACQUIRE_PARTS);
pub static RELEASE: NotifyingScript = NotifyingScript::new(FirstLine::Frees, RELEASE_PARTS);
pub static RENEW: Script = Script::new(FirstLine::Frees, &[ATTEMPT, GROUP, file!("lua/renew.lua")]);

// For sets of locks. The handshake does not load them, because many clients never send them.
pub static ACQUIRE_ALL: NotifyingScript = NotifyingScript::new(
    FirstLine::Writes,
    &[
        Part::Function("acquire", ACQUIRE_PARTS),
        Part::Function("release", RELEASE_PARTS),
        file!("lua/each_lock.lua"),
        file!("lua/acquire_all.lua"),
    ],
);

/// The second round of an acquisition at a quorum of servers.
pub static RAISE: Script = Script::new(FirstLine::Writes, &[ATTEMPT, file!("lua/raise.lua")]);

/// For a slot that moves. The handshake does not load it.
pub static DROP: Script = Script::new(FirstLine::Frees, &[ATTEMPT, KEEP, file!("lua/drop.lua")]);

// Scripts of operators, for all dialects. The handshake does not load them, because most clients
// never send them.
pub static INSPECT: Script = Script::new(FirstLine::Reads, &[ATTEMPT, file!("lua/inspect.lua")]);
pub static FORCE_RELEASE: NotifyingScript = NotifyingScript::new(
    FirstLine::Frees,
    &[
        ATTEMPT,
        GROUP,
        file!("lua/force_release.lua"),
        NEXT_TOKEN,
        GRANT_NEXT,
        file!("lua/force_release_slow.lua"),
    ],
);

// Scripts of the other dialects.
pub static SETNX_EXPIRE: Script = Script::new(
    FirstLine::Writes,
    &[ATTEMPT, file!("lua/dialects/setnx_expire.lua")],
);
pub static OWNER_RENEW: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/renew.lua")],
);
pub static OWNER_REPAIR: Script = Script::new(
    FirstLine::Writes,
    &[ATTEMPT, file!("lua/dialects/repair.lua")],
);
pub static OWNER_RELEASE: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/release.lua")],
);
pub static DEADLINE_ACQUIRE: Script = Script::new(
    FirstLine::Writes,
    &[ATTEMPT, file!("lua/dialects/deadline_acquire.lua")],
);
pub static DEADLINE_RENEW: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/deadline_renew.lua")],
);
pub static DEADLINE_RELEASE: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/deadline_release.lua")],
);
pub static REDISSON_ACQUIRE: Script = Script::new(
    FirstLine::Writes,
    &[ATTEMPT, file!("lua/dialects/redisson_acquire.lua")],
);
pub static REDISSON_RENEW: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/redisson_renew.lua")],
);
pub static REDISSON_RELEASE: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/redisson_release.lua")],
);
// For operators.
pub static REDISSON_INSPECT: Script = Script::new(
    FirstLine::Reads,
    &[file!("lua/dialects/redisson_inspect.lua")],
);
pub static REDISSON_FORCE_RELEASE: Script = Script::new(
    FirstLine::Frees,
    &[ATTEMPT, file!("lua/dialects/redisson_force_release.lua")],
);

/// Returns the scripts that the handshake loads for a dialect. Other scripts are sent with their
/// text once.
pub fn of(dialect: Dialect, is_sharded: bool) -> Vec<&'static Script> {
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

    const FORMS: [ScriptForm; 2] = [ScriptForm::Flagged, ScriptForm::Plain];

    fn all() -> Vec<&'static Script> {
        let notifying = [&ACQUIRE, &RELEASE, &ACQUIRE_ALL, &FORCE_RELEASE];
        let mut all: Vec<_> = Dialect::all()
            .iter()
            .flat_map(|dialect| of(*dialect, false))
            .collect();
        all.extend(notifying.iter().flat_map(|it| [&it.classic, &it.sharded]));
        all.extend([&RAISE, &DROP, &INSPECT]);
        all.extend([&REDISSON_INSPECT, &REDISSON_FORCE_RELEASE]);
        all
    }

    #[test]
    fn only_dialects_without_scripts_load_none() {
        for dialect in Dialect::all() {
            let needs_none = dialect.capabilities().works_without_scripts();
            assert_eq!(of(*dialect, false).is_empty(), needs_none, "{dialect}");
        }
    }

    /// The constants of the head are the only difference, and each part reads them by name.
    #[test]
    fn forms_differ_in_first_line_and_head_only() {
        for script in all() {
            let [flagged, plain] = FORMS.map(|form| {
                let text = script.text(form);
                let start = text.find("local PUBLISH, NUMSUB, LEGACY = ");
                let (start, rest) = text.split_at(start.expect("each script has a head"));
                let (head, rest) = rest.split_once('\n').unwrap_or_default();
                (start.to_owned(), head.to_owned(), rest.to_owned())
            });
            assert!(flagged.0.starts_with("#!lua"), "{}", flagged.0);
            assert!(plain.0.starts_with("-- head"), "{}", plain.0);
            assert!(flagged.1.ends_with(", false"), "{}", flagged.1);
            assert!(plain.1.ends_with(", true"), "{}", plain.1);
            assert_eq!(flagged.2, plain.2);
            assert!(!plain.2.contains("PUBLISH'"), "a part names a command");
            assert!(!plain.2.contains("NUMSUB'"), "a part names a command");
            let commands = if script.is_sharded {
                "'SPUBLISH', 'SHARDNUMSUB'"
            } else {
                "'PUBLISH', 'NUMSUB'"
            };
            assert!(flagged.1.contains(commands) && plain.1.contains(commands));
        }
    }

    /// A server that refuses the first line may be older than Redis 7, which brought these options.
    #[test]
    fn newer_options_stand_behind_legacy() {
        for script in all() {
            let text = script.text(ScriptForm::Plain);
            let is_newer = |line: &str| {
                line.contains("PEXPIRE") && (line.contains("'GT'") || line.contains("'LT'"))
            };
            let mut before = "";
            for line in text.lines() {
                let is_guarded = line.contains("LEGACY or ") || before.trim() == "else";
                assert!(!is_newer(line) || is_guarded, "{line}");
                before = line;
            }
        }
    }

    /// Each run makes the functions that it reaches, and most runs end in the fast path.
    #[test]
    fn functions_of_the_slow_path_stand_behind_the_fast_one() {
        for (script, allowed) in [(&ACQUIRE, 1), (&RELEASE, 0)] {
            let text = script.classic.text(ScriptForm::Flagged);
            let fast = text.split("\n-- attempt: ").next().unwrap_or_default();
            let fast = fast.split("return 'released'").next().unwrap_or_default();
            assert!(fast.len() < text.len() / 2);
            assert_eq!(fast.matches("\nlocal function ").count(), allowed);
        }
    }

    #[test]
    fn scripts_of_sets_run_those_of_one_lock() {
        let text = ACQUIRE_ALL.of(false).text(ScriptForm::Flagged);
        for (name, parts) in [("acquire", ACQUIRE_PARTS), ("release", RELEASE_PARTS)] {
            let mut function = String::new();
            Part::Function(name, parts).write(&mut function);
            assert!(text.contains(&function), "{name}");
        }
        assert_eq!(text.matches("#!lua\n").count(), 1);
    }

    /// `EVALSHA` names a script by the hash that the server computes.
    #[test]
    fn hash_is_the_sha1_of_the_text() {
        let mut seen = Vec::new();
        for script in all() {
            for form in FORMS {
                let text = script.text(form);
                assert_eq!(script.hash(form), Sha1::from(text).digest().to_string());
                seen.push((script.hash(form), text));
            }
        }
        // One hash for each text.
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.windows(2).all(|pair| pair[0].0 != pair[1].0));
        assert_eq!(
            Sha1::from("return 1").digest().to_string(),
            "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
        );
    }
}
