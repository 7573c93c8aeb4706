//! Scripts: their names, and their errors in the form of old versions.

/// The parts that stand in several scripts.
const SHARED_PARTS: [&str; 7] = [
    "head",
    "next_token",
    "attempt",
    "group",
    "grant_next",
    "keep",
    "each_lock",
];

/// Returns the name of a script. Each of its parts begins with a comment that has the part's name, as in
/// `-- acquire: acquires the lock ...`; the last one that no other script has is its own.
///
/// # Panics
///
/// Panics if the text has no such comment.
#[track_caller]
pub fn script_name(text: &str) -> String {
    let before = std::iter::once("").chain(text.lines());
    let names = before.zip(text.lines()).filter_map(|(before, line)| {
        let (name, _) = line.strip_prefix("-- ")?.split_once(": ")?;
        let is_name = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let is_own = !SHARED_PARTS.contains(&name) && !name.ends_with("_slow");
        (!before.starts_with("--") && is_name && is_own).then_some(name)
    });
    names.last().expect("a script has a name").to_owned()
}

/// Returns whether this is the text of one of the library's scripts.
pub(super) fn is_script(text: &[u8]) -> bool {
    text.starts_with(b"#!lua") || text.starts_with(b"-- ")
}

/// Returns the text of a script with whose commands the options of `PEXPIRE` and its relatives don't exist. The real
/// server then refuses the command for its number of arguments, in its own words.
pub(super) fn without_expire_options(text: &str) -> String {
    const OLD: &str = "local redis = (function(new) \
        local function old(call) return function(name, ...) \
        if string.find(string.upper(name), 'EXPIRE') and select('#', ...) > 2 then return call(name) end \
        return call(name, ...) end end \
        return setmetatable({call = old(new.call), pcall = old(new.pcall)}, {__index = new}) end)(redis)\n";
    match text.split_once('\n') {
        Some((first, rest)) if first.starts_with("#!") => format!("{first}\n{OLD}{rest}"),
        _ => format!("{OLD}{text}"),
    }
}

/// Returns an error of a script as versions before Redis 7 word it. They also checked within the script what later
/// ones check before it runs.
pub(super) fn old_error(line: &str, hash: &str) -> Option<String> {
    let code = line.split(' ').next().unwrap_or_default();
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_code || ["NOSCRIPT", "NOAUTH", "LOADING", "BUSY"].contains(&code) {
        return None;
    }
    let text = line.split(" script: ").next().unwrap_or(line);
    Some(format!(
        "ERR Error running script (call to f_{hash}): @user_script:1: -{text}"
    ))
}
