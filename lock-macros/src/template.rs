//! Lock names with placeholders: `"order:{order.id}"`.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::LitStr;
use syn::ext::IdentExt;
use syn::parse::Parser;

use crate::error::Faults;
use crate::scope::Scope;
use crate::value::Krate;

/// The limit that `lock_core` sets to a name.
const MAX_NAME: usize = 1024;

const FIELD_PATHS: &str = "only field paths are allowed in `{...}`; for other expressions use \
                           `name = format!(...)`";
const HASH_TAG: &str = "braces in a lock name may only form one hash tag, such as `{{user1}}:cart`";
const COMPANION: &str =
    "a lock name with a hash tag may not end in `:q`, `:f`, `:g` or `:h`; append another word";
const EMPTY_TAG: &str = "`hash_tag` is empty";
const TAG_IN_BRACES: &str = "write `hash_tag` without its braces, such as `hash_tag = \"user1\"`";
const TWO_TAGS: &str = "`hash_tag` cannot be combined with braces in `name`";
const TOO_LONG: &str = "lock name is longer than 1024 bytes";

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value { head: String, fields: Vec<Field> },
}

#[derive(Debug, PartialEq, Eq)]
enum Field {
    Named(String),
    Index(u32),
}

/// A template whose text was read; whether its placeholders exist is asked by `resolve`.
pub(crate) struct Template {
    parts: Vec<Part>,
    span: Span,
}

impl Template {
    pub(crate) fn new(literal: &LitStr, faults: &mut Faults) -> Option<Self> {
        let span = literal.span();
        let (parts, found) = parse(&literal.value());
        if found.is_empty() {
            return Some(Self { parts, span });
        }
        for message in found {
            faults.at(span, message);
        }
        None
    }

    /// Reads what is to stand between the braces of a hash tag.
    pub(crate) fn hash_tag(literal: &LitStr, faults: &mut Faults) -> Option<Self> {
        let span = literal.span();
        let (parts, mut found) = read(&literal.value());
        let braces = |part: &Part| matches!(part, Part::Text(text) if text.contains(['{', '}']));
        if found.is_empty() {
            if parts.is_empty() {
                found.push(EMPTY_TAG.into());
            } else if parts.iter().any(braces) {
                found.push(TAG_IN_BRACES.into());
            }
        }
        if found.is_empty() {
            return Some(Self { parts, span });
        }
        for message in found {
            faults.at(span, message);
        }
        None
    }

    /// Checks what a name may not be when a hash tag is put before it.
    pub(crate) fn check_behind_a_tag(&self, faults: &mut Faults) {
        let name = sample(&self.parts);
        if name.contains(['{', '}']) {
            faults.at(self.span, TWO_TAGS);
        } else if is_companion(&name) {
            faults.at(self.span, COMPANION);
        }
    }

    /// Checks that each placeholder begins with a parameter or `self`.
    pub(crate) fn resolve(&self, scope: &Scope, faults: &mut Faults) {
        for part in &self.parts {
            if let Part::Value { head, .. } = part
                && scope.find(head).is_none()
            {
                faults.at(self.span, scope.unknown(head));
            }
        }
    }

    /// An expression of the type that `macro_support::acquire` takes as a name.
    pub(crate) fn expand(&self, krate: &Krate, scope: &Scope) -> TokenStream {
        let site = Span::mixed_site().located_at(self.span);
        let krate = krate.at(site);
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => {
                let mut text = Literal::string(text);
                text.set_span(site);
                quote_spanned!(site=> #krate::macro_support::Part::Text(#text))
            }
            Part::Value { head, fields } => {
                // The token of the parameter itself, or a parameter that was named inside a
                // `macro_rules!` macro would not be found.
                let head = scope.find(head);
                let fields = fields.iter().map(|field| field.expand(site));
                quote_spanned!(site=> #krate::macro_support::Part::Value(&#head #(.#fields)*))
            }
        });
        quote_spanned!(site=> #krate::macro_support::template(&[#(#parts),*]))
    }
}

impl Field {
    fn parse(text: &str) -> Option<Self> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let index = text.parse().ok()?;
            let canonical = text.len() == 1 || !text.starts_with('0');
            return canonical.then_some(Self::Index(index));
        }
        let name = word(text)?;
        let keyword_of_paths = matches!(name.as_str(), "self" | "Self" | "super" | "crate" | "_");
        (!keyword_of_paths).then_some(Self::Named(name))
    }

    fn expand(&self, site: Span) -> TokenStream {
        match self {
            Self::Index(index) => {
                let mut index = Literal::u32_unsuffixed(*index);
                index.set_span(site);
                index.into_token_stream()
            }
            Self::Named(name) if syn::parse_str::<Ident>(name).is_ok() => {
                Ident::new(name, site).into_token_stream()
            }
            Self::Named(name) => Ident::new_raw(name, site).into_token_stream(),
        }
    }
}

/// An identifier without its `r#`.
fn word(text: &str) -> Option<String> {
    let bare = text.strip_prefix("r#").unwrap_or(text);
    // Asked before the compiler's lexer is, which reports what it cannot read by itself.
    let plausible = bare.chars().all(|c| c == '_' || c.is_alphanumeric());
    if !plausible || bare.starts_with(|c: char| c.is_numeric()) {
        return None;
    }
    Ident::parse_any
        .parse_str(bare)
        .ok()
        .map(|ident| ident.to_string())
}

/// Reads a name: its parts, or everything that is wrong with it.
fn parse(text: &str) -> (Vec<Part>, Vec<String>) {
    let (parts, mut faults) = read(text);
    if faults.is_empty() {
        faults.extend(shape(&parts).map(str::to_owned));
    }
    (parts, faults)
}

/// Reads a template: its parts, and what is wrong with its braces and placeholders.
fn read(text: &str) -> (Vec<Part>, Vec<String>) {
    let mut parts = Parts::default();
    let mut faults = Vec::new();
    let mut rest = text;
    while let Some(found) = rest.find(['{', '}']) {
        let (before, tail) = rest.split_at(found);
        parts.text(before);
        if let Some(after) = tail.strip_prefix("{{") {
            parts.text("{");
            rest = after;
        } else if let Some(after) = tail.strip_prefix("}}") {
            parts.text("}");
            rest = after;
        } else if let Some(after) = tail.strip_prefix('}') {
            faults.push("unmatched `}`; write `}}` for a literal brace".into());
            rest = after;
        } else {
            let inside = &tail[1..];
            let end = inside.find(['{', '}']).unwrap_or(inside.len());
            let (inside, after) = inside.split_at(end);
            if let Some(after) = after.strip_prefix('}') {
                match placeholder(inside) {
                    Ok((head, fields)) => {
                        faults.extend(parts.value(inside, head, fields));
                    }
                    Err(fault) => faults.push(fault),
                }
                rest = after;
            } else {
                faults.push("unmatched `{`; write `{{` for a literal brace".into());
                rest = after;
            }
        }
    }
    parts.text(rest);
    (parts.all, faults)
}

#[derive(Default)]
struct Parts {
    all: Vec<Part>,
    /// The last placeholder, as it was written.
    last: Option<String>,
}

impl Parts {
    fn text(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Part::Text(text)) = self.all.last_mut() {
            text.push_str(more);
        } else {
            self.all.push(Part::Text(more.into()));
        }
    }

    /// Adds a placeholder; the answer is a fault when its value could run into the one before.
    fn value(&mut self, written: &str, head: String, fields: Vec<Field>) -> Option<String> {
        let apart = match self.all.last() {
            None => true,
            Some(Part::Value { .. }) => false,
            Some(Part::Text(text)) => text.chars().any(|c| !stands_for_itself(c)),
        };
        self.all.push(Part::Value { head, fields });
        let before = self.last.replace(written.trim().into())?;
        let written = written.trim();
        (!apart).then(|| {
            format!("nothing separates `{{{before}}}` from `{{{written}}}`; put `:` between them")
        })
    }
}

/// Whether a value may hold this letter as it is; `lock_core` encodes all others.
fn stands_for_itself(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '-' | '_' | '.')
        || (!c.is_ascii() && c.is_alphabetic())
}

fn placeholder(inside: &str) -> Result<(String, Vec<Field>), String> {
    let written = inside.trim();
    if written.contains("::") {
        return Err(FIELD_PATHS.into());
    }
    if let Some(colon) = written.find(':') {
        let spec = &written[colon..];
        return Err(format!(
            "format spec `{spec}` is not allowed in a lock name"
        ));
    }
    if written.is_empty() {
        return Err("empty `{}`; name a parameter".into());
    }
    let mut steps = written.split('.');
    let head = steps.next().unwrap_or_default();
    if !head.is_empty() && head.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "positional `{{{written}}}` is not supported; name a parameter"
        ));
    }
    let head = word(head).ok_or(FIELD_PATHS)?;
    let fields = steps.map(Field::parse).collect::<Option<_>>();
    Ok((head, fields.ok_or(FIELD_PATHS)?))
}

/// A name that the template could give: values are never empty and hold no brace.
fn sample(parts: &[Part]) -> String {
    let pieces = parts.iter().map(|part| match part {
        Part::Text(text) => text.as_str(),
        Part::Value { .. } => "x",
    });
    pieces.collect()
}

/// Whether it would be the name of another lock's queue, counter, grace or holders.
fn is_companion(name: &str) -> bool {
    [":q", ":f", ":g", ":h"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// What `lock_core` would refuse whatever the values are.
fn shape(parts: &[Part]) -> Option<&'static str> {
    let sample = sample(parts);
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
    is_companion(&sample).then_some(COMPANION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    fn value(path: &str) -> Part {
        let mut steps = path.split('.');
        Part::Value {
            head: steps.next().map(Into::into).unwrap_or_default(),
            fields: steps.filter_map(Field::parse).collect(),
        }
    }

    fn parts(template: &str) -> Vec<Part> {
        let (parts, faults) = parse(template);
        assert_eq!(faults, <[String; 0]>::default(), "{template}");
        parts
    }

    fn faults(template: &str) -> Vec<String> {
        parse(template).1
    }

    #[test]
    fn text_stands_verbatim() {
        assert_eq!(parts("nightly"), [text("nightly")]);
        assert_eq!(parts("a b/ü%20"), [text("a b/ü%20")]);
    }

    #[test]
    fn placeholders_are_paths() {
        assert_eq!(parts("order:{id}"), [text("order:"), value("id")]);
        assert_eq!(parts("{id}"), [value("id")]);
        assert_eq!(parts("{ id }"), [value("id")]);
        assert_eq!(parts("{self.shop.0}:x"), [value("self.shop.0"), text(":x")]);
        assert_eq!(
            parts("{a.0.1.b}"),
            [Part::Value {
                head: "a".into(),
                fields: vec![Field::Index(0), Field::Index(1), Field::Named("b".into())],
            }]
        );
        assert_eq!(parts("{größe}"), [value("größe")]);
    }

    #[test]
    fn raw_identifiers_are_unraw() {
        assert_eq!(parts("{r#type}"), [value("type")]);
        assert_eq!(parts("{type}"), [value("type")]);
        assert_eq!(parts("{a.r#type}"), [value("a.type")]);
    }

    #[test]
    fn doubled_braces_are_literal() {
        assert_eq!(parts("{{u}}:cart"), [text("{u}:cart")]);
        assert_eq!(parts("{{{u}}}:c"), [text("{"), value("u"), text("}:c")]);
    }

    #[test]
    fn single_braces_are_unmatched() {
        let open = "unmatched `{`; write `{{` for a literal brace";
        let close = "unmatched `}`; write `}}` for a literal brace";
        assert_eq!(faults("a{"), [open]);
        assert_eq!(faults("a{b"), [open]);
        assert_eq!(faults("a}"), [close]);
        assert_eq!(faults("{a}}"), [close]);
        assert_eq!(faults("{{a}"), [close]);
        assert_eq!(faults("{a{b}"), [open]);
        assert_eq!(faults("}{"), [close, open]);
    }

    #[test]
    fn what_format_would_take_is_refused() {
        assert_eq!(faults("{}"), ["empty `{}`; name a parameter"]);
        assert_eq!(faults("{ }"), ["empty `{}`; name a parameter"]);
        assert_eq!(
            faults("{0}"),
            ["positional `{0}` is not supported; name a parameter"]
        );
        assert_eq!(
            faults("{0.a}"),
            ["positional `{0.a}` is not supported; name a parameter"]
        );
        assert_eq!(
            faults("{x:?}"),
            ["format spec `:?` is not allowed in a lock name"]
        );
        assert_eq!(
            faults("{x.y:>8}"),
            ["format spec `:>8` is not allowed in a lock name"]
        );
        assert_eq!(
            faults("{:?}"),
            ["format spec `:?` is not allowed in a lock name"]
        );
    }

    #[test]
    fn only_field_paths() {
        for template in [
            "{a.b()}",
            "{a + b}",
            "{a[0]}",
            "{*a}",
            "{a::B}",
            "{a.}",
            "{.a}",
            "{a..b}",
            "{&a}",
            "{a.01}",
            "{a.self}",
            "{a b}",
            "{a!}",
            "{\"a\"}",
            "{r#}",
            "{a.99999999999}",
            "{1a}",
        ] {
            assert_eq!(faults(template), [FIELD_PATHS], "{template}");
        }
    }

    #[test]
    fn values_are_kept_apart() {
        for template in ["{a}{b}", "{a}x{b}", "{a}-{b}", "{a}_._{b}", "{a}ü{b}"] {
            assert_eq!(
                faults(template),
                ["nothing separates `{a}` from `{b}`; put `:` between them"],
                "{template}"
            );
        }
        for template in [
            "{a}:{b}",
            "{a}x/y{b}",
            "{a} {b}",
            "{a}%{b}",
            "{a}…{b}",
            "{a}{{x}}{b}",
        ] {
            assert_eq!(faults(template), <[String; 0]>::default(), "{template}");
        }
        assert_eq!(
            faults("{a.b}{ c }{d}"),
            [
                "nothing separates `{a.b}` from `{c}`; put `:` between them",
                "nothing separates `{c}` from `{d}`; put `:` between them"
            ]
        );
    }

    #[test]
    fn all_faults_of_a_template_are_reported() {
        assert_eq!(faults("{}:{0}:{x:?}:{a()}:}").len(), 5);
    }

    #[test]
    fn names_that_no_value_can_mend() {
        assert_eq!(faults(""), ["lock name is empty"]);
        assert_eq!(faults(&"x".repeat(1025)), [TOO_LONG]);
        assert_eq!(faults(&"x".repeat(1024)), <[String; 0]>::default());
        for template in [
            "{{",
            "}}",
            "{{}}",
            "}}{{",
            "{{a}}{{b}}",
            "{{a{{b}}",
            "{{a}}}}",
        ] {
            assert_eq!(faults(template), [HASH_TAG], "{template}");
        }
        assert_eq!(faults("{{a}}:q"), [COMPANION]);
        assert_eq!(faults("a:q"), <[String; 0]>::default());
    }

    #[test]
    fn expands_to_parts() {
        let scope = Scope::sample(&["id", "r#type"], true);
        let mut found = Faults::default();
        let literal = syn::parse_quote!("a:{id}:{type.0}:{self.r#fn}");
        let template = Template::new(&literal, &mut found);
        let tokens = template.map(|template| {
            template.resolve(&scope, &mut found);
            template.expand(&Krate::default(), &scope).to_string()
        });
        assert_eq!(found.messages(), <[&str; 0]>::default());
        let tokens = tokens.unwrap_or_default();
        for expected in [
            ":: lock_core :: macro_support :: template (& [",
            "Part :: Text (\"a:\")",
            "Part :: Value (& id)",
            "Part :: Value (& r#type . 0)",
            "Part :: Value (& self . r#fn)",
        ] {
            assert!(tokens.contains(expected), "{expected} in {tokens}");
        }
    }

    #[test]
    fn every_unknown_placeholder_is_reported() {
        let scope = Scope::sample(&["order_id"], false);
        let mut found = Faults::default();
        let literal = syn::parse_quote!("{ordr_id}:{self.x}:{order_id}");
        if let Some(template) = Template::new(&literal, &mut found) {
            template.resolve(&scope, &mut found);
        }
        assert_eq!(
            found.messages(),
            [
                "no parameter named `ordr_id`; did you mean `order_id`?",
                "method has no `self`"
            ]
        );
    }
}
