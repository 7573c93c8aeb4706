//! The values of the options, except durations and templates.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Expr, ExprClosure, ExprPath, Lit, LitStr};

use crate::errors::{Errors, list};
use crate::parse::template::Template;
use crate::parse::tokens::{find_await, peel};

pub(crate) const SEVERAL_NAMES: &str = "a declared lock has one name; lock several names with \
     `#[distributed_lock(name = [\"a:{x}\", \"b:{y}\"])]` or `LockManager::lock_all`";
pub(crate) const SEVERAL_LOCKS: &str = "`lock` takes one declared lock; lock several names with \
     `name = [\"a:{x}\", \"b:{y}\"]` or `LockManager::lock_all`";

/// The name of a lock.
pub(crate) enum NameArg {
    Template(Template),
    Expression(Expr),
}

/// The value of `name`.
pub(crate) enum NamesArg {
    One(NameArg),
    /// A list in brackets, with their place.
    List(Vec<NameArg>, Span),
}

impl NamesArg {
    pub(crate) fn parse(value: Expr, errors: &mut Errors) -> Option<Self> {
        let array = match value {
            Expr::Array(array) => array,
            other => {
                let Some(advice) = list_in_another_form(&other) else {
                    return NameArg::parse(other, errors).map(Self::One);
                };
                let message = format!("{advice}: `name = [\"a:{{x}}\", \"b:{{y}}\"]`");
                errors.on(other, message);
                return None;
            }
        };
        let brackets = array.bracket_token.span.join();
        let (count, mut names) = (array.elems.len(), Vec::new());
        for element in array.elems {
            let element = peel(element);
            if matches!(element, Expr::Array(_)) {
                errors.on(element, "expected a name");
                continue;
            }
            names.extend(NameArg::parse(element, errors));
        }
        // After an error in an element, the list is not checked: it is too short.
        (count == names.len()).then_some(Self::List(names, brackets))
    }

    /// Returns all names, in the order in which they were written.
    pub(crate) fn all(&self) -> &[NameArg] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::List(names, _) => names,
        }
    }
}

/// Returns whether a value lists names, in whatever form.
pub(crate) fn is_list(value: &Expr) -> bool {
    matches!(value, Expr::Array(_)) || list_in_another_form(value).is_some()
}

/// Returns whether a value of `lock` lists several. No list can implement `Lock`.
pub(crate) fn lists_locks(value: &Expr) -> bool {
    match value {
        Expr::Array(_) => true,
        Expr::Tuple(tuple) => !tuple.elems.is_empty(),
        Expr::Reference(inner) => lists_locks(&inner.expr),
        Expr::Paren(inner) => lists_locks(&inner.expr),
        Expr::Macro(_) => is_list(value),
        _ => false,
    }
}

/// Returns the advice for a list that isn't written as an array.
fn list_in_another_form(value: &Expr) -> Option<&'static str> {
    match value {
        Expr::Tuple(_) => Some("write several names in brackets"),
        Expr::Reference(inner) if is_list(&inner.expr) => Some("write the list without `&`"),
        Expr::Paren(inner) if is_list(&inner.expr) => Some("write the list without parentheses"),
        Expr::Group(inner) => list_in_another_form(&inner.expr),
        Expr::MethodCall(call) if is_list(&call.receiver) => Some("write only the list"),
        Expr::Macro(call) => {
            let last = call.mac.path.segments.last();
            let is_vec = last.is_some_and(|last| last.ident == "vec");
            is_vec.then_some("write the list without `vec!`")
        }
        _ => None,
    }
}

impl NameArg {
    pub(crate) fn parse(value: Expr, errors: &mut Errors) -> Option<Self> {
        Self::parse_with(value, Template::of_name, errors)
    }

    /// Reads the name of a declared lock, whose placeholders are fields.
    pub(crate) fn parse_declared(value: Expr, errors: &mut Errors) -> Option<Self> {
        if is_list(&value) {
            errors.on(value, SEVERAL_NAMES);
            return None;
        }
        Self::parse_with(value, Template::of_declaration, errors)
    }

    fn parse_with(
        value: Expr,
        template: fn(&LitStr, &mut Errors) -> Option<Template>,
        errors: &mut Errors,
    ) -> Option<Self> {
        if let Expr::Lit(literal) = &value
            && let Lit::Str(text) = &literal.lit
        {
            return template(text, errors).map(Self::Template);
        }
        if let Expr::Macro(call) = &value
            && let Some(last) = call.mac.path.segments.last()
            && last.ident == "concat"
        {
            let message = "write one literal; `concat!` is not read as a template";
            errors.on(&call.mac.path, message);
            return None;
        }
        reject_await("name", &value, errors);
        Some(Self::Expression(value))
    }
}

/// Reads the value of `hash_tag`.
pub(crate) fn hash_tag(
    value: &Expr,
    template: fn(&LitStr, &mut Errors) -> Option<Template>,
    errors: &mut Errors,
) -> Option<Template> {
    if let Expr::Lit(literal) = value
        && let Lit::Str(text) = &literal.lit
    {
        return template(text, errors);
    }
    let message = "`hash_tag` takes a template, such as `hash_tag = \"{user_id}\"`";
    errors.on(value, message);
    None
}

/// The value of `on_contended`: what a call returns when another holder has the lock.
#[derive(Default)]
pub(crate) enum OnContended {
    /// The same as for any other error.
    #[default]
    Error,
    /// The skipped value of the return type.
    Skip(Ident),
    /// The result of a closure.
    Closure(ExprClosure),
}

impl OnContended {
    pub(crate) fn parse(value: Expr, errors: &mut Errors) -> Self {
        let value = without_parentheses(value);
        if let Expr::Closure(closure) = value {
            reject_async("on_contended", &closure, errors);
            return Self::Closure(closure);
        }
        let words = ["error", "skip"];
        let closure = match &value {
            Expr::Path(_) => format!(", `|e| {}(e)`", shown(&value)),
            _ => ", `|e| ...`".into(),
        };
        match word("on_contended", &value, &words, &closure, errors) {
            Some(word) if word == "skip" => Self::Skip(word),
            _ => Self::Error,
        }
    }
}

/// The value of `on_error`: it makes a return value from an error.
pub(crate) enum Handler {
    /// A closure. The expansion evaluates it where it is called, so that it can use the parameters
    /// that are `Copy`.
    Closure(ExprClosure),
    /// An expression that returns a closure. The expansion evaluates it before the acquire.
    Expression(Expr),
}

impl Handler {
    pub(crate) fn parse(value: Expr, errors: &mut Errors) -> Option<Self> {
        match without_parentheses(value) {
            Expr::Closure(closure) => {
                reject_async("on_error", &closure, errors).then_some(Self::Closure(closure))
            }
            literal @ Expr::Lit(_) => {
                errors.on(literal, "`on_error` takes a closure: `on_error = |e| ...`");
                None
            }
            expression => {
                if let Some(message) = word_of_on_error(&expression) {
                    errors.on(expression, message);
                    return None;
                }
                reject_await("on_error", &expression, errors);
                Some(Self::Expression(expression))
            }
        }
    }

    pub(crate) fn span(&self) -> Span {
        match self {
            Self::Closure(closure) => closure.span(),
            Self::Expression(expression) => expression.span(),
        }
    }
}

/// Returns what to write instead of a word that `on_error` doesn't have.
fn word_of_on_error(value: &Expr) -> Option<String> {
    let word = bare_word(value)?;
    let advice = match word.to_string().to_lowercase().as_str() {
        "skip" | "ignore" | "none" | "continue" => {
            "write `on_contended = skip` for a lock that another holder has, and a closure for other \
             errors, such as `on_error = |_| ()`"
        }
        "log" | "warn" | "panic" | "error" | "retry" => {
            "write a closure that returns what the function returns, such as \
             `on_error = |e| tracing::warn!(\"{e}\")`"
        }
        _ => return None,
    };
    Some(format!("unknown value `{word}` for `on_error`; {advice}"))
}

/// The value of `on_lost`: what happens to the body when the lock is lost.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OnLostArg {
    #[default]
    Cancel,
    Continue,
}

/// The value of `release`: whether the call waits for the release.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ReleaseMode {
    #[default]
    Confirm,
    Background,
}

/// Reads the value of `bind`.
pub(crate) fn identifier(value: &Expr, errors: &mut Errors) -> Option<Ident> {
    if let Expr::Path(ExprPath { path, .. }) = value
        && let Some(ident) = path.get_ident()
        && ident != "self"
    {
        return Some(ident.clone());
    }
    errors.on(value, "`bind` takes an identifier, such as `bind = held`");
    None
}

/// Reads the value of an option that takes only words.
pub(crate) fn choice<T: Copy, const N: usize>(
    option: &str,
    value: &Expr,
    words: [(&str, T); N],
    errors: &mut Errors,
) -> Option<T> {
    let found = word(option, value, &words.map(|(word, _)| word), "", errors);
    let choice = words
        .iter()
        .find(|(word, _)| found.as_ref().is_some_and(|it| it == word));
    choice.map(|(_, choice)| *choice)
}

/// Reads one of the words that `option` takes. `others` lists its values that are no words.
pub(crate) fn word(
    option: &str,
    value: &Expr,
    words: &[&str],
    others: &str,
    errors: &mut Errors,
) -> Option<Ident> {
    if let Some(word) = bare_word(value)
        && words.iter().any(|known| word == known)
    {
        return Some(word);
    }
    let written = shown(value);
    let unquoted = written.trim_matches('"');
    // `Skip` and `OnContended::Skip`, too.
    let last = unquoted
        .rsplit("::")
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let meant = match last.as_str() {
        "true" => "auto",
        "false" => "never",
        // What a skipped call returns.
        "none" | "ignore" => "skip",
        other => other,
    };
    let is_unquoted = unquoted != written && words.contains(&unquoted);
    let meant = words.iter().find(|word| **word == meant && !is_unquoted);
    let advice = match meant {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if is_unquoted => {
            format!("write `{unquoted}` without quotes")
        }
        None => format!("expected one of: {}{others}", list(words.iter().copied())),
    };
    let message = format!("unknown value `{written}` for `{option}`; {advice}");
    errors.on(value, message);
    None
}

/// Returns the single identifier or keyword that an expression consists of.
pub(crate) fn bare_word(value: &Expr) -> Option<Ident> {
    match value {
        Expr::Path(ExprPath {
            path, qself: None, ..
        }) => path.get_ident().cloned(),
        // The parser reads `on_lost = continue` as a `continue` expression.
        Expr::Continue(word) if word.label.is_none() => {
            Some(Ident::new("continue", word.continue_token.span))
        }
        _ => None,
    }
}

/// Writes an expression in its usual form. Its tokens alone would print as `a :: b . c (d)`.
pub(crate) fn shown(value: &impl ToTokens) -> String {
    let mut text = value.to_token_stream().to_string();
    for (spaced, close) in [(" :: ", "::"), (" . ", "."), (" (", "("), ("& ", "&")] {
        text = text.replace(spaced, close);
    }
    text
}

/// Rejects `.await` in an option that the expansion evaluates before it awaits anything.
pub(crate) fn reject_await(option: &str, value: &Expr, errors: &mut Errors) {
    if let Some(span) = find_await(value.to_token_stream()) {
        errors.at(span, format!("`.await` is not allowed in `{option}`"));
    }
}

/// Returns whether the closure is not async.
fn reject_async(option: &str, closure: &ExprClosure, errors: &mut Errors) -> bool {
    let Some(keyword) = &closure.asyncness else {
        return true;
    };
    errors.on(
        keyword,
        format!("`{option}` cannot await; leave out `async`"),
    );
    false
}

fn without_parentheses(value: Expr) -> Expr {
    match value {
        Expr::Paren(inner) => without_parentheses(*inner.expr),
        Expr::Group(inner) => without_parentheses(*inner.expr),
        other => other,
    }
}
