//! Writes the durations.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};

use crate::crate_path::CratePath;
use crate::parse::duration::{DurationArg, DurationOption, DurationValue};
use crate::parse::generics::GenericNames;
use crate::parse::kind::KindArgs;
use crate::parse::timing::{RenewArg, Timing};

/// What a call does when another holder has the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Contention {
    Return,
    /// It skips the body. `macro_support` knows how long it waits without `wait`.
    Skip,
}

impl Timing {
    /// Writes an expression of the type `macro_support::Options`.
    pub(super) fn expand(
        &self,
        kind: &KindArgs,
        contention: Contention,
        krate: &CratePath,
        generics: &GenericNames,
    ) -> TokenStream {
        let site = Span::mixed_site();
        let support = krate.at(site);
        let support = quote_spanned!(site=> #support::macro_support);
        let mut items = TokenStream::new();
        let mut fields = Vec::new();
        let mut value = |duration: &DurationArg| {
            let (item, value) = duration.expand(self.ttl.as_ref(), krate, generics);
            items.extend(item);
            value
        };
        // `ttl` comes first, because the checks of the others name its constant.
        for (option, duration) in [
            ("ttl", &self.ttl),
            ("wait", &self.wait),
            ("outage_wait", &self.outage_wait),
            ("max_hold", &self.max_hold),
            ("min_hold", &self.min_hold),
            ("once_per", &self.once_per),
        ] {
            let Some(duration) = duration else {
                continue;
            };
            let value = value(duration);
            let field = Ident::new(option, site);
            fields.push(quote_spanned!(site=> #field: ::core::option::Option::Some(#value)));
        }
        let renew = match &self.renew {
            Some(RenewArg::Every(every)) => {
                let every = value(every);
                Some(quote_spanned!(site=> #support::Renew::Every(#every)))
            }
            Some(RenewArg::Never(_)) => Some(quote_spanned!(site=> #support::Renew::Never)),
            Some(RenewArg::Auto) | None => None,
        };
        fields.extend(renew.map(|renew| quote_spanned!(site=> renew: #renew)));
        let (items_of_kind, value) = kind.expand(krate, generics);
        items.extend(items_of_kind);
        fields.extend(value.map(|kind| quote_spanned!(site=> kind: #kind)));
        if let Some(number) = &kind.max_queue {
            let (item, value) = number.expand(None, krate, generics);
            items.extend(item);
            fields.push(quote_spanned!(site=> max_queue: ::core::option::Option::Some(#value)));
        }
        if contention == Contention::Skip {
            fields.push(quote_spanned!(site=> on_contended: #support::OnContended::Skip));
        }
        let options = match fields.len() {
            0 => quote_spanned!(site=> #support::Options::DEFAULT),
            10 => quote_spanned!(site=> #support::Options { #(#fields,)* }),
            _ => quote_spanned! {site=>
                #support::Options { #(#fields,)* ..#support::Options::DEFAULT }
            },
        };
        if items.is_empty() {
            return options;
        }
        quote!({ #items #options })
    }
}

impl DurationArg {
    /// Writes a constant item that checks the value, and an expression for the value. An item
    /// cannot name generics; for those the expression is a `const` block.
    fn expand(
        &self,
        ttl: Option<&Self>,
        krate: &CratePath,
        generics: &GenericNames,
    ) -> (TokenStream, TokenStream) {
        let site = self.value.site();
        let krate = krate.at(site);
        let value = self.value.expand();
        if let DurationValue::Dynamic(_) = &self.value {
            let value = quote_spanned!(site=> #krate::macro_support::dynamic(#value));
            return (TokenStream::new(), value);
        }
        let ttl = ttl
            .filter(|_| self.option.is_limited_by_ttl())
            .filter(|ttl| !matches!(ttl.value, DurationValue::Dynamic(_)));
        let is_literal = |duration: &Self| matches!(duration.value, DurationValue::Literal(_));
        if is_literal(self) && ttl.is_none_or(is_literal) {
            return (TokenStream::new(), value);
        }
        let checked = if matches!(
            self.option,
            DurationOption::Wait | DurationOption::OutageWait
        ) {
            // Every `Duration` is a valid wait. Only the type is checked.
            value
        } else {
            let check = Ident::new(&format!("checked_{}", self.option.name()), site);
            let ttl = ttl.map(|ttl| ttl.named(generics).unwrap_or_else(|| ttl.value.expand()));
            let arguments = match ttl {
                _ if !self.option.is_limited_by_ttl() => value,
                Some(ttl) => quote_spanned!(site=> #value, ::core::option::Option::Some(#ttl)),
                None => quote_spanned!(site=> #value, ::core::option::Option::None),
            };
            quote_spanned!(site=> #krate::macro_support::#check(#arguments))
        };
        let is_generic = |duration: &Self| duration.value.mentions(generics);
        if is_generic(self) || ttl.is_some_and(is_generic) {
            return (
                TokenStream::new(),
                quote_spanned!(site=> const { #checked }),
            );
        }
        let name = self.constant();
        let item = quote_spanned!(site=> const #name: ::core::time::Duration = #checked;);
        (item, name.into_token_stream())
    }

    /// Writes the name of its constant item, if it has one.
    fn named(&self, generics: &GenericNames) -> Option<TokenStream> {
        let is_constant = matches!(self.value, DurationValue::Constant(_));
        let has_item = is_constant && !self.value.mentions(generics);
        has_item.then(|| self.constant().into_token_stream())
    }

    /// Returns the name of its constant item. Items are not hygienic, so the name has a prefix
    /// that no user's item has.
    fn constant(&self) -> Ident {
        let option = self.option.name().to_ascii_uppercase();
        Ident::new(&format!("__DISTRIBUTED_LOCK_{option}"), self.value.site())
    }
}

impl DurationOption {
    fn is_limited_by_ttl(self) -> bool {
        matches!(self, Self::Renew | Self::MaxHold | Self::MinHold)
    }
}

impl DurationValue {
    fn expand(&self) -> TokenStream {
        match self {
            Self::Literal(literal) => {
                let site = self.site();
                let (seconds, nanos) = (literal.value.as_secs(), literal.value.subsec_nanos());
                quote_spanned!(site=> ::core::time::Duration::new(#seconds, #nanos))
            }
            Self::Constant(value) | Self::Dynamic(value) => value.to_token_stream(),
        }
    }

    fn mentions(&self, generics: &GenericNames) -> bool {
        match self {
            Self::Literal(_) | Self::Dynamic(_) => false,
            Self::Constant(value) => generics.are_in_duration(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use syn::{Expr, parse_quote};

    use super::*;
    use crate::errors::Errors;
    use crate::expand::tests::assert_in_order;
    use crate::parse::generics::Surroundings;

    fn duration(value: Expr, option: DurationOption) -> DurationArg {
        let mut errors = Errors::default();
        let duration = DurationArg::parse(value, option, &mut errors);
        assert_eq!(errors.messages(), <[&str; 0]>::default());
        duration.expect("no error")
    }

    fn expand(value: Expr, generics: &[&str]) -> String {
        let generics = GenericNames::sample(generics, Surroundings::Unknown);
        let (item, value) =
            duration(value, DurationOption::Ttl).expand(None, &CratePath::default(), &generics);
        format!("{item} {value}").trim().to_owned()
    }

    fn options(timing: &Timing, contention: Contention) -> String {
        let (kind, krate) = (KindArgs::default(), CratePath::default());
        timing
            .expand(&kind, contention, &krate, &GenericNames::default())
            .to_string()
    }

    #[test]
    fn literals_expand_to_their_value() {
        assert_eq!(
            expand(parse_quote!("1m30s"), &[]),
            ":: core :: time :: Duration :: new (90u64 , 0u32)"
        );
        assert_eq!(
            expand(parse_quote!(r"100ms"), &[]),
            ":: core :: time :: Duration :: new (0u64 , 100000000u32)"
        );
    }

    #[test]
    fn dynamic_values_are_checked_at_the_call() {
        assert_eq!(
            expand(parse_quote!(dynamic(self.ttl)), &[]),
            ":: lock_core :: macro_support :: dynamic (self . ttl)"
        );
    }

    #[test]
    fn constants_are_checked_in_an_item() {
        let item = expand(parse_quote!(config::TTL), &["T"]);
        assert!(
            item.starts_with("const __DISTRIBUTED_LOCK_TTL : :: core :: time :: Duration ="),
            "{item}"
        );
        assert!(
            item.contains("macro_support :: checked_ttl (config :: TTL)"),
            "{item}"
        );
    }

    #[test]
    fn only_the_type_of_a_constant_wait_is_checked() {
        let timing = Timing {
            wait: Some(duration(parse_quote!(WAIT), DurationOption::Wait)),
            ..Timing::default()
        };
        let text = options(&timing, Contention::Return);
        let item = "const __DISTRIBUTED_LOCK_WAIT : :: core :: time :: Duration = WAIT ;";
        assert!(text.contains(item), "{text}");
    }

    #[test]
    fn constants_precede_their_uses() {
        let timing = Timing {
            ttl: Some(duration(parse_quote!(TTL), DurationOption::Ttl)),
            max_hold: Some(duration(parse_quote!(LONG), DurationOption::MaxHold)),
            ..Timing::default()
        };
        let text = options(&timing, Contention::Return);
        assert_in_order(
            &text,
            &[
                "const __DISTRIBUTED_LOCK_TTL",
                "const __DISTRIBUTED_LOCK_MAX_HOLD",
                "Some (__DISTRIBUTED_LOCK_TTL)",
                "ttl : :: core :: option :: Option :: Some (__DISTRIBUTED_LOCK_TTL)",
            ],
        );
    }

    #[test]
    fn skip_writes_no_wait() {
        let text = options(&Timing::default(), Contention::Skip);
        assert!(text.contains("OnContended :: Skip"), "{text}");
        assert!(
            !text.contains("wait"),
            "a declared lock may have one: {text}"
        );
        let text = options(&Timing::default(), Contention::Return);
        assert!(text.ends_with("Options :: DEFAULT"), "{text}");
    }

    #[test]
    fn constants_are_checked_against_the_ttl() {
        let expanded = |value, ttl: Option<Expr>, generics: &[&str]| {
            let ttl = ttl.map(|ttl| duration(ttl, DurationOption::Ttl));
            let generics = GenericNames::sample(generics, Surroundings::Unknown);
            let (item, value) = duration(value, DurationOption::MaxHold).expand(
                ttl.as_ref(),
                &CratePath::default(),
                &generics,
            );
            format!("{item} {value}")
        };
        let text = expanded(parse_quote!("10s"), Some(parse_quote!("1s")), &[]);
        assert!(!text.contains("checked"), "{text}");
        let text = expanded(parse_quote!("10s"), Some(parse_quote!(TTL)), &[]);
        assert!(
            text.contains("Duration :: new (10u64 , 0u32) , :: core :: option :: Option :: Some")
                && text.contains("Some (__DISTRIBUTED_LOCK_TTL)")
                && text.ends_with("__DISTRIBUTED_LOCK_MAX_HOLD"),
            "{text}"
        );
        let text = expanded(parse_quote!(LONG), Some(parse_quote!("1s")), &[]);
        assert!(text.contains("checked_max_hold (LONG ,"), "{text}");
        let text = expanded(parse_quote!(LONG), Some(parse_quote!(T::TTL)), &["T"]);
        assert!(
            text.trim().starts_with("const {") && text.contains("Some (T :: TTL)"),
            "{text}"
        );
        let text = expanded(parse_quote!(LONG), None, &[]);
        assert!(
            text.contains("(LONG , :: core :: option :: Option :: None)"),
            "{text}"
        );
    }

    #[test]
    fn constants_of_generics_are_checked_in_a_block() {
        for value in [
            parse_quote!(Self::TTL),
            parse_quote!(T::TTL),
            parse_quote!(f(g::<N>())),
            // Of the `impl`, by its shape.
            parse_quote!(C::TTL),
            parse_quote!(2 * C::TTL),
            parse_quote!(<Conf as Lease>::TTL),
            parse_quote!(min(<Conf as Lease>::TTL, MAX)),
        ] {
            let block = expand(value, &["T", "N"]);
            assert!(block.starts_with("const {"), "{block}");
        }
    }
}
