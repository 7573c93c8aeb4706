//! The durations of an attribute together: what they demand of each other.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Expr, Lit};

use crate::duration::{DurationArg, DurationOption, GenericNames};
use crate::errors::Errors;
use crate::scope::Scope;
use crate::value::{CratePath, bare_word, word};

/// How long the lock is waited for, kept and renewed.
#[derive(Default)]
pub(crate) struct Timing {
    pub(crate) ttl: Option<DurationArg>,
    pub(crate) wait: Option<DurationArg>,
    pub(crate) renew: Option<Renew>,
    pub(crate) max_hold: Option<DurationArg>,
    pub(crate) min_hold: Option<DurationArg>,
}

/// Whether and how often the lock is renewed.
pub(crate) enum Renew {
    Auto,
    Never(Ident),
    Every(DurationArg),
}

impl Renew {
    pub(crate) fn new(value: Expr, errors: &mut Errors) -> Option<Self> {
        // Constants are written in capitals, so that a word in small letters was meant as one of
        // ours.
        let is_word = bare_word(&value)
            .is_some_and(|ident| !ident.to_string().contains(char::is_uppercase))
            || matches!(&value, Expr::Lit(literal) if matches!(literal.lit, Lit::Bool(_)));
        if !is_word {
            return DurationArg::new(value, DurationOption::Renew, errors).map(Self::Every);
        }
        let duration = ", a duration such as \"10s\"";
        let word = word("renew", &value, &["auto", "never"], duration, errors)?;
        Some(if word == "never" {
            Self::Never(word)
        } else {
            Self::Auto
        })
    }
}

impl Timing {
    /// Checks what can be known before the compiler evaluates anything.
    pub(crate) fn check(&self, errors: &mut Errors) {
        if let Some(ttl) = &self.ttl {
            if let Some(Renew::Every(every)) = &self.renew {
                every.relate(ttl, errors);
            }
            for length in [&self.max_hold, &self.min_hold].into_iter().flatten() {
                length.relate(ttl, errors);
            }
        }
        if let (Some(Renew::Never(never)), Some(_)) = (&self.renew, &self.max_hold) {
            let message = "`max_hold` needs renewal; remove `renew = never`";
            errors.on(never, message);
        }
    }

    /// Checks what depends on the function.
    pub(crate) fn resolve(&self, scope: &Scope, errors: &mut Errors) {
        let every = match &self.renew {
            Some(Renew::Every(every)) => Some(every),
            Some(Renew::Auto | Renew::Never(_)) | None => None,
        };
        let all = [&self.ttl, &self.wait, &self.max_hold, &self.min_hold];
        for length in all.into_iter().flatten().chain(every) {
            length.resolve(scope, errors);
        }
    }

    /// The expressions of `dynamic(..)`.
    pub(crate) fn dynamic(&self) -> impl Iterator<Item = &Expr> {
        [&self.ttl, &self.wait]
            .into_iter()
            .flatten()
            .filter_map(DurationArg::as_dynamic)
    }

    /// Writes an expression of the type `macro_support::Options`. Without `wait`, `tries_once`
    /// selects one attempt in place of the manager's default.
    pub(crate) fn expand(
        &self,
        krate: &CratePath,
        generics: &GenericNames,
        tries_once: bool,
    ) -> TokenStream {
        let site = Span::mixed_site();
        let support = krate.at(site);
        let support = quote_spanned!(site=> #support::macro_support);
        let mut items = TokenStream::new();
        let mut fields = TokenStream::new();
        let mut value = |length: &DurationArg| {
            let (item, value) = length.expand(self.ttl.as_ref(), krate, generics);
            items.extend(item);
            value
        };
        // The `ttl` first: the checks of the others name its constant.
        let durations = [
            ("ttl", &self.ttl),
            ("wait", &self.wait),
            ("max_hold", &self.max_hold),
            ("min_hold", &self.min_hold),
        ];
        let mut given = 0;
        for (option, length) in durations {
            if let Some(length) = length {
                let value = value(length);
                let field = Ident::new(option, site);
                fields.extend(quote_spanned! {site=>
                    #field: ::core::option::Option::Some(#value),
                });
                given += 1;
            } else if option == "wait" && tries_once {
                fields.extend(quote_spanned! {site=>
                    wait: ::core::option::Option::Some(::core::time::Duration::ZERO),
                });
                given += 1;
            }
        }
        let renew = match &self.renew {
            Some(Renew::Every(every)) => {
                let every = value(every);
                Some(quote_spanned!(site=> #support::Renew::Every(#every)))
            }
            Some(Renew::Never(_)) => Some(quote_spanned!(site=> #support::Renew::Never)),
            Some(Renew::Auto) | None => None,
        };
        if let Some(renew) = renew {
            fields.extend(quote_spanned!(site=> renew: #renew,));
            given += 1;
        }
        let options = match given {
            0 => quote_spanned!(site=> #support::Options::DEFAULT),
            5 => quote_spanned!(site=> #support::Options { #fields }),
            _ => {
                quote_spanned!(site=> #support::Options { #fields ..#support::Options::DEFAULT })
            }
        };
        if items.is_empty() {
            return options;
        }
        quote!({ #items #options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn renew(value: Expr) -> (Option<Renew>, Vec<String>) {
        let mut errors = Errors::default();
        let renew = Renew::new(value, &mut errors);
        (renew, errors.messages())
    }

    #[test]
    fn renew_is_a_word_or_a_duration() {
        assert!(matches!(renew(parse_quote!(auto)).0, Some(Renew::Auto)));
        assert!(matches!(
            renew(parse_quote!(never)).0,
            Some(Renew::Never(_))
        ));
        for every in [
            parse_quote!("10s"),
            parse_quote!(EVERY),
            parse_quote!(config::every),
            parse_quote!(seconds(3)),
        ] {
            assert!(matches!(renew(every).0, Some(Renew::Every(_))));
        }
        assert_eq!(
            renew(parse_quote!(sometimes)).1,
            [
                "unknown value `sometimes` for `renew`; expected one of: `auto`, `never`, \
                 a duration such as \"10s\""
            ]
        );
        assert_eq!(
            renew(parse_quote!(30)).1,
            ["invalid duration `30`: write it as \"30s\""]
        );
    }

    #[test]
    fn constants_stand_before_what_uses_them() {
        let mut errors = Errors::default();
        let timing = Timing {
            ttl: DurationArg::new(parse_quote!(TTL), DurationOption::Ttl, &mut errors),
            max_hold: DurationArg::new(parse_quote!(LONG), DurationOption::MaxHold, &mut errors),
            ..Timing::default()
        };
        let text = timing
            .expand(&CratePath::default(), &GenericNames::default(), false)
            .to_string();
        let places: Vec<_> = [
            "const __DISTRIBUTED_LOCK_TTL",
            "const __DISTRIBUTED_LOCK_MAX_HOLD",
            "Some (__DISTRIBUTED_LOCK_TTL)",
            "ttl : :: core :: option :: Option :: Some (__DISTRIBUTED_LOCK_TTL)",
        ]
        .iter()
        .map(|part| text.find(part))
        .collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{text}"
        );
    }

    #[test]
    fn one_attempt_is_a_zero_wait() {
        let expanded = |timing: &Timing, tries_once| {
            timing
                .expand(&CratePath::default(), &GenericNames::default(), tries_once)
                .to_string()
        };
        let zero =
            "wait : :: core :: option :: Option :: Some (:: core :: time :: Duration :: ZERO)";
        assert!(expanded(&Timing::default(), true).contains(zero));
        assert!(!expanded(&Timing::default(), false).contains("wait"));
        let mut errors = Errors::default();
        let timing = Timing {
            wait: DurationArg::new(parse_quote!("1s"), DurationOption::Wait, &mut errors),
            ..Timing::default()
        };
        assert!(
            !expanded(&timing, true).contains(zero),
            "a given `wait` wins"
        );
    }
}
