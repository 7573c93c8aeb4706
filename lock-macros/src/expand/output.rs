//! Writes the return type.

use proc_macro2::TokenStream;
use quote::quote_spanned;

use crate::crate_path::CratePath;
use crate::parse::output::FnOutput;

impl FnOutput {
    /// Writes an expression of the type `macro_support::ReturnType`.
    pub(super) fn expand(&self, krate: &CratePath) -> TokenStream {
        let site = self.site();
        let support = krate.at(site);
        let written = match self {
            // The compiler infers it, also where a body cannot write it.
            Self::Declared(_) => quote_spanned!(site=> _),
            Self::Never(_) | Self::Boxed(_) => self.written(krate),
        };
        quote_spanned!(site=> #support::macro_support::ReturnType::<#written>::new())
    }

    /// Writes the type in the user's own tokens. When a trait is not implemented for the type, the
    /// compiler points at these tokens.
    pub(super) fn written(&self, krate: &CratePath) -> TokenStream {
        match self {
            Self::Never(_) => {
                let site = self.site();
                let krate = krate.at(site);
                quote_spanned!(site=> #krate::macro_support::Never)
            }
            Self::Declared(written) | Self::Boxed(written) => written.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn expanded(written: &TokenStream) -> String {
        let function: syn::ItemFn =
            syn::parse2(quote!(async fn f() -> #written {})).expect("a function");
        let output = FnOutput::new(&function.sig).expand(&CratePath::default());
        output.to_string().replace(' ', "")
    }

    #[test]
    fn compiler_infers_a_declared_type() {
        for written in [quote!(()), quote!(Result<T, E>), quote!(impl Fn(u8) -> u8)] {
            assert_eq!(
                expanded(&written),
                "::lock_core::macro_support::ReturnType::<_>::new()"
            );
        }
    }

    #[test]
    fn never_is_written_by_its_alias() {
        assert_eq!(
            expanded(&quote!(!)),
            "::lock_core::macro_support::ReturnType::<::lock_core::macro_support::Never>::new()"
        );
    }
}
