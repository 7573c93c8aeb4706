//! Templates of lock names: `"order:{order.id}"`.

use proc_macro2::{Ident, Span};
use syn::LitStr;

use crate::errors::Errors;
use crate::parse::separator::begins_a_value;

/// A template whose text is well formed. `check` looks for the parameters that it names.
pub(crate) struct Template {
    pub(crate) parts: Vec<TemplatePart>,
    pub(crate) written: String,
    pub(crate) span: Span,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    Text(String),
    Value {
        head: PlaceholderHead,
        fields: Vec<FieldAccess>,
        /// The placeholder in the source, without its braces.
        written: String,
    },
}

/// The variable that a placeholder begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PlaceholderHead {
    Named(String),
    /// `{}` in `lock_name!` takes the next expression.
    Next,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FieldAccess {
    Named(String),
    Index(u32),
}

/// The place of a template in the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TemplateKind {
    /// `name = ".."`: each placeholder names a parameter.
    Name,
    /// `hash_tag = ".."`: as in a name.
    HashTag,
    /// `lock_name!("..")`: `{}` takes the next expression.
    LockName,
    /// `#[lock(name = "..")]`: each placeholder names a field.
    Declaration,
}

impl TemplateKind {
    fn only_field_paths(self) -> &'static str {
        match self {
            Self::Name => {
                "only field paths are allowed in `{...}`; for other expressions use \
                 `name = lock_name!(\"...\", expr)`"
            }
            Self::HashTag => "only field paths are allowed in `{...}`",
            Self::Declaration => {
                "only fields are allowed in `{...}`; for other expressions use \
                 `name = lock_name!(\"...\", self.field)`"
            }
            Self::LockName => {
                "only field paths are allowed in `{...}`; for other expressions write `{}`, and \
                 the expression after the template"
            }
        }
    }

    fn no_await(self) -> &'static str {
        match self {
            Self::Name | Self::Declaration => "`.await` is not allowed in `name`",
            Self::HashTag => "`.await` is not allowed in `hash_tag`",
            Self::LockName => "`.await` is not allowed in `{...}`; await before the name is made",
        }
    }
}

impl Template {
    /// Reads the template of `name = ".."`.
    pub(crate) fn of_name(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        Self::parse(literal, TemplateKind::Name, errors)
    }

    /// Reads the template of `hash_tag = ".."`.
    pub(crate) fn of_hash_tag(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        Self::parse(literal, TemplateKind::HashTag, errors)
    }

    /// Reads a template of `#[lock(..)]`, whose placeholders are fields.
    pub(crate) fn of_declaration(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        Self::parse(literal, TemplateKind::Declaration, errors)
    }

    /// Reads the template of `lock_name!("..")`.
    pub(crate) fn of_lock_name(literal: &LitStr, errors: &mut Errors) -> Option<Self> {
        Self::parse(literal, TemplateKind::LockName, errors)
    }

    fn parse(literal: &LitStr, kind: TemplateKind, errors: &mut Errors) -> Option<Self> {
        let span = literal.span();
        let (parts, messages) = parse(&literal.value(), kind);
        if messages.is_empty() {
            return Some(Self {
                parts,
                written: literal.value(),
                span,
            });
        }
        for message in messages {
            errors.at(span, message);
        }
        None
    }

    /// Counts the expressions that the template takes.
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

    /// Returns the variables that its placeholders begin with.
    pub(crate) fn heads(&self) -> impl Iterator<Item = String> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Value {
                head: PlaceholderHead::Named(head),
                ..
            } => Some(head.clone()),
            _ => None,
        })
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
}

/// Returns whether a keyword has no raw form. It is never a field, and only `self` is a variable.
fn is_path_keyword(name: &str) -> bool {
    matches!(name, "self" | "Self" | "super" | "crate" | "_")
}

/// Returns an identifier without its `r#`, in the compiler's normal form.
fn word(text: &str) -> Option<String> {
    let bare = text.strip_prefix("r#").unwrap_or(text);
    // `Ident::new` panics on text that is no identifier.
    let mut letters = bare.chars();
    let first = letters.next()?;
    let plausible = (first == '_' || unicode_ident::is_xid_start(first))
        && letters.all(unicode_ident::is_xid_continue);
    plausible.then(|| Ident::new(bare, Span::call_site()).to_string())
}

/// Splits a template into its parts. Also returns the errors of its braces and placeholders.
fn parse(text: &str, kind: TemplateKind) -> (Vec<TemplatePart>, Vec<String>) {
    let mut parts = TemplateBuilder::default();
    let mut messages = Vec::new();
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
            messages.push("unmatched `}`; write `}}` for a literal brace".into());
            rest = after;
        } else {
            let inside = &tail[1..];
            let end = inside.find(['{', '}']).unwrap_or(inside.len());
            let (inside, after) = inside.split_at(end);
            if let Some(after) = after.strip_prefix('}') {
                match placeholder(inside, kind) {
                    Ok((head, fields)) => {
                        messages.extend(parts.value(inside, head, fields));
                    }
                    Err(message) => messages.push(message),
                }
                rest = after;
            } else {
                messages.push("unmatched `{`; write `{{` for a literal brace".into());
                rest = after;
            }
        }
    }
    parts.text(rest);
    (parts.all, messages)
}

#[derive(Default)]
struct TemplateBuilder {
    all: Vec<TemplatePart>,
    /// The last placeholder in the source.
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

    /// Adds a placeholder. Returns an error when its value could run into the value before it.
    fn value(
        &mut self,
        written: &str,
        head: PlaceholderHead,
        fields: Vec<FieldAccess>,
    ) -> Option<String> {
        let between = match self.all.last() {
            Some(TemplatePart::Text(text)) => text.clone(),
            Some(TemplatePart::Value { .. }) | None => String::new(),
        };
        self.all.push(TemplatePart::Value {
            head,
            fields,
            written: written.into(),
        });
        let before = self.last.replace(written.trim().into())?;
        let written = written.trim();
        begins_a_value(&between).then(|| {
            let reason = if between.is_empty() {
                String::new()
            } else {
                format!(", because a value can contain `{between}`")
            };
            format!(
                "nothing separates `{{{before}}}` from `{{{written}}}`{reason}; put `:` between them"
            )
        })
    }
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
            TemplateKind::Declaration => Err("empty `{}`; name a field".into()),
            TemplateKind::LockName => Ok((PlaceholderHead::Next, Vec::new())),
        };
    }
    let mut steps = written.split('.');
    let head = steps.next().unwrap_or_default();
    let is_index = !head.is_empty() && head.bytes().all(|byte| byte.is_ascii_digit());
    if is_index && kind != TemplateKind::Declaration {
        let advice = match kind {
            TemplateKind::Name | TemplateKind::HashTag | TemplateKind::Declaration => {
                "name a parameter"
            }
            TemplateKind::LockName => "write `{}`, which takes the next expression",
        };
        return Err(format!(
            "positional `{{{written}}}` is not supported; {advice}"
        ));
    }
    let head = if is_index {
        Some(head.to_owned())
    } else {
        word(head).filter(|head| !is_path_keyword(head) || head == "self")
    };
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

#[cfg(test)]
mod tests;
