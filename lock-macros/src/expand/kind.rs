//! Writes the kind of a lock.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;

use crate::crate_path::CratePath;
use crate::parse::generics::GenericNames;
use crate::parse::kind::{KindArgs, Mode, NumberArg, NumberValue};

impl KindArgs {
    /// Writes constant items, and an expression of the type `macro_support::Kind`. An exclusive lock has no
    /// expression: it is the default.
    pub(super) fn expand(
        &self,
        krate: &CratePath,
        generics: &GenericNames,
    ) -> (TokenStream, Option<TokenStream>) {
        let site = Span::mixed_site();
        let support = krate.at(site);
        let support = quote_spanned!(site=> #support::macro_support);
        let Some(permits) = &self.permits else {
            let read = (self.mode == Some(Mode::Read))
                .then(|| quote_spanned!(site=> #support::Kind::Read));
            return (TokenStream::new(), read);
        };
        let (mut items, of) = permits.expand(None, krate, generics);
        let weight = if let Some(weight) = &self.weight {
            let (item, weight) = weight.expand(Some(permits), krate, generics);
            items.extend(item);
            weight
        } else {
            quote_spanned!(site=> 1)
        };
        let kind = quote_spanned!(site=> #support::Kind::Permits { of: #of, weight: #weight });
        (items, Some(kind))
    }
}

impl NumberArg {
    /// Writes a constant item that checks the value, and an expression for the value. An item cannot name
    /// generics; for those the expression is a `const` block.
    pub(super) fn expand(
        &self,
        permits: Option<&Self>,
        krate: &CratePath,
        generics: &GenericNames,
    ) -> (TokenStream, TokenStream) {
        let value = self.tokens();
        if self.literal().is_some() && permits.is_none_or(|permits| permits.literal().is_some()) {
            return (TokenStream::new(), value);
        }
        let site = self.site();
        let krate = krate.at(site);
        let check = Ident::new(&format!("checked_{}", self.option.name()), site);
        let arguments = match permits {
            Some(permits) => {
                let permits = permits.named(generics).unwrap_or_else(|| permits.tokens());
                quote_spanned!(site=> #value, #permits)
            }
            None => value,
        };
        let checked = quote_spanned!(site=> #krate::macro_support::#check(#arguments));
        if self.mentions(generics) || permits.is_some_and(|permits| permits.mentions(generics)) {
            return (
                TokenStream::new(),
                quote_spanned!(site=> const { #checked }),
            );
        }
        let name = self.constant();
        let item = quote_spanned!(site=> const #name: ::core::primitive::u32 = #checked;);
        (item, name.into_token_stream())
    }

    fn site(&self) -> Span {
        Span::mixed_site().located_at(self.written.span())
    }

    fn tokens(&self) -> TokenStream {
        match &self.value {
            NumberValue::Literal(number) => {
                let mut literal = Literal::u32_unsuffixed(*number);
                literal.set_span(self.site());
                literal.into_token_stream()
            }
            NumberValue::Constant(value) => value.to_token_stream(),
        }
    }

    /// Writes the name of its constant item, if it has one.
    fn named(&self, generics: &GenericNames) -> Option<TokenStream> {
        let has_item = self.literal().is_none() && !self.mentions(generics);
        has_item.then(|| self.constant().into_token_stream())
    }

    /// Returns the name of its constant item, as that of a duration.
    fn constant(&self) -> Ident {
        let option = self.option.name().to_ascii_uppercase();
        Ident::new(&format!("__DISTRIBUTED_LOCK_{option}"), self.site())
    }

    fn mentions(&self, generics: &GenericNames) -> bool {
        match &self.value {
            NumberValue::Literal(_) => false,
            NumberValue::Constant(value) => generics.are_in_number(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;
    use crate::errors::Errors;
    use crate::parse::args::Args;
    use crate::parse::generics::Surroundings;

    fn expanded(options: &TokenStream, generics: &[&str]) -> (String, String) {
        let mut errors = Errors::default();
        let args = Args::parse(quote!(name = "x", #options), &mut errors);
        assert_eq!(errors.messages(), <[&str; 0]>::default());
        let generics = GenericNames::sample(generics, Surroundings::Unknown);
        let (items, kind) = args.kind.expand(&CratePath::default(), &generics);
        (items.to_string(), kind.unwrap_or_default().to_string())
    }

    #[test]
    fn literals_are_written_as_they_are() {
        for (options, expected) in [
            (quote!(), ""),
            (quote!(mode = write), ""),
            (quote!(mode = read), "Kind :: Read"),
            (
                quote!(permits = 4),
                "Kind :: Permits { of : 4 , weight : 1 }",
            ),
            (
                quote!(permits = 8u32, weight = 2),
                "Kind :: Permits { of : 8 , weight : 2 }",
            ),
        ] {
            let (items, kind) = expanded(&options, &[]);
            assert_eq!(items, "");
            assert!(kind.ends_with(expected), "{kind}");
        }
    }

    #[test]
    fn constants_are_checked_before_they_are_used() {
        let (items, kind) = expanded(&quote!(permits = PERMITS, weight = 2), &["T"]);
        for item in [
            "const __DISTRIBUTED_LOCK_PERMITS : :: core :: primitive :: u32 = \
             :: lock_core :: macro_support :: checked_permits (PERMITS) ;",
            "checked_weight (2 , __DISTRIBUTED_LOCK_PERMITS) ;",
        ] {
            assert!(items.contains(item), "{items}");
        }
        assert!(
            kind.ends_with(
                "{ of : __DISTRIBUTED_LOCK_PERMITS , weight : __DISTRIBUTED_LOCK_WEIGHT }"
            ),
            "{kind}"
        );
    }

    #[test]
    fn constants_of_generics_are_checked_in_a_block() {
        let (items, kind) = expanded(&quote!(permits = N), &[]);
        assert_eq!(items, "");
        assert!(kind.contains("of : const {"), "{kind}");
        let (items, kind) = expanded(&quote!(permits = T::PERMITS, weight = 2), &["T"]);
        assert_eq!(items, "");
        assert!(kind.contains("of : const {"), "{kind}");
        assert!(kind.contains("weight : const {"), "{kind}");
    }

    #[test]
    fn constant_in_a_method_may_be_a_parameter_of_its_impl() {
        let mut errors = Errors::default();
        let args = Args::parse(quote!(name = "x", permits = SIZE), &mut errors);
        for (around, is_in_a_block) in [(Surroundings::Impl, true), (Surroundings::Unknown, false)]
        {
            let generics = GenericNames::sample(&[], around);
            let (_, kind) = args.kind.expand(&CratePath::default(), &generics);
            let kind = kind.expect("permits").to_string();
            assert_eq!(kind.contains("of : const {"), is_in_a_block, "{kind}");
        }
    }
}
