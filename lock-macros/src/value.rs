//! The values of options, beyond durations and templates.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, ExprClosure, ExprPath, Lit};

use crate::error::Faults;
use crate::template::Template;

/// The path under which the expansion finds `lock_core`.
#[derive(Default)]
pub(crate) struct Krate(Option<TokenStream>);

impl Krate {
    pub(crate) fn new(value: Expr, faults: &mut Faults) -> Self {
        Self(absolute(value, faults))
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
pub(crate) enum Name {
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

impl Name {
    pub(crate) fn new(value: Expr, faults: &mut Faults) -> Option<Self> {
        if let Expr::Lit(literal) = &value
            && let Lit::Str(text) = &literal.lit
        {
            return Template::new(text, faults).map(Self::Template);
        }
        if let Expr::Macro(call) = &value
            && let Some(last) = call.mac.path.segments.last()
            && last.ident == "concat"
        {
            let message = "write one literal; `concat!` is not read as a template";
            faults.on(&call.mac.path, message);
            return None;
        }
        refuse_await("name", &value, faults);
        Some(Self::Expression(value))
    }
}

/// Names and managers are found before anything is waited for.
pub(crate) fn refuse_await(option: &str, value: &Expr, faults: &mut Faults) {
    let mut found = None;
    find_await(value.to_token_stream(), &mut found);
    if let Some(span) = found {
        faults.at(span, format!("`.await` is not allowed in `{option}`"));
    }
}

fn find_await(tokens: TokenStream, found: &mut Option<Span>) {
    for token in tokens {
        match token {
            TokenTree::Ident(keyword) if keyword == "await" => {
                found.get_or_insert(keyword.span());
            }
            TokenTree::Group(group) => find_await(group.stream(), found),
            _ => {}
        }
    }
}

pub(crate) fn closure(option: &str, value: Expr, faults: &mut Faults) -> Option<ExprClosure> {
    if let Expr::Closure(closure) = value {
        return Some(closure);
    }
    let message = format!("`{option}` takes a closure: `{option} = |e| ...`");
    faults.on(value, message);
    None
}

pub(crate) fn identifier(value: &Expr, faults: &mut Faults) -> Option<Ident> {
    if let Expr::Path(ExprPath { path, .. }) = value
        && let Some(ident) = path.get_ident()
        && ident != "self"
    {
        return Some(ident.clone());
    }
    faults.on(value, "`bind` takes an identifier, such as `bind = held`");
    None
}

fn absolute(value: Expr, faults: &mut Faults) -> Option<TokenStream> {
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
    faults.on(
        value,
        "`crate` must be an absolute path, such as `::lock_core`",
    );
    None
}
