//! Lock names, and the keys of a lock.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::dialect::Dialect;
use crate::error_line::write_line;
use crate::wire::escaped;

mod redisson;

pub use self::redisson::key_of_channel;

/// The client sends every key with every command, and longer names are usually data by mistake.
pub const MAX_NAME: usize = 1024;
/// The prefix is part of each key, and of the channel in each queue entry.
pub const MAX_PREFIX: usize = 64;
/// How many characters of an invalid name an error shows.
const SHOWN_NAME: usize = 40;
/// The endings of the companion keys: queue, counter, grace, and holders.
const COMPANIONS: [&str; 4] = [":q", ":f", ":g", ":h"];

/// The name of a lock: 1 to 1,024 bytes of text.
///
/// A name may hold one `{tag}` and no other brace. The tag is a hash tag: a Redis Cluster puts all
/// keys with the same tag into one slot. A name with a tag may not end with `:q`, `:f`, `:g` or
/// `:h`. These are the endings of a lock's companion keys. With an empty prefix, a name may not be
/// only a tag.
///
/// Conversions from strings do not check a name, so that `locks.lock("order:7")` needs no `?`: a wrong name fails at
/// `acquire`. [`LockName::new`] checks it at once.
///
/// Two names are equal when their texts are equal, whatever their templates are, unless only one of them is known to be
/// invalid. This is why a name is `AsRef<str>` but not `Borrow<str>`.
#[derive(Clone, Debug)]
pub struct LockName {
    text: Arc<str>,
    /// The reason why the name is known to be invalid. Every acquire reports it.
    reason: Option<InvalidNameReason>,
    template: Option<&'static str>,
}

impl LockName {
    /// Makes a name and checks it. The conversions from strings don't check the name; acquiring the lock does.
    ///
    /// A name has 1 to 1,024 bytes. Braces form at most one non-empty hash tag, as in
    /// `{user1}:cart`. A name with a hash tag does not end with `:q`, `:f`, `:g` or `:h`.
    ///
    /// # Errors
    /// [`InvalidName`] with the reason. `?` turns it into a [`LockError`](enum.LockError.html).
    pub fn new(name: impl Into<Self>) -> Result<Self, InvalidName> {
        let name = name.into();
        match name.check() {
            Ok(_has_hash_tag) => Ok(name),
            Err(reason) => Err(InvalidName::new(&name, reason)),
        }
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Makes an invalid name with a reason. Errors show `text` as the name.
    #[doc(hidden)]
    pub fn invalid(text: impl Into<Arc<str>>, reason: InvalidNameReason) -> Self {
        Self {
            reason: Some(reason),
            ..Self::from(text.into())
        }
    }

    /// Returns the template of the name, such as `order:{order_id}`.
    ///
    /// The attribute and `lock_name!` record their template, and [`with_template`](Self::with_template) sets one.
    /// Returns `None` for a name of which only the text is known.
    #[must_use]
    pub fn template(&self) -> Option<&'static str> {
        self.template
    }

    /// Sets the template of the name, such as `order:{order_id}`. The attribute and `lock_name!` do so by themselves.
    ///
    /// The template groups all locks of one kind: in metrics, and in settings that are for all names of a template. It
    /// changes neither the name nor the key. Defaults to none.
    ///
    /// ```
    /// # use lock_protocol::key::LockName;
    /// let name = LockName::from("order:7").with_template("order:{order_id}");
    /// assert_eq!(name.template(), Some("order:{order_id}"));
    /// assert_eq!(name, LockName::from("order:7"));
    /// ```
    #[must_use]
    pub fn with_template(mut self, template: &'static str) -> Self {
        self.template = Some(template);
        self
    }

    fn identity(&self) -> (&str, Option<InvalidNameReason>) {
        (&self.text, self.reason)
    }

    /// Checks the name. Returns whether it has a hash tag.
    #[doc(hidden)]
    pub fn check(&self) -> Result<bool, InvalidNameReason> {
        if let Some(reason) = self.reason {
            return Err(reason);
        }
        let name = self.as_str();
        if name.is_empty() {
            return Err(InvalidNameReason::Empty);
        }
        if name.len() > MAX_NAME {
            return Err(InvalidNameReason::TooLong);
        }
        let tagged = has_tag(name)?;
        if tagged && COMPANIONS.iter().any(|end| name.ends_with(end)) {
            return Err(InvalidNameReason::Companion);
        }
        Ok(tagged)
    }

    /// The reason why the name is invalid, if it is known without a check.
    #[doc(hidden)]
    pub fn invalid_reason(&self) -> Option<InvalidNameReason> {
        self.reason
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for LockName {}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl From<Arc<str>> for LockName {
    fn from(text: Arc<str>) -> Self {
        Self {
            text,
            reason: None,
            template: None,
        }
    }
}

impl From<&str> for LockName {
    fn from(name: &str) -> Self {
        Self::from(Arc::<str>::from(name))
    }
}

impl From<String> for LockName {
    fn from(name: String) -> Self {
        Self::from(Arc::<str>::from(name))
    }
}

impl From<&String> for LockName {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<Cow<'_, str>> for LockName {
    fn from(name: Cow<'_, str>) -> Self {
        Self::from(Arc::<str>::from(name))
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error of [`LockName::new`]: the name, and what is wrong with it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid lock name `{}`: {reason}", escaped(name))]
pub struct InvalidName {
    name: Arc<str>,
    reason: InvalidNameReason,
}

impl InvalidName {
    #[doc(hidden)]
    #[must_use]
    pub fn new(name: &LockName, reason: InvalidNameReason) -> Self {
        let name: String = name.as_str().chars().take(SHOWN_NAME).collect();
        Self {
            name: name.into(),
            reason,
        }
    }

    /// Returns the first 40 characters of the name that was refused.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns why the name was refused.
    #[must_use]
    pub fn reason(&self) -> InvalidNameReason {
        self.reason
    }

    #[doc(hidden)]
    pub fn into_parts(self) -> (Arc<str>, InvalidNameReason) {
        (self.name, self.reason)
    }
}

impl fmt::Debug for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, "InvalidName", self)
    }
}

/// Why a name or a prefix is invalid. The message says what to use instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidNameReason {
    /// The name has no characters.
    #[error("it is empty; give the lock a name")]
    Empty,
    /// The value of a placeholder has no characters. All calls with an empty value would share one
    /// lock by mistake.
    #[error("a value in it is empty; check that value before the call, or use another value")]
    EmptyValue,
    /// The `Display` implementation of a placeholder's value returned an error.
    #[error("the `Display` of a value in it returned an error; use another value in the name")]
    BrokenValue,
    /// The constant of `name = CONSTANT` holds `{parameter}`, and the function has that parameter. All
    /// calls would share one lock.
    #[error(
        "it holds a placeholder that was not replaced: write the template as a literal, \
         `name = \"order:{{id}}\"`, or with `lock_name!`"
    )]
    UnexpandedTemplate,
    /// The name is longer than 1 KiB.
    #[error("it is longer than 1024 bytes; use a digest of it instead")]
    TooLong,
    /// The name holds a brace that is not part of the one allowed `{tag}`.
    #[error("braces may only form one non-empty hash tag, such as `{{user1}}:cart`")]
    Braces,
    /// The name has a tag and ends like a companion key.
    #[error(
        "a name with a hash tag may not end in `:q`, `:f`, `:g` or `:h`, which are endings of \
         companion keys; choose another ending"
    )]
    Companion,
    /// The name is one tag without other text, and the manager's prefix is empty. Its companion keys
    /// would be those of the name without the braces.
    #[error(
        "with an empty prefix, a name may not consist of a hash tag only; remove the braces, which \
         changes the key but not its slot"
    )]
    OnlyTag,
}

/// The keys of one lock, all in one slot, and the dialect of the lock. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockKey {
    keys: Arc<Keys>,
    dialect: Dialect,
}

#[derive(Debug)]
struct Keys {
    text: Arc<str>,
    /// Where the name begins in the text, behind the prefix.
    name_at: usize,
    /// The queue, the counter, the grace key and the holders, one after the other: they differ in the ending
    /// only.
    companions: String,
    /// The template of the name. It is no part of the keys' identity.
    template: Option<&'static str>,
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Keys {}

impl Hash for Keys {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl LockKey {
    /// The prefix is that of a checked configuration: without braces, and of at most [`MAX_PREFIX`]
    /// bytes.
    pub fn new(prefix: &str, name: &LockName) -> Result<Self, InvalidNameReason> {
        let tagged = name.check()?;
        let (name, template) = (name.as_str(), name.template());
        if prefix.is_empty() && tagged && name.starts_with('{') && name.ends_with('}') {
            return Err(InvalidNameReason::OnlyTag);
        }
        // Concatenated once for all commands: formatting the keys was a tenth of a command's cost.
        let (open, close) = if tagged { ("", "") } else { ("{", "}") };
        let companion = |end| [open, prefix, name, close, end];
        let companions = COMPANIONS.map(companion);
        Ok(Self {
            keys: Arc::new(Keys {
                text: [prefix, name].concat().into(),
                name_at: prefix.len(),
                companions: companions.as_flattened().concat(),
                template,
            }),
            dialect: Dialect::Native,
        })
    }

    /// Returns the keys of a lock in this dialect.
    pub fn in_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Returns the dialect of the lock.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The key that holds the lock.
    pub fn as_str(&self) -> &str {
        &self.keys.text
    }

    /// The name of the lock: the key without the prefix.
    pub fn name(&self) -> &str {
        &self.keys.text[self.keys.name_at..]
    }

    /// The part of the key in front of the name.
    pub fn prefix(&self) -> &str {
        &self.keys.text[..self.keys.name_at]
    }

    /// Returns the key that holds the lock, shared.
    pub fn text(&self) -> Arc<str> {
        Arc::clone(&self.keys.text)
    }

    /// The template of the name, if it is known.
    pub fn template(&self) -> Option<&'static str> {
        self.keys.template
    }

    /// The zset of the waiters.
    pub fn queue(&self) -> &str {
        self.companion(0)
    }

    /// The fencing counter.
    pub fn counter(&self) -> &str {
        self.companion(1)
    }

    /// The key that keeps the lock free for foreign clients under `Handover::YieldToOthers`.
    pub fn grace(&self) -> &str {
        self.companion(2)
    }

    /// The zset of the members of a shared lock.
    pub fn holders(&self) -> &str {
        self.companion(3)
    }

    fn companion(&self, number: usize) -> &str {
        let companions = &self.keys.companions;
        let len = companions.len() / COMPANIONS.len();
        &companions[number * len..(number + 1) * len]
    }

    /// All keys, in the order of the scripts' `KEYS`.
    pub fn all(&self) -> [&str; 5] {
        [
            self.as_str(),
            self.queue(),
            self.counter(),
            self.grace(),
            self.holders(),
        ]
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(self.as_str()))
    }
}

fn has_tag(name: &str) -> Result<bool, InvalidNameReason> {
    let Some(open) = name.find(['{', '}']) else {
        return Ok(false);
    };
    let rest = name[open..]
        .strip_prefix('{')
        .ok_or(InvalidNameReason::Braces)?;
    let (tag, after) = rest.split_once('}').ok_or(InvalidNameReason::Braces)?;
    if tag.is_empty() || tag.contains('{') || after.contains(['{', '}']) {
        return Err(InvalidNameReason::Braces);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Result<LockKey, InvalidNameReason> {
        LockKey::new("lock:", &LockName::from(name))
    }

    #[test]
    fn companions_share_the_slot_of_the_key() {
        let plain = key("order:42").unwrap();
        assert_eq!(plain.as_str(), "lock:order:42");
        assert_eq!(plain.queue(), "{lock:order:42}:q");
        assert_eq!(plain.counter(), "{lock:order:42}:f");
        assert_eq!(plain.grace(), "{lock:order:42}:g");
        let tagged = key("{user1}:cart").unwrap();
        assert_eq!(tagged.queue(), "lock:{user1}:cart:q");
    }

    #[test]
    fn two_names_never_share_a_companion_key() {
        assert_eq!(key("{a}:q"), Err(InvalidNameReason::Companion));
        assert_eq!(key("x{a}y:f"), Err(InvalidNameReason::Companion));
        assert_eq!(key("{a}:g"), Err(InvalidNameReason::Companion));
        assert_eq!(key("{a}:h"), Err(InvalidNameReason::Companion));
        assert!(key("a:q").is_ok());
        // Without a prefix, `a` and `{a}` would share the queue `{a}:q`.
        let without_prefix = |name: &str| LockKey::new("", &LockName::from(name));
        assert_eq!(without_prefix("{a}"), Err(InvalidNameReason::OnlyTag));
        assert_eq!(without_prefix("a").unwrap().queue(), "{a}:q");
        for name in ["{a}b", "b{a}"] {
            assert!(without_prefix(name).is_ok(), "{name}");
        }
        assert!(key("{a}").is_ok());
    }

    #[test]
    fn template_is_no_part_of_the_identity() {
        let plain = LockName::from("order:7");
        let templated = plain.clone().with_template("order:{id}");
        assert_eq!((plain.template(), &plain), (None, &templated));
        assert_eq!(plain.cmp(&templated), Ordering::Equal);
        let keys = [&plain, &templated].map(|name| LockKey::new("lock:", name).unwrap());
        assert_eq!(keys[0], keys[1]);
        assert_eq!(keys[1].template(), Some("order:{id}"));
        let other = LockName::from("order:8").with_template("order:{id}");
        assert_ne!(templated, other);
    }

    #[test]
    fn name_is_text() {
        let is_cart = |name: &dyn AsRef<str>| name.as_ref() == "{user1}:cart";
        assert!(is_cart(&LockName::from("{user1}:cart")));
    }

    #[test]
    fn braces_are_one_tag_or_an_error() {
        for bad in [
            "{", "}", "{}", "}{", "{a", "a}", "{a}{b}", "{a}}", "{{a}}", "{a{b}",
        ] {
            assert_eq!(key(bad), Err(InvalidNameReason::Braces), "{bad}");
        }
        for good in ["{a}", "x{a}", "{a}x", "x{a:b c}y"] {
            assert!(key(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn name_length_is_counted_in_bytes() {
        assert_eq!(key(""), Err(InvalidNameReason::Empty));
        assert!(key(&"x".repeat(1024)).is_ok());
        assert_eq!(key(&"x".repeat(1025)), Err(InvalidNameReason::TooLong));
        assert_eq!(key(&"é".repeat(513)), Err(InvalidNameReason::TooLong));
        assert!(key("a b\n\0 ключ 🔒").is_ok());
    }
}
