//! Makes the lock name of an annotated function.

use std::fmt::{self, Display, Write};

use lock_protocol::key::{InvalidNameReason, LockName};

/// One byte more than the longest name. A longer name is invalid, so it is not written to its end.
const LONGER_THAN_ANY_NAME: usize = 1025;

/// The value of a placeholder.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a lock name: it does not implement `Display`",
    label = "a placeholder of the name uses this value",
    note = "write another value: `name = lock_name!(\"order:{{}}\", expression)`",
    note = "an `Option` needs a value for `None`, such as `id.unwrap_or(0)`",
    note = "a struct needs a field, such as `{{order.id}}`; a type parameter needs the bound `Display`"
)]
pub trait Placeholder: Display {}

// Otherwise the compiler reports the missing `Display`, and not what to do about it.
#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> Placeholder for T {}

/// Returns a value of a generic type. The bound names a trait that the user knows.
#[must_use]
pub fn displayed<T: Display>(value: &T) -> &dyn Placeholder {
    value
}

/// A part of a name template.
#[derive(Clone, Copy)]
pub enum NamePart<'a> {
    /// Text that the name contains verbatim.
    Text(&'a str),
    /// A value that the name contains percent-encoded.
    Value(&'a dyn Placeholder),
}

/// Makes a name from the parts of a template, and records the template. When a value is empty or its
/// `Display` fails, every acquire rejects the name.
#[must_use]
pub fn name_from_template(template: &'static str, parts: &[NamePart<'_>]) -> LockName {
    name_from_parts(parts).with_template(template)
}

fn name_from_parts(parts: &[NamePart<'_>]) -> LockName {
    let mut name = PercentEncoder(String::new());
    for part in parts {
        match part {
            NamePart::Text(text) => name.0.push_str(text),
            NamePart::Value(value) => {
                let before = name.0.len();
                let written = write!(name, "{value}");
                if name.0.len() >= LONGER_THAN_ANY_NAME {
                    break;
                }
                let reason = if written.is_err() {
                    InvalidNameReason::BrokenValue
                } else if name.0.len() == before {
                    // Otherwise all calls with an empty value would share one lock by mistake.
                    InvalidNameReason::EmptyValue
                } else {
                    continue;
                };
                name.0.truncate(before);
                name.0.push_str("{}");
                return LockName::invalid(name.0, reason);
            }
        }
    }
    name.0.into()
}

/// The type of a name that is an expression.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot name a lock",
    label = "is not `Into<LockName>`",
    note = "write a template, such as `name = \"order:{{id}}\"`, or `name = lock_name!(\"order:{{}}\", expression)`"
)]
pub trait IntoLockName {
    /// Makes the name. The acquire checks it.
    fn into_lock_name(self) -> LockName;
}

#[diagnostic::do_not_recommend]
impl<N: Into<LockName>> IntoLockName for N {
    fn into_lock_name(self) -> LockName {
        self.into()
    }
}

/// Takes the name of an expression. When it contains a placeholder of one of `parameters`, it is a
/// template that was not expanded, and all calls would share it. Every acquire rejects it. The attribute
/// passes parameters only for a text of the code.
#[must_use]
pub fn name_from_expression(name: impl IntoLockName, parameters: &[&str]) -> LockName {
    let name = name.into_lock_name();
    if contains_placeholder(name.as_str(), parameters) {
        return LockName::invalid(name.as_str(), InvalidNameReason::UnexpandedTemplate);
    }
    name
}

fn contains_placeholder(name: &str, parameters: &[&str]) -> bool {
    let mut rest = name;
    while let Some((_, after)) = rest.split_once('{') {
        rest = after;
        let Some((inside, _)) = after.split_once('}') else {
            return false;
        };
        let head = inside.split(['.', ':']).next().unwrap_or_default().trim();
        let head = head.strip_prefix("r#").unwrap_or(head);
        if parameters.contains(&head) {
            return true;
        }
    }
    false
}

/// Adds a hash tag to a name: `{tag}:name`. The tag contains no brace: the attribute rejects braces
/// in its text, and values are encoded. An invalid tag or name stays invalid. The template is that of
/// the name.
#[must_use]
pub fn name_with_hash_tag(tag: LockName, name: LockName) -> LockName {
    if tag.invalid_reason().is_some() {
        return tag;
    }
    if name.invalid_reason().is_some() {
        return name;
    }
    if name.as_str().is_empty() {
        return LockName::invalid("", InvalidNameReason::Empty);
    }
    let tagged = LockName::from(format!("{{{tag}}}:{name}"));
    match name.template() {
        Some(template) => tagged.with_template(template),
        None => tagged,
    }
}

/// Percent-encodes all text that is written to it.
struct PercentEncoder(String);

impl Write for PercentEncoder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if is_kept(letter) {
                self.0.push(letter);
            } else {
                for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                    write!(self.0, "%{byte:02X}")?;
                }
            }
            if self.0.len() >= LONGER_THAN_ANY_NAME {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// Returns whether a value keeps this letter. Between two placeholders, the attribute requires a text with
/// which no encoded value begins.
fn is_kept(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '-' | '_' | '.')
        || (!c.is_ascii() && c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn written(parts: &[NamePart<'_>]) -> String {
        let name = name_from_template("t:{a}", parts);
        assert_eq!(name.template(), Some("t:{a}"));
        assert_eq!(name.invalid_reason(), None);
        name.as_str().to_owned()
    }

    #[test]
    fn text_is_verbatim_and_values_are_encoded() {
        let parts = [NamePart::Text("a{%:"), NamePart::Value(&"a{%:")];
        assert_eq!(written(&parts), "a{%:a%7B%25%3A");
        for (value, expected) in [
            ("AZaz09-_.", "AZaz09-_."),
            ("größe東京", "größe東京"),
            ("a b\n", "a%20b%0A"),
            ("–\u{1f512}", "%E2%80%93%F0%9F%94%92"),
            ("%3A", "%253A"),
        ] {
            assert_eq!(written(&[NamePart::Value(&value)]), expected);
        }
        assert_eq!(written(&[NamePart::Value(&-1.5)]), "-1.5");
    }

    #[test]
    fn different_values_make_different_names() {
        let values = ["a", "a:", ":a", "a%3A", "%3Aa", "a%", "%", ":", "{a}", "a}"];
        let mut names = Vec::new();
        for left in values {
            for right in values {
                names.push(written(&[
                    NamePart::Value(&left),
                    NamePart::Text(":"),
                    NamePart::Value(&right),
                ]));
            }
        }
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    proptest! {
        /// Between two values stands what the attribute accepts: a text with which no value begins.
        #[test]
        fn name_belongs_to_one_list_of_values(
            values in vec(any_value(), 1..5),
            separators in vec(any_separator(), 5),
        ) {
            let (start, separators) = (&separators[4], &separators[..values.len()]);
            let mut parts = vec![NamePart::Text(start)];
            for (value, separator) in values.iter().zip(separators) {
                parts.push(NamePart::Value(value));
                parts.push(NamePart::Text(separator));
            }
            let name = written(&parts);
            prop_assert_eq!(lists_of_values(&name[start.len()..], separators), [values]);
            // No value adds a brace or a separator to the name.
            let count = |text: &str| text.matches(['{', '}', ':', '/', ' ', '#']).count();
            let of_templates = count(start) + separators.iter().map(|it| count(it)).sum::<usize>();
            prop_assert_eq!(count(&name), of_templates);
        }
    }

    /// Makes values mostly from letters of templates, so that names are similar.
    fn any_value() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a:%]{1,3}",
            "[-_.a-z0-9:/{}%ü]{1,6}",
            "%(3A|25|7B){1,2}",
            "[25%]{1,4}",
            "\\PC{1,8}",
        ]
    }

    fn any_separator() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z%{}]{0,2}[:/ {}#][-_.a-z%]{0,2}",
            "[a25]{0,2}%[-%xf]",
            "%2[-%xf]",
        ]
    }

    /// Returns all lists of values that give this name, where a separator stands behind each value.
    fn lists_of_values(name: &str, separators: &[impl AsRef<str>]) -> Vec<Vec<String>> {
        let Some((separator, others)) = separators.split_first() else {
            return Vec::from_iter(name.is_empty().then(Vec::new));
        };
        let mut lists = Vec::new();
        for (at, _) in name.char_indices() {
            let (text, rest) = name.split_at(at);
            if let (Some(value), Some(rest)) =
                (decoded(text), rest.strip_prefix(separator.as_ref()))
            {
                for list in lists_of_values(rest, others) {
                    lists.push([vec![value.clone()], list].concat());
                }
            }
        }
        lists
    }

    /// Returns the value that gives this text.
    fn decoded(text: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let mut rest = text;
        while let Some((before, escaped)) = rest.split_once('%') {
            bytes.extend_from_slice(before.as_bytes());
            bytes.push(u8::from_str_radix(escaped.get(..2)?, 16).ok()?);
            rest = &escaped[2..];
        }
        bytes.extend_from_slice(rest.as_bytes());
        let value = String::from_utf8(bytes).ok()?;
        (!value.is_empty() && written(&[NamePart::Value(&value)]) == text).then_some(value)
    }

    /// The attribute refuses it as a separator.
    #[test]
    fn percent_sign_alone_does_not_separate() {
        let name = written(&[
            NamePart::Value(&"x"),
            NamePart::Text("%"),
            NamePart::Value(&"25%"),
            NamePart::Text(":"),
        ]);
        let lists = [["x", "25%"], ["x%", "25"]];
        assert_eq!(lists_of_values(&name, &["%", ":"]), lists);
    }

    struct Broken;

    impl Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half")?;
            Err(fmt::Error)
        }
    }

    #[test]
    fn empty_value_and_failed_display_have_different_errors() {
        let empty = name_from_template("a:{b}", &[NamePart::Text("a:"), NamePart::Value(&"")]);
        assert_eq!(empty.invalid_reason(), Some(InvalidNameReason::EmptyValue));
        let broken = name_from_template("a:{b}", &[NamePart::Text("a:"), NamePart::Value(&Broken)]);
        assert_eq!(
            broken.invalid_reason(),
            Some(InvalidNameReason::BrokenValue)
        );
        for name in [empty, broken] {
            assert_eq!(name.as_str(), "a:{}");
        }
    }

    struct Endless;

    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("xyz:")?;
            }
        }
    }

    #[test]
    fn endless_value_is_cut() {
        let name = written(&[NamePart::Value(&Endless), NamePart::Text("more")]);
        assert!((LONGER_THAN_ANY_NAME..2 * LONGER_THAN_ANY_NAME).contains(&name.len()));
    }

    #[test]
    fn hash_tag_is_added_before_the_name() {
        let tagged = |tag: &str, name: &str| name_with_hash_tag(tag.into(), name.into());
        assert_eq!(tagged("a", "b").as_str(), "{a}:b");
        let name = name_with_hash_tag("a".into(), LockName::from("b:1").with_template("b:{id}"));
        assert_eq!(
            (name.as_str(), name.template()),
            ("{a}:b:1", Some("b:{id}"))
        );
        assert_eq!(
            tagged("a", "").invalid_reason(),
            Some(InvalidNameReason::Empty)
        );
        let empty = || LockName::invalid("{}", InvalidNameReason::EmptyValue);
        let reason = Some(InvalidNameReason::EmptyValue);
        assert_eq!(
            name_with_hash_tag(empty(), "b".into()).invalid_reason(),
            reason
        );
        assert_eq!(
            name_with_hash_tag("a".into(), empty()).invalid_reason(),
            reason
        );
    }

    #[test]
    fn unexpanded_template_is_no_name() {
        let parameters = ["id", "self", "order"];
        let refused = Some(InvalidNameReason::UnexpandedTemplate);
        for text in [
            "order:{id}",
            "{id}",
            "a:{ id }:b",
            "{order.customer.0}",
            "{self.id}",
            "{id:?}",
            "{r#id}",
            "{other}:{id}",
            "{{id}}",
        ] {
            assert_eq!(
                name_from_expression(text, &parameters).invalid_reason(),
                refused,
                "{text}"
            );
        }
        for text in [
            "order:id",
            "{user}:cart",
            "{ide}",
            "id}",
            "{id",
            "{}",
            "{a}id}",
            "",
        ] {
            assert_eq!(
                name_from_expression(text, &parameters).invalid_reason(),
                None,
                "{text}"
            );
            assert_eq!(name_from_expression(text, &[]).as_str(), text);
        }
        assert_eq!(name_from_expression("{id}", &[]).invalid_reason(), None);
    }
}
