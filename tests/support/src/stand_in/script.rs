//! Scripts: their names, and other forms of `redis.pcall`.

use super::quirk::PcallForm;

/// Returns the name in the first comment of a script: `-- acquire: acquires the lock ...`.
///
/// # Panics
///
/// Panics if the text does not begin with one.
#[track_caller]
pub fn script_name(text: &str) -> String {
    let comment = text.lines().find_map(|line| line.strip_prefix("-- "));
    let name = comment.and_then(|comment| comment.split_once(':'));
    name.expect("a script begins with its name").0.to_owned()
}

/// Returns whether this is the text of one of the library's scripts.
pub(super) fn is_script(text: &[u8]) -> bool {
    text.starts_with(b"#!lua") || text.starts_with(b"-- ")
}

/// Returns the script with another `redis.pcall`.
pub(super) fn with_pcall(text: &str, form: PcallForm) -> String {
    let body = match form {
        PcallForm::Raises => "return redis.call(...)",
        PcallForm::Text => {
            "local it = redis.pcall(...) \
             if type(it) == 'table' and it.err then return it.err end return it"
        }
        PcallForm::OtherTable => {
            "local it = redis.pcall(...) \
             if type(it) == 'table' and it.err then return {it.err} end return it"
        }
    };
    let prelude = format!("local function other_pcall(...) {body} end ");
    let text = text.replace("redis.pcall(", "other_pcall(");
    match text.split_once('\n').filter(|_| text.starts_with("#!")) {
        Some((first, rest)) => format!("{first}\n{prelude}{rest}"),
        None => prelude + &text,
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
