//! The compile errors of one attribute. They are collected, so that one compilation reports all of
//! them.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// The errors found so far, in the order in which the compiler reports them.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<syn::Error>);

impl Errors {
    /// Adds an error with its caret at `span`.
    pub(crate) fn at(&mut self, span: Span, message: impl Into<String>) {
        self.0.push(syn::Error::new(span, message.into()));
    }

    /// Adds an error with its carets under all of `tokens`.
    pub(crate) fn on(&mut self, tokens: impl ToTokens, message: impl Into<String>) {
        self.0.push(syn::Error::new_spanned(tokens, message.into()));
    }

    /// Adds an error of the parser.
    pub(crate) fn push(&mut self, error: syn::Error) {
        self.0.push(error);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes one `compile_error!` for each error.
    pub(crate) fn to_tokens(&self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).collect()
    }

    #[cfg(test)]
    pub(crate) fn messages(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

/// Quotes and joins words: `` `a`, `b`, `c` ``.
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_quotes_each_word() {
        assert_eq!(list(["a", "b"]), "`a`, `b`");
        assert_eq!(list([]), "");
    }

    #[test]
    fn every_error_is_written() {
        let mut errors = Errors::default();
        assert!(errors.is_empty());
        errors.at(Span::call_site(), "first");
        errors.on(quote::quote!(a + b), "second");
        assert_eq!(errors.messages(), ["first", "second"]);
        assert_eq!(
            errors
                .to_tokens()
                .to_string()
                .matches("compile_error")
                .count(),
            2
        );
    }
}
