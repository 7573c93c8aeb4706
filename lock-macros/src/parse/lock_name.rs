//! The input of `lock_name!`: a template and its expressions.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Expr, Ident, LitStr, Token};

use crate::crate_path::CratePath;
use crate::errors::Errors;
use crate::parse::template::Template;

const NO_TEMPLATE: &str = "expected a template: `lock_name!(\"order:{}\", expression)`";

/// A template with the values of its `{}`.
pub(crate) struct LockNameInput {
    pub(crate) template: Template,
    pub(crate) expressions: Vec<Expr>,
}

/// Reads the `$crate,` that `lock_core::lock_name!` adds.
pub(crate) fn crate_path(input: ParseStream<'_>) -> syn::Result<CratePath> {
    let krate = CratePath::OfMacro(input.call(Ident::parse_any)?);
    input.parse::<Token![,]>()?;
    Ok(krate)
}

impl LockNameInput {
    /// Reads `"template", expression, ..`. Returns `None` when the template is not well formed.
    pub(crate) fn parse(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Option<Self>> {
        if !input.peek(LitStr) {
            let span = if input.is_empty() {
                Span::call_site()
            } else {
                input.span()
            };
            return Err(syn::Error::new(span, NO_TEMPLATE));
        }
        let literal: LitStr = input.parse()?;
        let mut expressions = Vec::new();
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            expressions.push(input.parse()?);
        }
        let template = Template::of_lock_name(&literal, errors);
        Ok(template.map(|template| Self {
            template,
            expressions,
        }))
    }
}
