//! The values of options, beyond durations and templates.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprClosure, ExprPath, Lit};

use crate::errors::{Errors, list};
use crate::scope::Scope;
use crate::template::Template;

/// The path under which the expansion finds `lock_core`.
#[derive(Default)]
pub(crate) struct CratePath(Option<TokenStream>);

impl CratePath {
    pub(crate) fn new(value: Expr, errors: &mut Errors) -> Self {
        Self(absolute(value, errors))
    }

    /// Whether it is `::lock_core`.
    pub(crate) fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// `$crate`, which a macro of `lock_core` passes on.
    pub(crate) fn of_macro(krate: Ident) -> Self {
        Self(Some(krate.into_token_stream()))
    }

    /// The path, located where what it is written for is: the compiler's errors would point at
    /// the whole attribute if its beginning were elsewhere.
    pub(crate) fn at(&self, site: Span) -> TokenStream {
        let Some(path) = &self.0 else {
            return quote_spanned!(site=> ::lock_core);
        };
        let tokens = path.clone().into_iter().map(|mut token| {
            token.set_span(token.span().located_at(site));
            token
        });
        tokens.collect()
    }
}

/// What the lock is called.
pub(crate) enum NameArg {
    Template(Template),
    Expression(Expr),
}

/// `$name:expr` of a `macro_rules!` macro arrives inside an invisible group.
pub(crate) fn peel(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => peel(*group.expr),
        other => other,
    }
}

impl NameArg {
    pub(crate) fn new(value: Expr, errors: &mut Errors) -> Option<Self> {
        if let Expr::Lit(literal) = &value
            && let Lit::Str(text) = &literal.lit
        {
            return Template::new(text, errors).map(Self::Template);
        }
        if let Expr::Macro(call) = &value
            && let Some(last) = call.mac.path.segments.last()
            && last.ident == "concat"
        {
            let message = "write one literal; `concat!` is not read as a template";
            errors.on(&call.mac.path, message);
            return None;
        }
        refuse_await("name", &value, errors);
        Some(Self::Expression(value))
    }

    /// Checks that each placeholder begins with a parameter or `self`.
    pub(crate) fn resolve(&self, scope: &Scope, errors: &mut Errors) {
        match self {
            Self::Template(template) => template.resolve("name", scope, errors),
            Self::Expression(_) => {}
        }
    }
}

/// What to do when another holder has the lock.
#[derive(Default)]
pub(crate) enum OnContended {
    /// It is an error like others.
    #[default]
    Error,
    Skip(Ident),
    Closure(ExprClosure),
}

impl OnContended {
    pub(crate) fn new(value: Expr, errors: &mut Errors) -> Self {
        let value = without_parentheses(value);
        if let Expr::Closure(closure) = value {
            refuse_async("on_contended", &closure, errors);
            return Self::Closure(closure);
        }
        let known = ["error", "skip"];
        let closure = match &value {
            Expr::Path(_) => format!(", `|e| {}(e)`", shown(&value)),
            _ => ", `|e| ...`".into(),
        };
        match word("on_contended", &value, &known, &closure, errors) {
            Some(word) if word == "skip" => Self::Skip(word),
            _ => Self::Error,
        }
    }
}

/// What makes a return value of an error.
pub(crate) enum Handler {
    /// Evaluated where it is called, so that it sees the parameters that are `Copy`.
    Closure(ExprClosure),
    /// Gives a closure, and is evaluated before the lock is asked for.
    Expression(Expr),
}

impl Handler {
    /// Reads `on_error`.
    pub(crate) fn new(value: Expr, errors: &mut Errors) -> Option<Self> {
        match without_parentheses(value) {
            Expr::Closure(closure) => {
                refuse_async("on_error", &closure, errors).then_some(Self::Closure(closure))
            }
            literal @ Expr::Lit(_) => {
                errors.on(literal, "`on_error` takes a closure: `on_error = |e| ...`");
                None
            }
            expression => {
                refuse_await("on_error", &expression, errors);
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

fn without_parentheses(value: Expr) -> Expr {
    match value {
        Expr::Paren(inner) => without_parentheses(*inner.expr),
        Expr::Group(inner) => without_parentheses(*inner.expr),
        other => other,
    }
}

/// An expression as it is mostly written: its tokens would print as `a :: b . c (d)`.
pub(crate) fn shown(value: &Expr) -> String {
    let mut text = value.to_token_stream().to_string();
    for (spaced, close) in [(" :: ", "::"), (" . ", "."), (" (", "("), ("& ", "&")] {
        text = text.replace(spaced, close);
    }
    text
}

/// What to do when the lock is lost while the body runs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OnLost {
    #[default]
    Cancel,
    Continue,
}

impl OnLost {
    pub(crate) fn new(value: &Expr, errors: &mut Errors) -> Self {
        match word("on_lost", value, &["cancel", "continue"], "", errors) {
            Some(word) if word == "continue" => Self::Continue,
            _ => Self::Cancel,
        }
    }
}

/// Whether the release is waited for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ReleaseMode {
    #[default]
    Confirm,
    Background,
}

impl ReleaseMode {
    pub(crate) fn new(value: &Expr, errors: &mut Errors) -> Self {
        match word("release", value, &["confirm", "background"], "", errors) {
            Some(word) if word == "background" => Self::Background,
            _ => Self::Confirm,
        }
    }
}

/// One of the words that an option takes; `others` says what it takes besides.
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
    let has = |meant: &&str| words.contains(meant);
    let meant = match written.as_str() {
        "true" => Some("auto").filter(has),
        "false" => Some("never").filter(has),
        _ => None,
    };
    let advice = meant.map_or_else(
        || format!("expected one of: {}{others}", list(words.iter().copied())),
        |meant| format!("did you mean `{meant}`?"),
    );
    let message = format!("unknown value `{written}` for `{option}`; {advice}");
    errors.on(value, message);
    None
}

pub(crate) fn bare_word(value: &Expr) -> Option<Ident> {
    match value {
        Expr::Path(ExprPath {
            path, qself: None, ..
        }) => path.get_ident().cloned(),
        // `on_lost = continue` is an expression of the language, too.
        Expr::Continue(word) if word.label.is_none() => {
            Some(Ident::new("continue", word.continue_token.span))
        }
        _ => None,
    }
}

/// Names and managers are found before anything is waited for.
pub(crate) fn refuse_await(option: &str, value: &Expr, errors: &mut Errors) {
    let mut found = None;
    find_await(value.to_token_stream(), &mut found);
    if let Some(span) = found {
        errors.at(span, format!("`.await` is not allowed in `{option}`"));
    }
}

fn find_await(tokens: TokenStream, found: &mut Option<Span>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(keyword) if keyword == "await" => {
                found.get_or_insert(keyword.span());
            }
            // What an async block or closure awaits is not awaited here.
            TokenTree::Ident(keyword) if keyword == "async" => {
                tokens.next_if(|next| matches!(next, TokenTree::Ident(next) if next == "move"));
                match tokens.next() {
                    Some(TokenTree::Group(_)) | None => {}
                    // A closure ends where what is around ends, or with a comma.
                    Some(_) => while tokens.next_if(|next| !is_comma(next)).is_some() {},
                }
            }
            TokenTree::Group(group) => find_await(group.stream(), found),
            _ => {}
        }
    }
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')
}

/// Whether the closure is a plain one.
fn refuse_async(option: &str, closure: &ExprClosure, errors: &mut Errors) -> bool {
    let Some(keyword) = &closure.asyncness else {
        return true;
    };
    errors.on(
        keyword,
        format!("`{option}` cannot await; leave out `async`"),
    );
    false
}

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

pub(crate) fn hash_tag(value: &Expr, errors: &mut Errors) -> Option<Template> {
    if let Expr::Lit(literal) = value
        && let Lit::Str(text) = &literal.lit
    {
        return Template::hash_tag(text, errors);
    }
    let message = "`hash_tag` takes a template, such as `hash_tag = \"{user_id}\"`";
    errors.on(value, message);
    None
}

fn absolute(value: Expr, errors: &mut Errors) -> Option<TokenStream> {
    if let Expr::Path(ExprPath {
        path, qself: None, ..
    }) = &value
    {
        let root = path.segments.first().map(|first| first.ident.to_string());
        let from_root = matches!(root.as_deref(), Some("crate" | "$crate"));
        if path.leading_colon.is_some() || from_root {
            return Some(path.to_token_stream());
        }
    }
    errors.on(
        value,
        "`crate` must be an absolute path, such as `::lock_core`",
    );
    None
}
