//! The value of an option that takes a duration: `"1m30s"`, a constant, or `dynamic(..)`.

use std::time::Duration;

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, Lit};

use crate::errors::Errors;
use crate::parse::duration_text;
use crate::parse::values::{bare_word, reject_await, shown};

/// An option that takes a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurationOption {
    Ttl,
    Wait,
    OutageWait,
    Renew,
    MaxHold,
    MinHold,
    OncePer,
}

impl DurationOption {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ttl => "ttl",
            Self::Wait => "wait",
            Self::OutageWait => "outage_wait",
            Self::Renew => "renew",
            Self::MaxHold => "max_hold",
            Self::MinHold => "min_hold",
            Self::OncePer => "once_per",
        }
    }

    /// Returns whether the option takes `dynamic(..)`.
    pub(crate) fn may_be_dynamic(self) -> bool {
        matches!(self, Self::Ttl | Self::Wait | Self::OutageWait)
    }

    fn parse_dynamic(self, call: ExprCall, errors: &mut Errors) -> Option<DurationValue> {
        let option = self.name();
        if !self.may_be_dynamic() {
            let message = not_dynamic(option);
            errors.on(call, message);
            return None;
        }
        let mut arguments = call.args.iter();
        let (Some(value), None) = (arguments.next(), arguments.next()) else {
            let message = format!(
                "`dynamic` takes one `Duration`, such as `{option} = dynamic(self.{option})`"
            );
            errors.on(call, message);
            return None;
        };
        reject_await(option, value, errors);
        Some(DurationValue::Dynamic(value.clone()))
    }
}

/// A duration of the attribute.
pub(crate) struct DurationArg {
    pub(crate) option: DurationOption,
    pub(crate) value: DurationValue,
}

pub(crate) enum DurationValue {
    Literal(DurationLiteral),
    /// The compiler evaluates it.
    Constant(Expr),
    /// `dynamic(..)`: the acquire checks it.
    Dynamic(Expr),
}

pub(crate) struct DurationLiteral {
    pub(crate) written: String,
    pub(crate) value: Duration,
    pub(crate) span: Span,
}

impl DurationArg {
    pub(crate) fn parse(value: Expr, option: DurationOption, errors: &mut Errors) -> Option<Self> {
        if let Some(message) = word_for_no_duration(&value, option) {
            errors.on(value, message);
            return None;
        }
        let value = match value {
            Expr::Lit(literal) => DurationLiteral::parse(&literal.lit, errors)?,
            Expr::Call(call) if is_dynamic(&call) => option.parse_dynamic(call, errors)?,
            Expr::Call(call) if option.may_be_dynamic() && call.args.is_empty() => {
                // A function without arguments most likely reads a setting. The compiler's error
                // would only say that the function is not `const`.
                let option = option.name();
                let written = shown(&Expr::Call(call.clone()));
                let message = format!(
                    "`{option}` is a constant: write `{option} = dynamic({written})` when the \
                     value is known at run time, or `{option} = const {{ {written} }}`"
                );
                errors.on(call, message);
                return None;
            }
            constant => DurationValue::Constant(constant),
        };
        Some(Self { option, value })
    }
}

/// Returns the message for `dynamic(..)` of another option than `ttl` and the waits.
pub(crate) fn not_dynamic(option: &str) -> String {
    format!(
        "`{option}` must be known at compile time; only `ttl`, `wait` and `outage_wait` take `dynamic(...)`"
    )
}

/// Returns what to write instead of a word such as `forever`, or of `false`.
fn word_for_no_duration(value: &Expr, option: DurationOption) -> Option<String> {
    let written = match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => text.value(),
            Lit::Bool(value) => value.value.to_string(),
            _ => return None,
        },
        _ => bare_word(value)?.to_string(),
    };
    let (name, shown) = (option.name(), shown(value));
    let is = |words: &[&str]| words.contains(&written.to_lowercase().as_str());
    let is_default = is(&["auto", "default", "automatic"]);
    let is_none = is(&["never", "none", "no", "off", "false", "skip", "zero"]);
    let is_endless = is(&[
        "forever",
        "infinite",
        "infinity",
        "unlimited",
        "always",
        "max",
        "endless",
        "indefinitely",
    ]);
    let advice = match option {
        DurationOption::Ttl if is_default => "leave it out for the manager's `default_ttl`",
        DurationOption::Ttl if is_none || is_endless => {
            "a lock always expires without its holder; leave `ttl` out, and the lock is renewed \
             while the body runs"
        }
        DurationOption::Wait if is_default => "leave it out for the manager's `default_wait`",
        DurationOption::Wait if is_none => "write `wait = \"0s\"`, which tries once",
        DurationOption::Wait if is_endless => "write a long duration, such as `wait = \"24h\"`",
        DurationOption::MaxHold if is_default => {
            "leave it out for the manager's `default_max_hold`"
        }
        DurationOption::MaxHold if is_none || is_endless => {
            "leave it out; there is no limit, unless the manager has a `default_max_hold`"
        }
        DurationOption::MinHold | DurationOption::OncePer if is_default || is_none => {
            "leave it out"
        }
        _ => return None,
    };
    Some(format!("unknown value `{shown}` for `{name}`; {advice}"))
}

impl DurationLiteral {
    fn parse(literal: &Lit, errors: &mut Errors) -> Option<DurationValue> {
        let span = literal.span();
        let parsed = match literal {
            Lit::Str(text) => {
                let written = text.value();
                duration_text::parse(&written).map(|value| (written, value))
            }
            other => Err(not_text(other)),
        };
        match parsed {
            Ok((written, value)) => Some(DurationValue::Literal(Self {
                written,
                value,
                span,
            })),
            Err(message) => {
                errors.at(span, message);
                None
            }
        }
    }
}

impl DurationValue {
    /// Returns the place of the value, where its errors belong.
    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(match self {
            Self::Literal(literal) => literal.span,
            Self::Constant(value) | Self::Dynamic(value) => value.span(),
        })
    }
}

/// Says how to write a literal without quotes.
fn not_text(literal: &Lit) -> String {
    let written = literal.to_token_stream().to_string();
    let (digits, suffix) = match literal {
        Lit::Int(number) => (number.base10_digits(), number.suffix()),
        Lit::Float(number) => (number.base10_digits(), number.suffix()),
        _ => ("", ""),
    };
    duration_text::not_text(&written, digits, suffix)
}

/// Returns whether a call is `dynamic(..)`.
pub(crate) fn is_dynamic(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Path(callee) if callee.path.is_ident("dynamic"))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn error(value: Expr, option: DurationOption) -> String {
        let mut errors = Errors::default();
        assert!(DurationArg::parse(value, option, &mut errors).is_none());
        errors.messages().join("\n")
    }

    #[test]
    fn dynamic_takes_one_duration_of_ttl_or_wait() {
        for (value, option, expected) in [
            (
                parse_quote!(dynamic(a)),
                DurationOption::Renew,
                "`renew` must be known at compile time; only `ttl`, `wait` and `outage_wait` \
                 take `dynamic(...)`",
            ),
            (
                parse_quote!(dynamic()),
                DurationOption::Wait,
                "`dynamic` takes one `Duration`, such as `wait = dynamic(self.wait)`",
            ),
            (
                parse_quote!(dynamic(a, b)),
                DurationOption::Ttl,
                "`dynamic` takes one `Duration`, such as `ttl = dynamic(self.ttl)`",
            ),
        ] {
            assert_eq!(error(value, option), expected);
        }
    }

    #[test]
    fn words_for_no_duration_are_explained() {
        let (wait, ttl) = (DurationOption::Wait, DurationOption::Ttl);
        for (value, option, expected) in [
            (
                parse_quote!(forever),
                wait,
                "write a long duration, such as `wait = \"24h\"`",
            ),
            (
                parse_quote!("forever"),
                wait,
                "write a long duration, such as `wait = \"24h\"`",
            ),
            (
                parse_quote!(false),
                wait,
                "write `wait = \"0s\"`, which tries once",
            ),
            (
                parse_quote!(never),
                wait,
                "write `wait = \"0s\"`, which tries once",
            ),
            (
                parse_quote!(None),
                wait,
                "write `wait = \"0s\"`, which tries once",
            ),
            (
                parse_quote!(auto),
                ttl,
                "leave it out for the manager's `default_ttl`",
            ),
            (
                parse_quote!(never),
                DurationOption::MaxHold,
                "leave it out; there is no limit, unless the manager has a `default_max_hold`",
            ),
            (
                parse_quote!("none"),
                DurationOption::MaxHold,
                "leave it out; there is no limit, unless the manager has a `default_max_hold`",
            ),
            (parse_quote!(false), DurationOption::MinHold, "leave it out"),
        ] {
            let text = error(value, option);
            assert!(text.starts_with("unknown value `"), "{text}");
            assert!(
                text.ends_with(&format!("` for `{}`; {expected}", option.name())),
                "{text}"
            );
        }
        let text = error(parse_quote!(never), ttl);
        assert!(text.contains("leave `ttl` out"), "{text}");
    }

    #[test]
    fn function_without_arguments_is_no_constant() {
        assert_eq!(
            error(parse_quote!(config::ttl()), DurationOption::Ttl),
            "`ttl` is a constant: write `ttl = dynamic(config::ttl())` when the value is known at \
             run time, or `ttl = const { config::ttl() }`"
        );
        let mut errors = Errors::default();
        for (value, option) in [
            (parse_quote!(const { ttl() }), DurationOption::Ttl),
            (parse_quote!(seconds(3)), DurationOption::Ttl),
            (parse_quote!(Duration::from_secs(3)), DurationOption::Wait),
            (parse_quote!(longest()), DurationOption::MaxHold),
        ] {
            let parsed = DurationArg::parse(value, option, &mut errors);
            assert!(parsed.is_some_and(|it| matches!(it.value, DurationValue::Constant(_))));
        }
        assert_eq!(errors.messages(), <[&str; 0]>::default());
    }

    #[test]
    fn literal_without_quotes_is_rewritten() {
        for (value, written, meant) in [
            (parse_quote!(30), "30", "30s"),
            (parse_quote!(30u64), "30u64", "30s"),
            (parse_quote!(5_0min), "5_0min", "50m"),
            (parse_quote!(1m30s), "1m30s", "1m30s"),
            (parse_quote!(0.25s), "0.25s", "250ms"),
            (parse_quote!(true), "true", "30s"),
            (parse_quote!(b"30s"), "b\"30s\"", "30s"),
        ] {
            assert_eq!(
                error(value, DurationOption::Wait),
                format!("invalid duration `{written}`: write it as \"{meant}\"")
            );
        }
    }
}
