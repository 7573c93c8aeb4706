//! The options that take a duration, and `renew`.

use proc_macro2::Ident;
use syn::{Expr, Lit};

use crate::errors::Errors;
use crate::parse::duration::{DurationArg, DurationOption, DurationValue};
use crate::parse::values::{bare_word, word};

/// How long the lock is waited for, held and renewed.
#[derive(Default)]
pub(crate) struct Timing {
    pub(crate) ttl: Option<DurationArg>,
    pub(crate) wait: Option<DurationArg>,
    pub(crate) outage_wait: Option<DurationArg>,
    pub(crate) renew: Option<RenewArg>,
    pub(crate) max_hold: Option<DurationArg>,
    pub(crate) min_hold: Option<DurationArg>,
    pub(crate) once_per: Option<DurationArg>,
}

/// Whether and how often the lock is renewed.
pub(crate) enum RenewArg {
    Auto,
    Never(Ident),
    Every(DurationArg),
}

impl RenewArg {
    pub(crate) fn parse(value: Expr, errors: &mut Errors) -> Option<Self> {
        // Constants are written in capitals. A word in small letters is a word of this option.
        let is_word = bare_word(&value)
            .is_some_and(|ident| !ident.to_string().contains(char::is_uppercase))
            || matches!(&value, Expr::Lit(literal) if is_word(&literal.lit));
        if !is_word {
            return DurationArg::parse(value, DurationOption::Renew, errors).map(Self::Every);
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

/// Returns whether a literal most likely stands for a word of `renew`.
fn is_word(literal: &Lit) -> bool {
    match literal {
        Lit::Bool(_) => true,
        Lit::Str(text) => ["auto", "never"].contains(&text.value().to_lowercase().as_str()),
        _ => false,
    }
}

impl Timing {
    /// Returns the interval of `renew = "10s"`.
    pub(crate) fn renew_every(&self) -> Option<&DurationArg> {
        match &self.renew {
            Some(RenewArg::Every(every)) => Some(every),
            Some(RenewArg::Auto | RenewArg::Never(_)) | None => None,
        }
    }

    /// Returns all durations, `ttl` first.
    pub(crate) fn durations(&self) -> impl Iterator<Item = &DurationArg> {
        let of_waits = [&self.ttl, &self.wait, &self.outage_wait];
        let of_holds = [&self.max_hold, &self.min_hold, &self.once_per];
        of_waits
            .into_iter()
            .chain(of_holds)
            .flatten()
            .chain(self.renew_every())
    }

    /// Returns the expressions in `dynamic(..)`.
    pub(crate) fn dynamic_values(&self) -> impl Iterator<Item = &Expr> {
        self.durations()
            .filter_map(|duration| match &duration.value {
                DurationValue::Dynamic(value) => Some(value),
                DurationValue::Literal(_) | DurationValue::Constant(_) => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn renew(value: Expr) -> (Option<RenewArg>, Vec<String>) {
        let mut errors = Errors::default();
        let renew = RenewArg::parse(value, &mut errors);
        (renew, errors.messages())
    }

    #[test]
    fn renew_is_a_word_or_a_duration() {
        assert!(matches!(renew(parse_quote!(auto)).0, Some(RenewArg::Auto)));
        assert!(matches!(
            renew(parse_quote!(never)).0,
            Some(RenewArg::Never(_))
        ));
        for every in [
            parse_quote!("10s"),
            parse_quote!(EVERY),
            parse_quote!(config::every),
            parse_quote!(seconds(3)),
        ] {
            assert!(matches!(renew(every).0, Some(RenewArg::Every(_))));
        }
        assert_eq!(
            renew(parse_quote!(sometimes)).1,
            [
                "unknown value `sometimes` for `renew`; expected one of: `auto`, `never`, \
                 a duration such as \"10s\""
            ]
        );
        assert_eq!(
            renew(parse_quote!("never")).1,
            ["unknown value `\"never\"` for `renew`; write `never` without quotes"]
        );
        assert_eq!(
            renew(parse_quote!(30)).1,
            ["invalid duration `30`: write it as \"30s\""]
        );
    }
}
