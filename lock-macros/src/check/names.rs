//! Checks the names of locks: their form, and the parameters that they name.

use std::collections::BTreeSet;

use proc_macro2::Span;
use quote::ToTokens;
use syn::Expr;
use syn::spanned::Spanned;

use crate::errors::Errors;
use crate::parse::args::Args;
use crate::parse::scope::Scope;
use crate::parse::template::{PlaceholderHead, Template, TemplatePart};
use crate::parse::values::{NameArg, NamesArg, shown};

/// The longest name that `lock_core` accepts.
const MAX_NAME: usize = 1024;

/// The most names of a list.
const MAX_NAMES: usize = 64;

const NO_NAMES: &str =
    "`name` lists no lock; write one name, or several: `name = [\"a:{x}\", \"b:{y}\"]`";
const TOO_MANY_NAMES: &str = "`name` lists at most 64 locks";
const HASH_TAG: &str = "braces in a lock name may only form one hash tag, such as `{{user1}}:cart`";
const RESERVED_SUFFIX: &str =
    "a lock name with a hash tag may not end in `:q`, `:f`, `:g` or `:h`; append another word";
const EMPTY_TAG: &str = "`hash_tag` is empty";
const TAG_IN_BRACES: &str = "write `hash_tag` without its braces, such as `hash_tag = \"user1\"`";
const TWO_TAGS: &str = "`hash_tag` cannot be combined with braces in `name`";
const TOO_LONG: &str = "lock name is longer than 1024 bytes";

/// Checks `name` and `hash_tag`.
pub(crate) fn names(args: &Args, scope: &Scope, errors: &mut Errors) {
    if let Some(NamesArg::List(names, brackets)) = &args.name {
        list(names, *brackets, errors);
    }
    for name in args.names() {
        if let NameArg::Template(name) = name
            && form(name, errors)
        {
            parameters(name, "name", scope, errors);
            if args.hash_tag.is_some() {
                form_behind_a_hash_tag(name, errors);
            }
        }
    }
    if let Some(tag) = &args.hash_tag
        && form_of_hash_tag(tag, errors)
    {
        parameters(tag, "hash_tag", scope, errors);
    }
}

/// Checks how many names a list has, and that no two are certainly equal.
fn list(names: &[NameArg], brackets: Span, errors: &mut Errors) {
    if names.is_empty() {
        errors.at(brackets, NO_NAMES);
    } else if names.len() > MAX_NAMES {
        errors.at(brackets, TOO_MANY_NAMES);
        return;
    }
    let mut known = BTreeSet::new();
    for name in names {
        let (parts, written, span) = match name {
            NameArg::Template(name) => (parts(name), format!("{:?}", name.written), name.span),
            NameArg::Expression(name) => match place(name) {
                Some(parts) => (vec![parts], format!("`{}`", shown(name)), name.span()),
                None => continue,
            },
        };
        if !known.insert(parts) {
            errors.at(span, format!("the name {written} is listed twice"));
        }
    }
}

/// Returns what two equal templates have in common, however their placeholders are written.
fn parts(name: &Template) -> Vec<String> {
    let parts = name.parts.iter().map(|part| match part {
        TemplatePart::Text(text) => format!("text {text}"),
        TemplatePart::Value { head, fields, .. } => format!("value {head:?} {fields:?}"),
    });
    parts.collect()
}

/// Returns what two expressions have in common that name the same constant, variable or field. Calls
/// may return another name each time.
fn place(name: &Expr) -> Option<String> {
    match name {
        Expr::Path(path) => Some(path.to_token_stream().to_string().replace("r#", "")),
        Expr::Field(field) => {
            let base = place(&field.base)?;
            Some(format!("{base} . {}", field.member.to_token_stream()).replace("r#", ""))
        }
        Expr::Reference(inner) => place(&inner.expr),
        Expr::Paren(inner) => place(&inner.expr),
        Expr::Group(inner) => place(&inner.expr),
        _ => None,
    }
}

/// Checks the properties of a name that do not depend on the values. Returns whether they hold.
pub(crate) fn form(name: &Template, errors: &mut Errors) -> bool {
    let message = error_of_form(&sample(&name.parts));
    if let Some(message) = message {
        errors.at(name.span, message);
    }
    message.is_none()
}

fn form_behind_a_hash_tag(name: &Template, errors: &mut Errors) {
    let sample = sample(&name.parts);
    if sample.contains(['{', '}']) {
        errors.at(name.span, TWO_TAGS);
    } else if has_reserved_suffix(&sample) {
        errors.at(name.span, RESERVED_SUFFIX);
    }
}

fn form_of_hash_tag(tag: &Template, errors: &mut Errors) -> bool {
    let sample = sample(&tag.parts);
    let message = if sample.is_empty() {
        Some(EMPTY_TAG)
    } else if sample.contains(['{', '}']) {
        Some(TAG_IN_BRACES)
    } else {
        None
    };
    if let Some(message) = message {
        errors.at(tag.span, message);
    }
    message.is_none()
}

/// Checks that each placeholder begins with a parameter or `self`.
fn parameters(template: &Template, option: &str, scope: &Scope, errors: &mut Errors) {
    for head in template.heads() {
        if scope.find(&head).is_some() {
            continue;
        }
        let message = if scope.is_constant(&head) && option == "name" && !scope.is_struct() {
            let advice = with_constants_as_expressions(template, scope);
            format!("no parameter named `{head}`; for a constant write `name = {advice}`")
        } else {
            scope.unknown(&head)
        };
        errors.at(template.span, message);
    }
}

/// Writes a template as the equivalent `lock_name!`, which also takes constants.
fn with_constants_as_expressions(template: &Template, scope: &Scope) -> String {
    let mut text = template.written.clone();
    let mut expressions = String::new();
    for part in &template.parts {
        if let TemplatePart::Value {
            head: PlaceholderHead::Named(head),
            written,
            ..
        } = part
            && scope.find(head).is_none()
            && scope.is_constant(head)
        {
            text = text.replacen(&format!("{{{written}}}"), "{}", 1);
            expressions.push_str(", ");
            expressions.push_str(written.trim());
        }
    }
    format!("lock_name!({text:?}{expressions})")
}

/// Returns a name that the template could produce. Values are not empty and contain no brace.
fn sample(parts: &[TemplatePart]) -> String {
    let pieces = parts.iter().map(|part| match part {
        TemplatePart::Text(text) => text.as_str(),
        TemplatePart::Value { .. } => "x",
    });
    pieces.collect()
}

/// Returns whether the name could also name the queue, counter, grace or holders of another lock.
fn has_reserved_suffix(name: &str) -> bool {
    [":q", ":f", ":g", ":h"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn error_of_form(sample: &str) -> Option<&'static str> {
    if sample.is_empty() {
        return Some("lock name is empty");
    }
    if sample.len() > MAX_NAME {
        return Some(TOO_LONG);
    }
    if !sample.contains(['{', '}']) {
        return None;
    }
    let tag = sample
        .split_once('{')
        .filter(|(before, _)| !before.contains('}'))
        .and_then(|(_, rest)| rest.split_once('}'));
    let whole = tag.is_some_and(|(tag, after)| {
        !tag.is_empty() && !tag.contains('{') && !after.contains(['{', '}'])
    });
    if !whole {
        return Some(HASH_TAG);
    }
    has_reserved_suffix(sample).then_some(RESERVED_SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(name: &str) -> Vec<String> {
        let mut errors = Errors::default();
        let literal = syn::parse_quote!(#name);
        let template = Template::of_name(&literal, &mut errors);
        let template = template.expect("it is well formed");
        form(&template, &mut errors);
        errors.messages()
    }

    #[test]
    fn invalid_forms_of_a_name_are_rejected() {
        assert_eq!(errors(""), ["lock name is empty"]);
        assert_eq!(errors(&"x".repeat(1025)), [TOO_LONG]);
        assert_eq!(errors(&"x".repeat(1024)), <[String; 0]>::default());
        for template in [
            "{{",
            "}}",
            "{{}}",
            "}}{{",
            "{{a}}{{b}}",
            "{{a{{b}}",
            "{{a}}}}",
        ] {
            assert_eq!(errors(template), [HASH_TAG], "{template}");
        }
        assert_eq!(errors("{{a}}:q"), [RESERVED_SUFFIX]);
        assert_eq!(errors("a:q"), <[String; 0]>::default());
    }

    #[test]
    fn every_unknown_placeholder_is_reported() {
        let scope = Scope::sample(&["order_id"], false);
        let mut errors = Errors::default();
        let literal = syn::parse_quote!("{ordr_id}:{self.x}:{order_id}");
        let template = Template::of_name(&literal, &mut errors);
        parameters(
            &template.expect("it is well formed"),
            "name",
            &scope,
            &mut errors,
        );
        assert_eq!(
            errors.messages(),
            [
                "no parameter named `ordr_id`; did you mean `order_id`?",
                "function has no `self`; name a parameter, such as `{order_id}`"
            ]
        );
    }
}
