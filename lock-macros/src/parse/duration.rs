//! The value of an option that takes a duration: `"1m30s"`, a constant, or `dynamic(..)`.

use std::time::Duration;

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, Lit};

use crate::errors::Errors;
use crate::parse::duration_text;
use crate::parse::values::{reject_await, shown};

/// An option that takes a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurationOption {
    Ttl,
    Wait,
    Renew,
    MaxHold,
    MinHold,
}

impl DurationOption {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ttl => "ttl",
            Self::Wait => "wait",
            Self::Renew => "renew",
            Self::MaxHold => "max_hold",
            Self::MinHold => "min_hold",
        }
    }

    /// Returns whether the option takes `dynamic(..)`.
    pub(crate) fn may_be_dynamic(self) -> bool {
        matches!(self, Self::Ttl | Self::Wait)
    }

    fn parse_dynamic(self, call: ExprCall, errors: &mut Errors) -> Option<DurationValue> {
        let option = self.name();
        if !self.may_be_dynamic() {
            let message = format!(
                "`{option}` must be known at compile time; only `ttl` and `wait` take \
                 `dynamic(...)`"
            );
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

fn is_dynamic(call: &ExprCall) -> bool {
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
                "`renew` must be known at compile time; only `ttl` and `wait` take \
                 `dynamic(...)`",
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
