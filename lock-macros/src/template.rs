//! Lock names with placeholders: `"order:{order.id}"`.

use proc_macro2::{Ident, Literal, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::LitStr;

use crate::errors::Errors;
use crate::scope::Scope;
use crate::value::CratePath;

/// The limit that `lock_core` sets to a name.
const MAX_NAME: usize = 1024;

const HASH_TAG: &str = "braces in a lock name may only form one hash tag, such as `{{user1}}:cart`";
const COMPANION: &str =
    "a lock name with a hash tag may not end in `:q`, `:f`, `:g` or `:h`; append another word";
const EMPTY_TAG: &str = "`hash_tag` is empty";
const TAG_IN_BRACES: &str = "write `hash_tag` without its braces, such as `hash_tag = \"user1\"`";
const TWO_TAGS: &str = "`hash_tag` cannot be combined with braces in `name`";
const TOO_LONG: &str = "lock name is longer than 1024 bytes";

#[derive(Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Value {
        head: PlaceholderHead,
        fields: Vec<FieldAccess>,
        /// As it was written, without its braces.
        written: String,
    },
}

/// What a placeholder begins with.
#[derive(Debug, PartialEq, Eq)]
enum PlaceholderHead {
    Named(String),
    /// `{}` in `lock_name!`: the next expression.
    Next,
}

#[derive(Debug, PartialEq, Eq)]
enum FieldAccess {
    Named(String),
    Index(u32),
}

/// Where a template stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TemplateKind {
    /// `name = ".."`, where each placeholder names a parameter, as in `hash_tag`.
    Name,
    HashTag,
    /// `lock_name!(".."`, where `{}` takes the next expression.
    LockName,
}

impl TemplateKind {
    fn only_field_paths(self) -> &'static str {
        match self {
            Self::Name => {
                "only field paths are allowed in `{...}`; for other expressions use \
                 `name = lock_name!(\"...\", expr)`"
            }
            Self::HashTag => "only field paths are allowed in `{...}`",
            Self::LockName => {
                "only field paths are allowed in `{...}`; for other expressions write `{}`, and \
                 the expression after the template"
            }
        }
    }

    fn no_await(self) -> &'static str {
        match self {
            Self::Name => "`.await` is not allowed in `name`",
            Self::HashTag => "`.await` is not allowed in `hash_tag`",
            Self::LockName => "`.await` is not allowed in `{...}`; await before the name is made",
        }
    }
}

/// A template whose text was read; whether its placeholders exist is asked by `resolve`.
pub(crate) struct Template {
    parts: Vec<TemplatePart>,
    written: String,
    span: Span,
}

impl Template {
    pub(crate) fn new(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        Self::parsed(literal, parse(&literal.value(), TemplateKind::Name), errors)
    }

    /// Reads the template of `lock_name!`.
    pub(crate) fn of_lock_name(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        Self::parsed(
            literal,
            parse(&literal.value(), TemplateKind::LockName),
            errors,
        )
    }

    /// Reads what is to stand between the braces of a hash tag.
    pub(crate) fn hash_tag(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        let (parts, mut found) = read(&literal.value(), TemplateKind::HashTag);
        let braces = |part: &TemplatePart| matches!(part, TemplatePart::Text(text) if text.contains(['{', '}']));
        if found.is_empty() {
            if parts.is_empty() {
                found.push(EMPTY_TAG.into());
            } else if parts.iter().any(braces) {
                found.push(TAG_IN_BRACES.into());
            }
        }
        Self::parsed(literal, (parts, found), errors)
    }

    fn parsed(
        literal: &LitStr,
        (parts, found): (Vec<TemplatePart>, Vec<String>),
        errors: &mut Errors,
    ) -> Option<Self> {
        let span = literal.span();
        if found.is_empty() {
            return Some(Self {
                parts,
                written: literal.value(),
                span,
            });
        }
        for message in found {
            errors.at(span, message);
        }
        None
    }

    /// Checks what a name may not be when a hash tag is put before it.
    pub(crate) fn check_behind_a_tag(&self, errors: &mut Errors) {
        let name = sample(&self.parts);
        if name.contains(['{', '}']) {
            errors.at(self.span, TWO_TAGS);
        } else if is_companion(&name) {
            errors.at(self.span, COMPANION);
        }
    }

    /// Checks that each placeholder begins with a parameter or `self`.
    pub(crate) fn resolve(&self, option: &str, scope: &Scope, errors: &mut Errors) {
        for part in &self.parts {
            if let TemplatePart::Value {
                head: PlaceholderHead::Named(head),
                ..
            } = part
                && scope.find(head).is_none()
            {
                let message = if scope.is_constant(head) && option == "name" {
                    let advice = self.with_constants_as_expressions(scope);
                    format!("no parameter named `{head}`; for a constant write `name = {advice}`")
                } else {
                    scope.unknown(head)
                };
                errors.at(self.span, message);
            }
        }
    }

    /// The `lock_name!` that says the same, with constants where it takes them.
    fn with_constants_as_expressions(&self, scope: &Scope) -> String {
        let mut template = self.written.clone();
        let mut expressions = String::new();
        for part in &self.parts {
            if let TemplatePart::Value {
                head: PlaceholderHead::Named(head),
                written,
                ..
            } = part
                && scope.find(head).is_none()
                && scope.is_constant(head)
            {
                template = template.replacen(&format!("{{{written}}}"), "{}", 1);
                expressions.push_str(", ");
                expressions.push_str(written.trim());
            }
        }
        format!("lock_name!({template:?}{expressions})")
    }

    /// How many expressions it takes.
    pub(crate) fn expressions(&self) -> usize {
        let next = |part: &&TemplatePart| {
            matches!(
                part,
                TemplatePart::Value {
                    head: PlaceholderHead::Next,
                    ..
                }
            )
        };
        self.parts.iter().filter(next).count()
    }

    /// What its placeholders begin with.
    pub(crate) fn heads(&self) -> impl Iterator<Item = String> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Value {
                head: PlaceholderHead::Named(head),
                ..
            } => Some(head.clone()),
            _ => None,
        })
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// An expression of the type that `macro_support::acquire` takes as a name.
    pub(crate) fn expand(&self, krate: &CratePath, scope: &Scope) -> TokenStream {
        // The token of the parameter itself, or a parameter that was named inside a
        // `macro_rules!` macro would not be found.
        self.expand_with(krate, |head| match head {
            PlaceholderHead::Named(name) => scope.find(name).into_token_stream(),
            PlaceholderHead::Next => TokenStream::new(),
        })
    }

    /// As [`expand`](Self::expand), for `lock_name!`: names are those of its place, and `{}` takes
    /// the next of `expressions`.
    pub(crate) fn expand_lock_name(
        &self,
        krate: &CratePath,
        expressions: impl IntoIterator<Item = TokenStream>,
    ) -> TokenStream {
        let mut expressions = expressions.into_iter();
        let site = Span::mixed_site().located_at(self.span);
        let (mut values, mut names) = (Vec::new(), Vec::new());
        let name = self.expand_with(krate, |head| match head {
            PlaceholderHead::Named(name) if name == "self" => {
                Ident::new("self", self.span).into_token_stream()
            }
            PlaceholderHead::Named(name) => identifier(name, self.span).into_token_stream(),
            PlaceholderHead::Next => {
                let value = expressions.next().unwrap_or_default();
                let first: Option<TokenTree> = value.clone().into_iter().next();
                let site = first.map_or(site, |first| site.located_at(first.span()));
                let number = names.len();
                let name = Ident::new(&format!("__distributed_lock_value_{number}"), site);
                values.push(value);
                names.push(name.clone());
                quote_spanned!(site=> *#name)
            }
        });
        // As `format!` does: the values are evaluated before they become trait objects, and none of
        // them is left when the name is there, so that it may stand before an `.await`.
        let result = Ident::new("__distributed_lock_name", site);
        quote_spanned! {site=> {
            let #result = match (#(&#values,)*) {
                (#(#names,)*) => #name,
            };
            #result
        }}
    }

    fn expand_with(
        &self,
        krate: &CratePath,
        mut value: impl FnMut(&PlaceholderHead) -> TokenStream,
    ) -> TokenStream {
        let site = Span::mixed_site().located_at(self.span);
        let krate = krate.at(site);
        let parts = self.parts.iter().map(|part| match part {
            TemplatePart::Text(text) => {
                let mut text = Literal::string(text);
                text.set_span(site);
                quote_spanned!(site=> #krate::macro_support::NamePart::Text(#text))
            }
            TemplatePart::Value { head, fields, .. } => {
                let head = value(head);
                // The compiler says of a whole expression that it is not `Display`, and would point
                // at the whole template: it points at the parameter instead.
                let first: Option<TokenTree> = head.clone().into_iter().next();
                let head_site = first.map_or(site, |first| site.located_at(first.span()));
                let part = quote_spanned!(head_site=> #krate::macro_support::NamePart::Value);
                if fields.is_empty() {
                    return quote_spanned!(head_site=> #part(&#head));
                }
                let fields = fields.iter().map(|field| field.expand(site));
                let value = Ident::new("__distributed_lock_value", head_site);
                quote_spanned!(head_site=> match &#head #(.#fields)* { #value => #part(#value) })
            }
        });
        quote_spanned!(site=> #krate::macro_support::name_from_template(&[#(#parts),*]))
    }
}

impl FieldAccess {
    fn parse(text: &str) -> Option<Self> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let index = text.parse().ok()?;
            let canonical = text.len() == 1 || !text.starts_with('0');
            return canonical.then_some(Self::Index(index));
        }
        let name = word(text)?;
        (!is_path_keyword(&name)).then_some(Self::Named(name))
    }

    fn expand(&self, site: Span) -> TokenStream {
        match self {
            Self::Index(index) => {
                let mut index = Literal::u32_unsuffixed(*index);
                index.set_span(site);
                index.into_token_stream()
            }
            Self::Named(name) => identifier(name, site).into_token_stream(),
        }
    }
}

/// Whether it has no raw form: it is never a field, and only `self` is a variable.
fn is_path_keyword(name: &str) -> bool {
    matches!(name, "self" | "Self" | "super" | "crate" | "_")
}

/// The identifier, raw where the name is a keyword in any edition: the span decides which one
/// applies, and it may be that of this crate.
fn identifier(name: &str, site: Span) -> Ident {
    if name != "gen" && syn::parse_str::<Ident>(name).is_ok() {
        Ident::new(name, site)
    } else {
        Ident::new_raw(name, site)
    }
}

/// An identifier without its `r#`, as the compiler writes it.
fn word(text: &str) -> Option<String> {
    let bare = text.strip_prefix("r#").unwrap_or(text);
    // Asked before the compiler is, which does not return from an identifier that is none.
    let mut letters = bare.chars();
    let first = letters.next()?;
    let plausible = (first == '_' || unicode_ident::is_xid_start(first))
        && letters.all(unicode_ident::is_xid_continue);
    plausible.then(|| Ident::new(bare, Span::call_site()).to_string())
}

/// Reads a name: its parts, or everything that is wrong with it.
fn parse(text: &str, kind: TemplateKind) -> (Vec<TemplatePart>, Vec<String>) {
    let (parts, mut errors) = read(text, kind);
    if errors.is_empty() {
        errors.extend(shape(&parts).map(str::to_owned));
    }
    (parts, errors)
}

/// Reads a template: its parts, and what is wrong with its braces and placeholders.
fn read(text: &str, kind: TemplateKind) -> (Vec<TemplatePart>, Vec<String>) {
    let mut parts = TemplateBuilder::default();
    let mut errors = Vec::new();
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
            errors.push("unmatched `}`; write `}}` for a literal brace".into());
            rest = after;
        } else {
            let inside = &tail[1..];
            let end = inside.find(['{', '}']).unwrap_or(inside.len());
            let (inside, after) = inside.split_at(end);
            if let Some(after) = after.strip_prefix('}') {
                match placeholder(inside, kind) {
                    Ok((head, fields)) => {
                        errors.extend(parts.value(inside, head, fields));
                    }
                    Err(error) => errors.push(error),
                }
                rest = after;
            } else {
                errors.push("unmatched `{`; write `{{` for a literal brace".into());
                rest = after;
            }
        }
    }
    parts.text(rest);
    (parts.all, errors)
}

#[derive(Default)]
struct TemplateBuilder {
    all: Vec<TemplatePart>,
    /// The last placeholder, as it was written.
    last: Option<String>,
}

impl TemplateBuilder {
    fn text(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(TemplatePart::Text(text)) = self.all.last_mut() {
            text.push_str(more);
        } else {
            self.all.push(TemplatePart::Text(more.into()));
        }
    }

    /// Adds a placeholder; the answer is an error when its value could run into the one before.
    fn value(
        &mut self,
        written: &str,
        head: PlaceholderHead,
        fields: Vec<FieldAccess>,
    ) -> Option<String> {
        let apart = match self.all.last() {
            None => true,
            Some(TemplatePart::Value { .. }) => false,
            Some(TemplatePart::Text(text)) => text.chars().any(|c| !stands_for_itself(c)),
        };
        self.all.push(TemplatePart::Value {
            head,
            fields,
            written: written.into(),
        });
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

fn placeholder(
    inside: &str,
    kind: TemplateKind,
) -> Result<(PlaceholderHead, Vec<FieldAccess>), String> {
    let written = inside.trim();
    let only_fields = kind.only_field_paths();
    if written.contains("::") {
        return Err(only_fields.into());
    }
    if let Some(colon) = written.find(':') {
        let spec = &written[colon..];
        return Err(format!(
            "format spec `{spec}` is not allowed in a lock name"
        ));
    }
    if written.is_empty() {
        return match kind {
            TemplateKind::Name | TemplateKind::HashTag => {
                Err("empty `{}`; name a parameter".into())
            }
            TemplateKind::LockName => Ok((PlaceholderHead::Next, Vec::new())),
        };
    }
    let mut steps = written.split('.');
    let head = steps.next().unwrap_or_default();
    if !head.is_empty() && head.bytes().all(|byte| byte.is_ascii_digit()) {
        let advice = match kind {
            TemplateKind::Name | TemplateKind::HashTag => "name a parameter",
            TemplateKind::LockName => "write `{}`, which takes the next expression",
        };
        return Err(format!(
            "positional `{{{written}}}` is not supported; {advice}"
        ));
    }
    let head = word(head).filter(|head| !is_path_keyword(head) || head == "self");
    let head = head.ok_or(only_fields)?;
    let mut fields = Vec::new();
    for step in steps {
        if step.trim() == "await" {
            return Err(kind.no_await().into());
        }
        fields.push(FieldAccess::parse(step).ok_or(only_fields)?);
    }
    Ok((PlaceholderHead::Named(head), fields))
}

/// A name that the template could give: values are never empty and hold no brace.
fn sample(parts: &[TemplatePart]) -> String {
    let pieces = parts.iter().map(|part| match part {
        TemplatePart::Text(text) => text.as_str(),
        TemplatePart::Value { .. } => "x",
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
fn shape(parts: &[TemplatePart]) -> Option<&'static str> {
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

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.into())
    }

    fn value(path: &str) -> TemplatePart {
        let mut steps = path.split('.');
        TemplatePart::Value {
            head: PlaceholderHead::Named(steps.next().map(Into::into).unwrap_or_default()),
            fields: steps.filter_map(FieldAccess::parse).collect(),
            written: String::new(),
        }
    }

    /// The parts of a template, without how placeholders were written.
    fn parts(template: &str) -> Vec<TemplatePart> {
        let (parts, errors) = parse(template, TemplateKind::Name);
        assert_eq!(errors, <[String; 0]>::default(), "{template}");
        let without = |part| match part {
            TemplatePart::Value { head, fields, .. } => TemplatePart::Value {
                head,
                fields,
                written: String::new(),
            },
            text @ TemplatePart::Text(_) => text,
        };
        parts.into_iter().map(without).collect()
    }

    fn errors(template: &str) -> Vec<String> {
        parse(template, TemplateKind::Name).1
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
            [TemplatePart::Value {
                head: PlaceholderHead::Named("a".into()),
                fields: vec![
                    FieldAccess::Index(0),
                    FieldAccess::Index(1),
                    FieldAccess::Named("b".into())
                ],
                written: String::new(),
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
        assert_eq!(errors("a{"), [open]);
        assert_eq!(errors("a{b"), [open]);
        assert_eq!(errors("a}"), [close]);
        assert_eq!(errors("{a}}"), [close]);
        assert_eq!(errors("{{a}"), [close]);
        assert_eq!(errors("{a{b}"), [open]);
        assert_eq!(errors("}{"), [close, open]);
    }

    #[test]
    fn what_format_would_take_is_refused() {
        assert_eq!(errors("{}"), ["empty `{}`; name a parameter"]);
        assert_eq!(errors("{ }"), ["empty `{}`; name a parameter"]);
        assert_eq!(
            errors("{0}"),
            ["positional `{0}` is not supported; name a parameter"]
        );
        assert_eq!(
            errors("{0.a}"),
            ["positional `{0.a}` is not supported; name a parameter"]
        );
        assert_eq!(
            errors("{x:?}"),
            ["format spec `:?` is not allowed in a lock name"]
        );
        assert_eq!(
            errors("{x.y:>8}"),
            ["format spec `:>8` is not allowed in a lock name"]
        );
        assert_eq!(
            errors("{:?}"),
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
            assert_eq!(
                errors(template),
                [TemplateKind::Name.only_field_paths()],
                "{template}"
            );
        }
    }

    #[test]
    fn values_are_kept_apart() {
        for template in ["{a}{b}", "{a}x{b}", "{a}-{b}", "{a}_._{b}", "{a}ü{b}"] {
            assert_eq!(
                errors(template),
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
            assert_eq!(errors(template), <[String; 0]>::default(), "{template}");
        }
        assert_eq!(
            errors("{a.b}{ c }{d}"),
            [
                "nothing separates `{a.b}` from `{c}`; put `:` between them",
                "nothing separates `{c}` from `{d}`; put `:` between them"
            ]
        );
    }

    #[test]
    fn all_errors_of_a_template_are_reported() {
        assert_eq!(errors("{}:{0}:{x:?}:{a()}:}").len(), 5);
    }

    #[test]
    fn names_that_no_value_can_mend() {
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
        assert_eq!(errors("{{a}}:q"), [COMPANION]);
        assert_eq!(errors("a:q"), <[String; 0]>::default());
    }

    #[test]
    fn expands_to_parts() {
        let scope = Scope::sample(&["id", "r#type"], true);
        let mut found = Errors::default();
        let literal = syn::parse_quote!("a:{id}:{type.0}:{self.r#fn}");
        let template = Template::new(&literal, &mut found);
        let tokens = template.map(|template| {
            template.resolve("name", &scope, &mut found);
            template.expand(&CratePath::default(), &scope).to_string()
        });
        assert_eq!(found.messages(), <[&str; 0]>::default());
        let tokens = tokens.unwrap_or_default();
        for expected in [
            ":: lock_core :: macro_support :: name_from_template (& [",
            "NamePart :: Text (\"a:\")",
            "NamePart :: Value (& id)",
            "match & r#type . 0 { __distributed_lock_value =>",
            "match & self . r#fn { __distributed_lock_value =>",
        ] {
            assert!(tokens.contains(expected), "{expected} in {tokens}");
        }
    }

    #[test]
    fn every_unknown_placeholder_is_reported() {
        let scope = Scope::sample(&["order_id"], false);
        let mut found = Errors::default();
        let literal = syn::parse_quote!("{ordr_id}:{self.x}:{order_id}");
        if let Some(template) = Template::new(&literal, &mut found) {
            template.resolve("name", &scope, &mut found);
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
