//! The path to `lock_core` in the user's crate.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, ExprPath};

use crate::errors::Errors;

/// The path under which the expansion finds `lock_core`. Defaults to `::lock_core`.
#[derive(Default)]
pub(crate) struct CratePath(Option<TokenStream>);

impl CratePath {
    /// Reads the value of `crate`.
    pub(crate) fn parse(value: Expr, errors: &mut Errors) -> Self {
        if let Expr::Path(ExprPath {
            path, qself: None, ..
        }) = &value
        {
            let root = path.segments.first().map(|first| first.ident.to_string());
            let from_root = matches!(root.as_deref(), Some("crate" | "$crate"));
            if path.leading_colon.is_some() || from_root {
                return Self(Some(path.to_token_stream()));
            }
        }
        errors.on(
            value,
            "`crate` must be an absolute path, such as `::lock_core`",
        );
        Self(None)
    }

    /// Takes the `$crate` of a macro of `lock_core`.
    pub(crate) fn of_macro(krate: Ident) -> Self {
        Self(Some(krate.into_token_stream()))
    }

    /// Returns whether the path is `::lock_core`.
    pub(crate) fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// Writes the path with the location of `site`. With another location, the compiler's errors
    /// would point at the whole attribute.
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

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn path_is_written_at_the_given_site() {
        let mut errors = Errors::default();
        let path = CratePath::parse(parse_quote!(::a::b), &mut errors);
        assert_eq!(path.at(Span::mixed_site()).to_string(), ":: a :: b");
        let path = CratePath::parse(parse_quote!(crate::reexport), &mut errors);
        assert!(!path.is_default());
        let default = CratePath::default();
        assert_eq!(default.at(Span::call_site()).to_string(), ":: lock_core");
        assert_eq!(errors.messages(), <[&str; 0]>::default());
    }

    #[test]
    fn path_must_be_absolute() {
        for path in [
            parse_quote!("::lock_core"),
            parse_quote!(<T>::x),
            parse_quote!(self::x),
            parse_quote!(lock_core),
            parse_quote!(f()),
        ] {
            let mut errors = Errors::default();
            assert!(CratePath::parse(path, &mut errors).is_default());
            assert_eq!(
                errors.messages(),
                ["`crate` must be an absolute path, such as `::lock_core`"]
            );
        }
    }
}
