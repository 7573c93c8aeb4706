//! Checks durations: the limits of each option, and the limits that `ttl` sets to the others.

use std::time::Duration;

use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::Expr;
use syn::ext::IdentExt;

use crate::errors::Errors;
use crate::parse::duration::{DurationArg, DurationLiteral, DurationOption, DurationValue};
use crate::parse::scope::Scope;
use crate::parse::timing::{RenewArg, Timing};
use crate::parse::values::shown;

/// The shortest `ttl`. A shorter lease would expire whenever an ordinary network is slow.
const MIN_TTL: Duration = Duration::from_millis(100);

/// The longest `ttl`. A longer one is most likely a mistake in the unit.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// The shortest renewal interval. A shorter one would only load the server.
const MIN_RENEWAL: Duration = Duration::from_millis(10);

/// The shortest `once_per`. A shorter period would be over before other callers come.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);

/// The longest `once_per`. A longer one is most likely a mistake in the unit.
const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);

/// Checks all durations of one attribute.
pub(crate) fn timing(timing: &Timing, scope: &Scope, errors: &mut Errors) {
    let ttl = timing.ttl.as_ref().and_then(DurationArg::as_literal);
    let ttl_is_valid = ttl.is_none_or(|ttl| limits(DurationOption::Ttl, ttl).is_none());
    for duration in timing.durations() {
        match &duration.value {
            DurationValue::Literal(literal) => {
                let message = limits(duration.option, literal).or_else(|| {
                    let ttl = ttl.filter(|_| ttl_is_valid)?;
                    relation(duration.option, literal, ttl)
                });
                if let Some(message) = message {
                    errors.at(literal.span, message);
                }
            }
            DurationValue::Constant(_) => parameter_in_a_constant(duration, scope, errors),
            DurationValue::Dynamic(_) => {}
        }
    }
    if let (Some(RenewArg::Never(never)), Some(_)) = (&timing.renew, &timing.max_hold) {
        let message = "`max_hold` needs renewal; remove `renew = never`";
        errors.on(never, message);
    }
}

impl DurationArg {
    fn as_literal(&self) -> Option<&DurationLiteral> {
        match &self.value {
            DurationValue::Literal(literal) => Some(literal),
            DurationValue::Constant(_) | DurationValue::Dynamic(_) => None,
        }
    }
}

/// Checks the limits that do not depend on the given `ttl`. Every `wait` and `outage_wait` is valid.
fn limits(option: DurationOption, literal: &DurationLiteral) -> Option<String> {
    let value = literal.value;
    let limit = match option {
        DurationOption::Ttl if value < MIN_TTL => "at least 100 ms",
        DurationOption::Ttl if value > MAX_TTL => "at most 24 h",
        DurationOption::Renew if value < MIN_RENEWAL => "at least 10 ms",
        // The limits below follow from those of `ttl`, also when the manager sets it.
        DurationOption::Renew if value > MAX_TTL / 2 => "at most 12 h, half of the longest `ttl`",
        DurationOption::MaxHold if value <= MIN_TTL => "longer than 100 ms, the shortest `ttl`",
        DurationOption::OncePer if value < SHORTEST_PERIOD => "at least 100 ms",
        DurationOption::OncePer if value > LONGEST_PERIOD => "at most 366 days",
        DurationOption::MinHold if value >= MAX_TTL => "shorter than 24 h, the longest `ttl`",
        _ => return None,
    };
    let (option, written) = (option.name(), &literal.written);
    Some(format!("`{option}` (\"{written}\") must be {limit}"))
}

/// Checks the limit that `ttl` sets to another option.
fn relation(
    option: DurationOption,
    literal: &DurationLiteral,
    ttl: &DurationLiteral,
) -> Option<String> {
    let value = literal.value;
    let limit = match option {
        DurationOption::Renew if value > ttl.value / 2 => "at most half of",
        DurationOption::MaxHold if value <= ttl.value => "longer than",
        DurationOption::MinHold if value >= ttl.value => "shorter than",
        _ => return None,
    };
    let (option, written, of_ttl) = (option.name(), &literal.written, &ttl.written);
    Some(format!(
        "`{option}` (\"{written}\") must be {limit} `ttl` (\"{of_ttl}\")"
    ))
}

/// Rejects a parameter in a constant, and says what to write.
fn parameter_in_a_constant(duration: &DurationArg, scope: &Scope, errors: &mut Errors) {
    if let DurationValue::Constant(value) = &duration.value {
        let advice = if duration.option.may_be_dynamic() {
            ConstantAdvice::Dynamic
        } else {
            ConstantAdvice::Builder
        };
        constant(duration.option.name(), value, advice, scope, errors);
    }
}

/// What to write for a value that is only known at the call.
#[derive(Clone, Copy)]
pub(super) enum ConstantAdvice {
    Dynamic,
    Builder,
}

/// Rejects a parameter in the constant of an option.
pub(super) fn constant(
    option: &str,
    value: &Expr,
    advice: ConstantAdvice,
    scope: &Scope,
    errors: &mut Errors,
) {
    let Some(name) = parameter(value.to_token_stream(), scope) else {
        return;
    };
    let written = shown(&of_self(value.to_token_stream(), scope));
    let advice = match advice {
        ConstantAdvice::Dynamic => format!("write `{option} = dynamic({written})`"),
        // A declaration is no call: it has no builder.
        ConstantAdvice::Builder if scope.is_struct() => {
            "give it a constant, or a const parameter of the struct".into()
        }
        ConstantAdvice::Builder => {
            let argument = if option == "renew" {
                format!("Renew::Every({written})")
            } else {
                written
            };
            format!(
                "give it a constant, or use the builder: `locks.lock(name).{option}({argument})`"
            )
        }
    };
    errors.on(
        value,
        format!("`{option}` is a constant, but `{name}` is only known at the call: {advice}"),
    );
}

/// Returns the first parameter that `tokens` name.
fn parameter(tokens: TokenStream, scope: &Scope) -> Option<String> {
    let mut before = None;
    for token in tokens {
        let found = match &token {
            TokenTree::Ident(ident) => parameter_name(ident, before, scope),
            TokenTree::Group(group) => parameter(group.stream(), scope),
            TokenTree::Punct(_) | TokenTree::Literal(_) => None,
        };
        if found.is_some() {
            return found;
        }
        before = punctuation(&token);
    }
    None
}

/// Writes `self.` before the fields of a struct that `tokens` name. In a declaration they are no variables.
fn of_self(tokens: TokenStream, scope: &Scope) -> TokenStream {
    if !scope.is_struct() {
        return tokens;
    }
    let mut before = None;
    let mut written = TokenStream::new();
    for token in tokens {
        let last = std::mem::replace(&mut before, punctuation(&token));
        match token {
            TokenTree::Ident(ident)
                if ident != "self" && parameter_name(&ident, last, scope).is_some() =>
            {
                written.extend(quote!(self.#ident));
            }
            TokenTree::Group(group) => {
                let inner = of_self(group.stream(), scope);
                written.extend([TokenTree::from(Group::new(group.delimiter(), inner))]);
            }
            other => written.extend([other]),
        }
    }
    written
}

/// Returns the name of an identifier after the character `before`, if it is a parameter.
fn parameter_name(ident: &Ident, before: Option<char>, scope: &Scope) -> Option<String> {
    // A field or a method follows a point, and an item follows colons.
    let name = Some(ident.unraw().to_string()).filter(|_| !matches!(before, Some('.' | ':')))?;
    scope.find(&name).map(|_| name)
}

fn punctuation(token: &TokenTree) -> Option<char> {
    match token {
        TokenTree::Punct(punct) => Some(punct.as_char()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::args::Args;

    fn errors(options: &TokenStream) -> Vec<String> {
        let mut errors = Errors::default();
        let scope = Scope::sample(&["ttl", "config"], true);
        let args = Args::parse(quote!(name = "x", #options), &mut errors);
        timing(&args.timing, &scope, &mut errors);
        errors.messages()
    }

    fn error(options: &TokenStream) -> String {
        errors(options).join("\n")
    }

    #[test]
    fn ttl_has_limits() {
        for (ttl, limit) in [
            ("50ms", "at least 100 ms"),
            ("0s", "at least 100 ms"),
            ("25h", "at most 24 h"),
            ("99999999999999999999h1s", "at most 24 h"),
        ] {
            assert_eq!(
                error(&quote!(ttl = #ttl)),
                format!("`ttl` (\"{ttl}\") must be {limit}")
            );
        }
        assert_eq!(error(&quote!(ttl = "100ms")), "");
        assert_eq!(error(&quote!(ttl = "24h")), "");
    }

    #[test]
    fn wait_may_be_zero_and_longer_than_any_ttl() {
        for wait in ["0s", "0ms", "48h"] {
            assert_eq!(error(&quote!(wait = #wait, outage_wait = #wait)), "");
        }
    }

    #[test]
    fn renew_has_a_shortest_interval() {
        assert_eq!(
            error(&quote!(renew = "9ms")),
            "`renew` (\"9ms\") must be at least 10 ms"
        );
        assert_eq!(error(&quote!(renew = "10ms")), "");
    }

    #[test]
    fn durations_are_checked_against_the_ttl() {
        assert_eq!(
            errors(&quote!(
                ttl = "30s",
                renew = "20s",
                max_hold = "10s",
                min_hold = "40s"
            )),
            [
                "`max_hold` (\"10s\") must be longer than `ttl` (\"30s\")",
                "`min_hold` (\"40s\") must be shorter than `ttl` (\"30s\")",
                "`renew` (\"20s\") must be at most half of `ttl` (\"30s\")",
            ]
        );
        assert_eq!(
            error(&quote!(ttl = "30s", max_hold = "30s")),
            "`max_hold` (\"30s\") must be longer than `ttl` (\"30s\")"
        );
        for valid in [
            quote!(
                ttl = "30s",
                renew = "15s",
                max_hold = "30001ms",
                min_hold = "29999ms"
            ),
            quote!(ttl = "30s", wait = "1h", min_hold = TTL),
            quote!(ttl = TTL, renew = "20s"),
        ] {
            assert_eq!(error(&valid), "");
        }
    }

    #[test]
    fn period_may_be_longer_than_any_ttl() {
        for (options, expected) in [
            (
                quote!(once_per = "0s"),
                "`once_per` (\"0s\") must be at least 100 ms",
            ),
            (
                quote!(once_per = "8785h"),
                "`once_per` (\"8785h\") must be at most 366 days",
            ),
        ] {
            assert_eq!(error(&options), expected);
        }
        assert_eq!(error(&quote!(once_per = "8784h", ttl = "1s")), "");
    }

    #[test]
    fn invalid_ttl_is_not_compared_with_other_durations() {
        assert_eq!(
            error(&quote!(ttl = "50ms", min_hold = "1s")),
            "`ttl` (\"50ms\") must be at least 100 ms"
        );
    }

    #[test]
    fn max_hold_needs_renewal() {
        assert_eq!(
            error(&quote!(max_hold = "1h", renew = never)),
            "`max_hold` needs renewal; remove `renew = never`"
        );
    }

    #[test]
    fn durations_that_no_ttl_allows_are_rejected_without_a_ttl() {
        for (options, expected) in [
            (
                quote!(max_hold = "0s"),
                "`max_hold` (\"0s\") must be longer than 100 ms, the shortest `ttl`",
            ),
            (
                quote!(max_hold = "100ms"),
                "`max_hold` (\"100ms\") must be longer than 100 ms, the shortest `ttl`",
            ),
            (
                quote!(min_hold = "25h"),
                "`min_hold` (\"25h\") must be shorter than 24 h, the longest `ttl`",
            ),
            (
                quote!(renew = "13h"),
                "`renew` (\"13h\") must be at most 12 h, half of the longest `ttl`",
            ),
        ] {
            assert_eq!(error(&options), expected);
        }
        let valid = quote!(max_hold = "101ms", min_hold = "23h59m", renew = "12h");
        assert_eq!(error(&valid), "");
    }

    #[test]
    fn parameter_is_no_constant() {
        assert_eq!(
            error(&quote!(ttl = ttl)),
            "`ttl` is a constant, but `ttl` is only known at the call: write \
             `ttl = dynamic(ttl)`"
        );
        assert_eq!(
            error(&quote!(wait = config.wait)),
            "`wait` is a constant, but `config` is only known at the call: write \
             `wait = dynamic(config.wait)`"
        );
        assert_eq!(
            error(&quote!(max_hold = self.longest)),
            "`max_hold` is a constant, but `self` is only known at the call: give it a \
             constant, or use the builder: `locks.lock(name).max_hold(self.longest)`"
        );
        assert_eq!(
            error(&quote!(renew = self.every)),
            "`renew` is a constant, but `self` is only known at the call: give it a constant, or use \
             the builder: `locks.lock(name).renew(Renew::Every(self.every))`"
        );
        for ttl in [
            quote!(TTL),
            quote!(limits::ttl),
            quote!(dynamic(ttl)),
            quote!(LIMITS.ttl),
        ] {
            assert_eq!(error(&quote!(ttl = #ttl)), "");
        }
    }
}
