//! The path to `lock_core` in the user's crate.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, ExprPath};

use crate::errors::Errors;

/// The path under which the expansion finds `lock_core`.
#[derive(Default)]
pub(crate) enum CratePath {
    /// `::lock_core`
    #[default]
    Default,
    /// The value of `crate`. The expansion imports it once, and names only the import. So a path that doesn't exist is
    /// one error, at the user's tokens.
    Imported(TokenStream),
    /// The `$crate` of a macro of `lock_core`.
    OfMacro(Ident),
}

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
                return Self::Imported(path.to_token_stream());
            }
        }
        errors.on(
            value,
            "`crate` must be an absolute path, such as `::lock_core`",
        );
        Self::Default
    }

    /// Returns whether the path is `::lock_core`.
    pub(crate) fn is_default(&self) -> bool {
        matches!(self, Self::Default)
    }

    /// Writes the import that `at` names, for the block around its uses.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        let Self::Imported(path) = self else {
            return None;
        };
        let site = Span::mixed_site();
        let name = imported(site);
        // By way of `macro_support`, so that a module that isn't `lock_core` is one error, too.
        let place = site.located_at(last_span(path));
        let rest = quote_spanned!(place=> ::macro_support::lock_core);
        Some(quote_spanned!(site=> use #path #rest as #name;))
    }

    /// Writes the path with the location of `site`. With another location, the compiler's errors
    /// would point at the whole attribute.
    pub(crate) fn at(&self, site: Span) -> TokenStream {
        match self {
            Self::Default => quote_spanned!(site=> ::lock_core),
            Self::Imported(_) => imported(site).into_token_stream(),
            Self::OfMacro(krate) => {
                let mut krate = krate.clone();
                krate.set_span(krate.span().located_at(site));
                krate.into_token_stream()
            }
        }
    }
}

/// The name of the import. Items are not hygienic, so it has a prefix that no user's item has.
fn imported(site: Span) -> Ident {
    Ident::new("__distributed_lock_crate", site)
}

fn last_span(path: &TokenStream) -> Span {
    let last = path.clone().into_iter().last();
    last.map_or_else(Span::call_site, |last| last.span())
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn written_path_is_imported_once() {
        let mut errors = Errors::default();
        for (written, import) in [
            (
                parse_quote!(::a::b),
                "use :: a :: b :: macro_support :: lock_core as __distributed_lock_crate ;",
            ),
            (
                parse_quote!(crate::reexport),
                "use crate :: reexport :: macro_support :: lock_core as __distributed_lock_crate ;",
            ),
        ] {
            let path = CratePath::parse(written, &mut errors);
            let at = path.at(Span::mixed_site()).to_string();
            assert_eq!(at, "__distributed_lock_crate");
            let imported = path.import().map(|import| import.to_string());
            assert_eq!(imported.as_deref(), Some(import));
            assert!(!path.is_default());
        }
        let default = CratePath::default();
        assert_eq!(default.at(Span::call_site()).to_string(), ":: lock_core");
        assert!(default.import().is_none());
        let of_macro = CratePath::OfMacro(parse_quote!(krate));
        assert_eq!(of_macro.at(Span::call_site()).to_string(), "krate");
        assert!(of_macro.import().is_none());
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
