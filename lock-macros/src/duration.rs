//! Durations: `"1m30s"`, or an expression that the compiler evaluates.

use std::collections::BTreeSet;
use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, GenericParam, Lit, Signature};

use crate::errors::Errors;
use crate::scope::Scope;
use crate::value::{CratePath, refuse_await, shown};

/// The units, longest first: the order in which they must be written.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Below this a lease would be lost to the jitter of an ordinary network.
const MIN_TTL: Duration = Duration::from_millis(100);

/// Above this nobody waits for a crashed holder; it is a mistake in the unit.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// Renewing more often would keep a server busy and help nobody.
const MIN_RENEWAL: Duration = Duration::from_millis(10);

/// What an option that takes a duration demands of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurationOption {
    Ttl,
    Wait,
    Renew,
    MaxHold,
    MinHold,
}

impl DurationOption {
    /// The part of the rule that does not depend on another option.
    fn check(self, written: &str, value: Duration) -> Result<(), String> {
        match self {
            Self::Ttl if value < MIN_TTL => {
                Err(format!("`ttl` (\"{written}\") must be at least 100 ms"))
            }
            Self::Ttl if value > MAX_TTL => {
                Err(format!("`ttl` (\"{written}\") must be at most 24 h"))
            }
            Self::Renew if value < MIN_RENEWAL => {
                Err(format!("`renew` (\"{written}\") must be at least 10 ms"))
            }
            // What no `ttl` can satisfy, whether it is given here or by the manager.
            Self::Renew if value > MAX_TTL / 2 => Err(format!(
                "`renew` (\"{written}\") must be at most 12 h, half of the longest `ttl`"
            )),
            Self::MaxHold if value <= MIN_TTL => Err(format!(
                "`max_hold` (\"{written}\") must be longer than 100 ms, the shortest `ttl`"
            )),
            Self::MinHold if value >= MAX_TTL => Err(format!(
                "`min_hold` (\"{written}\") must be shorter than 24 h, the longest `ttl`"
            )),
            _ => Ok(()),
        }
    }

    fn may_be_dynamic(self) -> bool {
        matches!(self, Self::Ttl | Self::Wait)
    }

    /// Reads `dynamic(..)`.
    fn dynamic(self, call: ExprCall, errors: &mut Errors) -> Option<DurationValue> {
        let option = self.option();
        if !self.may_be_dynamic() {
            let message = format!(
                "`{option}` is known when the code is compiled; only `ttl` and `wait` take \
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
        refuse_await(option, value, errors);
        Some(DurationValue::Dynamic(value.clone()))
    }

    /// What the option demands in relation to `ttl`: whether that is broken, and how it is said.
    fn against(self, value: Duration, ttl: Duration) -> Option<&'static str> {
        match self {
            Self::Renew if value > ttl / 2 => Some("at most half of"),
            Self::MaxHold if value <= ttl => Some("longer than"),
            Self::MinHold if value >= ttl => Some("shorter than"),
            _ => None,
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::Ttl => "ttl",
            Self::Wait => "wait",
            Self::Renew => "renew",
            Self::MaxHold => "max_hold",
            Self::MinHold => "min_hold",
        }
    }
}

/// The value of an option that takes a duration.
pub(crate) struct DurationArg {
    rule: DurationOption,
    value: DurationValue,
}

enum DurationValue {
    Literal {
        written: String,
        value: Duration,
        span: Span,
    },
    Constant(Expr),
    /// `dynamic(..)`: checked when the lock is acquired.
    Dynamic(Expr),
}

impl DurationArg {
    /// Reads and checks `value`; what is wrong with it goes to `errors`.
    pub(crate) fn new(value: Expr, rule: DurationOption, errors: &mut Errors) -> Option<Self> {
        let Expr::Lit(literal) = &value else {
            let value = match value {
                Expr::Call(call) if is_dynamic(&call) => rule.dynamic(call, errors)?,
                Expr::Call(call) if rule.may_be_dynamic() && call.args.is_empty() => {
                    // A constant has no need of a function without arguments: this one reads it
                    // from somewhere. The compiler would only say that it is not `const`.
                    let option = rule.option();
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
            return Some(Self { rule, value });
        };
        let span = literal.lit.span();
        let parsed = match &literal.lit {
            Lit::Str(text) => {
                let written = text.value();
                parse(&written).and_then(|value| {
                    rule.check(&written, value)?;
                    Ok((written, value))
                })
            }
            other => Err(not_text(other)),
        };
        match parsed {
            Ok((written, value)) => {
                let value = DurationValue::Literal {
                    written,
                    value,
                    span,
                };
                Some(Self { rule, value })
            }
            Err(message) => {
                errors.at(span, message);
                None
            }
        }
    }

    /// Checks what can be known before the compiler evaluates anything.
    pub(crate) fn relate(&self, ttl: &Self, errors: &mut Errors) {
        if let DurationValue::Literal {
            written,
            value,
            span,
        } = &self.value
            && let DurationValue::Literal {
                written: of_ttl,
                value: ttl,
                ..
            } = &ttl.value
            && let Some(must_be) = self.rule.against(*value, *ttl)
        {
            let option = self.rule.option();
            errors.at(
                *span,
                format!("`{option}` (\"{written}\") must be {must_be} `ttl` (\"{of_ttl}\")"),
            );
        }
    }

    /// The expression of `dynamic(..)`.
    pub(crate) fn as_dynamic(&self) -> Option<&Expr> {
        match &self.value {
            DurationValue::Dynamic(value) => Some(value),
            DurationValue::Literal { .. } | DurationValue::Constant(_) => None,
        }
    }

    /// Says of a constant that it names a parameter, and what to write.
    pub(crate) fn resolve(&self, scope: &Scope, errors: &mut Errors) {
        let DurationValue::Constant(value) = &self.value else {
            return;
        };
        let Some(name) = variable(value.to_token_stream(), scope) else {
            return;
        };
        let option = self.rule.option();
        let written = shown(value);
        let message = if self.rule.may_be_dynamic() {
            format!(
                "`{option}` is a constant, and `{name}` is known when the function is called: write \
                 `{option} = dynamic({written})`"
            )
        } else {
            format!(
                "`{option}` is a constant, and `{name}` is known when the function is called: give \
                 it a constant, or use the builder: `locks.lock(name).{option}({written})`"
            )
        };
        errors.on(value, message);
    }

    /// A constant item that holds the value to its rules, and an expression for the value. An item
    /// may not mention generics, and where it would the expression is a `const` block.
    pub(crate) fn expand(
        &self,
        ttl: Option<&Self>,
        krate: &CratePath,
        generics: &GenericNames,
    ) -> (TokenStream, TokenStream) {
        if let DurationValue::Dynamic(value) = &self.value {
            let site = self.value.site();
            let krate = krate.at(site);
            let value = quote_spanned!(site=> #krate::macro_support::dynamic(#value));
            return (TokenStream::new(), value);
        }
        let ttl = ttl.filter(|_| {
            matches!(
                self.rule,
                DurationOption::Renew | DurationOption::MaxHold | DurationOption::MinHold
            )
        });
        let ttl = ttl.filter(|ttl| !matches!(ttl.value, DurationValue::Dynamic(_)));
        let known = |length: &Self| matches!(length.value, DurationValue::Literal { .. });
        if known(self) && ttl.is_none_or(known) {
            return (TokenStream::new(), self.value.expand());
        }
        let site = self.value.site();
        let krate = krate.at(site);
        let rule = format!("checked_{}", self.rule.option());
        let rule = Ident::new(&rule, site);
        let value = self.value.expand();
        let against = match ttl {
            Some(ttl) => {
                let ttl = ttl.named(generics).unwrap_or_else(|| ttl.value.expand());
                quote_spanned!(site=> , ::core::option::Option::Some(#ttl))
            }
            None if matches!(self.rule, DurationOption::Ttl | DurationOption::Wait) => {
                TokenStream::new()
            }
            None => quote_spanned!(site=> , ::core::option::Option::None),
        };
        let checked = if self.rule == DurationOption::Wait {
            // Every `Duration` is a valid `wait`: the constant only has to be one.
            value
        } else {
            quote_spanned!(site=> #krate::macro_support::#rule(#value #against))
        };
        let generic = |length: &Self| length.value.mentions(generics);
        if generic(self) || ttl.is_some_and(generic) {
            return (
                TokenStream::new(),
                quote_spanned!(site=> const { #checked }),
            );
        }
        let name = self.name();
        let item = quote_spanned!(site=> const #name: ::core::time::Duration = #checked;);
        (item, name.into_token_stream())
    }

    /// The name of its constant item, if it has one.
    fn named(&self, generics: &GenericNames) -> Option<TokenStream> {
        let constant = matches!(self.value, DurationValue::Constant(_));
        let item = constant && !self.value.mentions(generics);
        item.then(|| self.name().into_token_stream())
    }

    /// Items are not hygienic: the name must be one that no user's expression means.
    fn name(&self) -> Ident {
        let name = format!(
            "__DISTRIBUTED_LOCK_{}",
            self.rule.option().to_ascii_uppercase()
        );
        Ident::new(&name, self.value.site())
    }
}

impl DurationValue {
    fn site(&self) -> Span {
        Span::mixed_site().located_at(match self {
            Self::Literal { span, .. } => *span,
            Self::Constant(value) | Self::Dynamic(value) => value.span(),
        })
    }

    fn expand(&self) -> TokenStream {
        match self {
            Self::Literal { value, .. } => {
                let site = self.site();
                let (seconds, nanos) = (value.as_secs(), value.subsec_nanos());
                quote_spanned!(site=> ::core::time::Duration::new(#seconds, #nanos))
            }
            Self::Constant(value) | Self::Dynamic(value) => value.to_token_stream(),
        }
    }

    fn mentions(&self, generics: &GenericNames) -> bool {
        match self {
            Self::Literal { .. } | Self::Dynamic(_) => false,
            Self::Constant(value) => generics.are_in(value.to_token_stream()),
        }
    }
}

fn is_dynamic(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Path(callee) if callee.path.is_ident("dynamic"))
}

/// The first variable in `tokens` that is a parameter.
fn variable(tokens: TokenStream, scope: &Scope) -> Option<String> {
    let mut before = None;
    for token in tokens {
        let found = match &token {
            // Behind a point stands a field or a method, behind colons an item.
            TokenTree::Ident(ident) if !matches!(before, Some('.' | ':')) => {
                let name = ident.unraw().to_string();
                scope.find(&name).map(|_| name)
            }
            TokenTree::Group(group) => variable(group.stream(), scope),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
        before = match &token {
            TokenTree::Punct(punct) => Some(punct.as_char()),
            _ => None,
        };
    }
    None
}

/// What a constant item inside the function cannot name.
#[derive(Debug, Default)]
pub(crate) struct GenericNames {
    /// The type and const parameters of the function.
    names: BTreeSet<String>,
    /// It is a method: the parameters of its `impl` are unknown here.
    is_method: bool,
}

impl GenericNames {
    pub(crate) fn new(signature: &Signature) -> Self {
        let parameters = signature.generics.params.iter();
        let names = parameters.filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => Some(parameter.ident.to_string()),
            GenericParam::Const(parameter) => Some(parameter.ident.to_string()),
            GenericParam::Lifetime(_) => None,
        });
        Self {
            names: names.collect(),
            is_method: signature.receiver().is_some(),
        }
    }

    #[cfg(test)]
    fn sample(names: &[&str], is_method: bool) -> Self {
        Self {
            names: names.iter().map(ToString::to_string).collect(),
            is_method,
        }
    }

    /// Whether `tokens` name one of them, or what may be one.
    fn are_in(&self, tokens: TokenStream) -> bool {
        let mut tokens = tokens.into_iter().peekable();
        let mut before = None;
        let mut operand = false;
        while let Some(token) = tokens.next() {
            let found = match &token {
                TokenTree::Ident(ident) => {
                    let name = ident.to_string();
                    let begins_path = before != Some(':')
                        && matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':');
                    name == "Self"
                        || self.names.contains(&name)
                        || (begins_path && self.may_be_of_the_impl(&name))
                }
                TokenTree::Group(group) => self.are_in(group.stream()),
                // `<T as Trait>::TTL`: whatever `T` is, there is no comparison here.
                TokenTree::Punct(punct) => {
                    punct.as_char() == '<' && !operand && before != Some(':')
                }
                TokenTree::Literal(_) => false,
            };
            operand = !matches!(token, TokenTree::Punct(_));
            if found {
                return true;
            }
            before = match &token {
                TokenTree::Punct(punct) => Some(punct.as_char()),
                _ => None,
            };
        }
        false
    }

    /// Whether `Name::` may begin with a parameter of an `impl`: in a method each type may, and
    /// elsewhere what is called as type parameters mostly are.
    fn may_be_of_the_impl(&self, name: &str) -> bool {
        let is_type = name.starts_with(char::is_uppercase) && name != "Duration";
        is_type && (self.is_method || name.chars().count() <= 2)
    }
}

/// `30`, `30s` without quotes, `1m30s`, `1.5s`, `true`.
fn not_text(literal: &Lit) -> String {
    let suggestion = match literal {
        Lit::Int(number) => rewritten(number.base10_digits(), number.suffix()),
        Lit::Float(number) => milliseconds(number.base10_digits(), number.suffix()),
        _ => None,
    };
    let suggestion = suggestion.unwrap_or_else(|| "30s".into());
    format!(
        "invalid duration `{}`: write it as \"{suggestion}\"",
        literal.to_token_stream()
    )
}

/// The duration that was meant by a number and what follows it.
fn rewritten(digits: &str, suffix: &str) -> Option<String> {
    if suffix.is_empty() || is_type_suffix(suffix) {
        return Some(format!("{digits}s"));
    }
    let text = format!("{digits}{suffix}");
    if parse(&text).is_ok() {
        return Some(text);
    }
    let unit = meant_unit(suffix)?;
    Some(match unit {
        "d" => format!("{}h", digits.parse::<u64>().ok()?.checked_mul(24)?),
        unit => format!("{digits}{unit}"),
    })
}

/// `1.5s` as `1500ms`.
fn milliseconds(number: &str, suffix: &str) -> Option<String> {
    let factor = match meant_unit(suffix) {
        Some("h") => 3_600_000.0,
        Some("m") => 60_000.0,
        Some("ms") => return None,
        _ => 1_000.0,
    };
    let milliseconds = (number.parse::<f64>().ok()? * factor).round();
    (1.0..1e12)
        .contains(&milliseconds)
        .then(|| format!("{milliseconds}ms"))
}

fn is_type_suffix(suffix: &str) -> bool {
    let (kind, bits) = suffix.split_at(suffix.len().min(1));
    matches!(kind, "u" | "i" | "f") && matches!(bits, "8" | "16" | "32" | "64" | "128" | "size")
}

/// The unit that other libraries, or people, write otherwise; `d` is none of ours.
fn meant_unit(suffix: &str) -> Option<&'static str> {
    Some(match suffix.to_lowercase().as_str() {
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "ms" | "msec" | "msecs" | "milli" | "millis" | "millisecond" | "milliseconds" => "ms",
        "d" | "day" | "days" => "d",
        _ => return None,
    })
}

fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("invalid duration \"\": write a number and a unit, such as \"30s\"".into());
    }
    let invalid = |advice: &str| Err(format!("invalid duration \"{text}\": {advice}"));
    if text.contains(char::is_whitespace) {
        return invalid("leave out the spaces");
    }
    if text.starts_with(['-', '+']) {
        return invalid("leave out the sign");
    }
    if text.contains(['.', ',']) {
        return invalid("only whole numbers; use a smaller unit, such as \"1500ms\"");
    }
    let mut rest = text;
    let mut smaller = UNITS.as_slice();
    let mut total = Some(0_u64);
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| !c.is_ascii_digit());
        if number.is_empty() {
            return invalid(&format!("put a number before `{unit}`"));
        }
        if unit.is_empty() {
            return invalid(&format!(
                "add a unit, such as \"{text}s\" (`ms`, `s`, `m`, `h`)"
            ));
        }
        let Some((_, factor)) = UNITS.iter().find(|(known, _)| *known == unit) else {
            return Err(format!(
                "unknown unit `{unit}` in \"{text}\"; expected `ms`, `s`, `m` or `h`"
            ));
        };
        let Some(place) = smaller.iter().position(|(known, _)| *known == unit) else {
            return invalid("each unit once, in the order `h`, `m`, `s`, `ms`");
        };
        smaller = &smaller[place + 1..];
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor))
            .and_then(|more| total?.checked_add(more));
        rest = after;
    }
    // A number that no clock can hold is still a number: the option's own limit names the error.
    Ok(Duration::from_millis(total.unwrap_or(u64::MAX)))
}

fn split(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !keep(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn millis(text: &str) -> Result<u128, String> {
        parse(text).map(|length| length.as_millis())
    }

    fn error(value: Expr, rule: DurationOption) -> String {
        let mut errors = Errors::default();
        assert!(DurationArg::new(value, rule, &mut errors).is_none());
        errors.messages().join("\n")
    }

    fn expand(value: Expr, generics: &[&str]) -> String {
        let mut errors = Errors::default();
        let length = DurationArg::new(value, DurationOption::Ttl, &mut errors);
        assert_eq!(errors.messages(), <[&str; 0]>::default());
        let generics = GenericNames::sample(generics, false);
        length.map_or_else(String::new, |length| {
            let (item, value) = length.expand(None, &CratePath::default(), &generics);
            format!("{item} {value}").trim().to_owned()
        })
    }

    #[test]
    fn units_add_up() {
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("1m"), Ok(60_000));
        assert_eq!(millis("1m30s"), Ok(90_000));
        assert_eq!(millis("24h"), Ok(86_400_000));
        assert_eq!(millis("1h2m3s4ms"), Ok(3_723_004));
        assert_eq!(millis("1h4ms"), Ok(3_600_004));
        assert_eq!(millis("90m"), Ok(5_400_000));
        assert_eq!(millis("007s"), Ok(7_000));
        assert_eq!(millis("0s"), Ok(0));
    }

    #[test]
    fn a_missing_unit_is_asked_for() {
        assert_eq!(
            millis("30"),
            Err(
                "invalid duration \"30\": add a unit, such as \"30s\" (`ms`, `s`, `m`, `h`)".into()
            )
        );
        assert_eq!(
            millis("1m30"),
            Err(
                "invalid duration \"1m30\": add a unit, such as \"1m30s\" (`ms`, `s`, `m`, `h`)"
                    .into()
            )
        );
    }

    #[test]
    fn unknown_units_are_quoted() {
        for (text, unit) in [
            ("30sec", "sec"),
            ("30S", "S"),
            ("1m30secs", "secs"),
            ("1d", "d"),
            ("5µs", "µs"),
            ("1_000ms", "_"),
        ] {
            assert_eq!(
                millis(text),
                Err(format!(
                    "unknown unit `{unit}` in \"{text}\"; expected `ms`, `s`, `m` or `h`"
                ))
            );
        }
    }

    #[test]
    fn order_is_kept_and_units_come_once() {
        for text in ["30s1m", "1s1s", "1ms1h", "1m1h1s"] {
            assert_eq!(
                millis(text),
                Err(format!(
                    "invalid duration \"{text}\": each unit once, in the order `h`, `m`, `s`, `ms`"
                ))
            );
        }
    }

    #[test]
    fn other_shapes_are_explained() {
        let advice = |text| {
            let message = millis(text).err().unwrap_or_default();
            message
                .split_once(": ")
                .map(|(_, advice)| advice.to_owned())
                .unwrap_or_default()
        };
        assert_eq!(advice(""), "write a number and a unit, such as \"30s\"");
        assert_eq!(advice("1m 30s"), "leave out the spaces");
        assert_eq!(advice(" 30s"), "leave out the spaces");
        assert_eq!(advice("-30s"), "leave out the sign");
        assert_eq!(advice("s"), "put a number before `s`");
        assert_eq!(
            advice("1.5s"),
            "only whole numbers; use a smaller unit, such as \"1500ms\""
        );
    }

    #[test]
    fn absurd_numbers_do_not_wrap() {
        assert_eq!(millis("99999999999999999999h"), Ok(u128::from(u64::MAX)));
        assert_eq!(millis("18446744073709551615s"), Ok(u128::from(u64::MAX)));
        assert_eq!(
            error(parse_quote!("99999999999999999999h1s"), DurationOption::Ttl),
            "`ttl` (\"99999999999999999999h1s\") must be at most 24 h"
        );
    }

    #[test]
    fn a_ttl_has_limits() {
        assert_eq!(
            error(parse_quote!("50ms"), DurationOption::Ttl),
            "`ttl` (\"50ms\") must be at least 100 ms"
        );
        assert_eq!(
            error(parse_quote!("0s"), DurationOption::Ttl),
            "`ttl` (\"0s\") must be at least 100 ms"
        );
        assert_eq!(
            error(parse_quote!("25h"), DurationOption::Ttl),
            "`ttl` (\"25h\") must be at most 24 h"
        );
        for fine in ["100ms", "24h"] {
            assert_ne!(expand(parse_quote!(#fine), &[]), "");
        }
    }

    #[test]
    fn wait_may_be_zero_and_longer_than_any_ttl() {
        for wait in ["0s", "0ms", "48h"] {
            length(parse_quote!(#wait), DurationOption::Wait);
        }
    }

    #[test]
    fn literals_that_are_not_text_are_rewritten() {
        let advice = |value| error(value, DurationOption::Ttl);
        assert_eq!(
            advice(parse_quote!(30)),
            "invalid duration `30`: write it as \"30s\""
        );
        assert_eq!(
            advice(parse_quote!(500ms)),
            "invalid duration `500ms`: write it as \"500ms\""
        );
        assert_eq!(
            advice(parse_quote!(30u64)),
            "invalid duration `30u64`: write it as \"30s\""
        );
        assert_eq!(
            advice(parse_quote!(1.5)),
            "invalid duration `1.5`: write it as \"1500ms\""
        );
        for (value, meant) in [
            (parse_quote!(5min), "5m"),
            (parse_quote!(5_0min), "50m"),
            (parse_quote!(500millis), "500ms"),
            (parse_quote!(1m30s), "1m30s"),
            (parse_quote!(2hours), "2h"),
            (parse_quote!(2d), "48h"),
            (parse_quote!(30SEC), "30s"),
            (parse_quote!(1.5h), "5400000ms"),
            (parse_quote!(0.25s), "250ms"),
            (parse_quote!(3parsecs), "30s"),
        ] {
            let value: Expr = value;
            let written = value.to_token_stream();
            assert_eq!(
                error(value, DurationOption::Ttl),
                format!("invalid duration `{written}`: write it as \"{meant}\"")
            );
        }
        assert_eq!(
            advice(parse_quote!(true)),
            "invalid duration `true`: write it as \"30s\""
        );
        assert_eq!(
            advice(parse_quote!(b"30s")),
            "invalid duration `b\"30s\"`: write it as \"30s\""
        );
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

    fn length(value: Expr, rule: DurationOption) -> DurationArg {
        let mut errors = Errors::default();
        let length = DurationArg::new(value, rule, &mut errors);
        assert_eq!(errors.messages(), <[&str; 0]>::default());
        length.expect("no error")
    }

    #[test]
    fn literals_are_held_to_the_ttl() {
        let ttl = length(parse_quote!("30s"), DurationOption::Ttl);
        let related = |value, rule| {
            let mut errors = Errors::default();
            length(value, rule).relate(&ttl, &mut errors);
            errors.messages().join("\n")
        };
        assert_eq!(
            related(parse_quote!("20s"), DurationOption::Renew),
            "`renew` (\"20s\") must be at most half of `ttl` (\"30s\")"
        );
        assert_eq!(
            related(parse_quote!("10s"), DurationOption::MaxHold),
            "`max_hold` (\"10s\") must be longer than `ttl` (\"30s\")"
        );
        assert_eq!(
            related(parse_quote!("30s"), DurationOption::MaxHold),
            "`max_hold` (\"30s\") must be longer than `ttl` (\"30s\")"
        );
        assert_eq!(
            related(parse_quote!("40s"), DurationOption::MinHold),
            "`min_hold` (\"40s\") must be shorter than `ttl` (\"30s\")"
        );
        assert_eq!(related(parse_quote!("15s"), DurationOption::Renew), "");
        assert_eq!(
            related(parse_quote!("30001ms"), DurationOption::MaxHold),
            ""
        );
        assert_eq!(
            related(parse_quote!("29999ms"), DurationOption::MinHold),
            ""
        );
        assert_eq!(related(parse_quote!("1h"), DurationOption::Wait), "");
        assert_eq!(related(parse_quote!(TTL), DurationOption::MinHold), "");
    }

    #[test]
    fn a_renewal_has_a_least_interval() {
        assert_eq!(
            error(parse_quote!("9ms"), DurationOption::Renew),
            "`renew` (\"9ms\") must be at least 10 ms"
        );
        length(parse_quote!("10ms"), DurationOption::Renew);
    }

    #[test]
    fn constants_are_held_to_the_ttl_by_the_compiler() {
        let expanded = |value, ttl: Option<Expr>, generics: &[&str]| {
            let ttl = ttl.map(|ttl| length(ttl, DurationOption::Ttl));
            let generics = GenericNames::sample(generics, false);
            let (item, value) = length(value, DurationOption::MaxHold).expand(
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

    #[test]
    fn a_type_in_a_method_may_be_a_generic_of_its_impl() {
        for (value, in_method, elsewhere) in [
            (parse_quote!(Conf::TTL), true, false),
            (parse_quote!(seconds(Conf::SECONDS)), true, false),
            (parse_quote!(Duration::from_secs(3)), false, false),
            (parse_quote!(config::TTL), false, false),
            (parse_quote!(config::Times::TTL), false, false),
            (parse_quote!(TTL), false, false),
            (parse_quote!(if A < B { A } else { B }), false, false),
            (parse_quote!(size_of::<A>()), false, false),
        ] {
            let value: Expr = value;
            let tokens = value.to_token_stream();
            let found = |is_method| GenericNames::sample(&[], is_method).are_in(tokens.clone());
            assert_eq!(
                (found(true), found(false)),
                (in_method, elsewhere),
                "{tokens}"
            );
        }
    }

    #[test]
    fn a_dynamic_value_is_checked_at_the_call() {
        let expanded = expand(parse_quote!(dynamic(self.ttl)), &[]);
        assert_eq!(
            expanded,
            ":: lock_core :: macro_support :: dynamic (self . ttl)"
        );
        for (value, rule, expected) in [
            (
                parse_quote!(dynamic(a)),
                DurationOption::Renew,
                "`renew` is known when the code is compiled; only `ttl` and `wait` take \
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
            assert_eq!(error(value, rule), expected);
        }
    }

    #[test]
    fn a_function_without_arguments_is_no_constant() {
        assert_eq!(
            error(parse_quote!(config::ttl()), DurationOption::Ttl),
            "`ttl` is a constant: write `ttl = dynamic(config::ttl())` when the value is known at \
             run time, or `ttl = const { config::ttl() }`"
        );
        for value in [
            parse_quote!(const { ttl() }),
            parse_quote!(seconds(3)),
            parse_quote!(Duration::from_secs(3)),
        ] {
            length(value, DurationOption::Ttl);
        }
        length(parse_quote!(longest()), DurationOption::MaxHold);
    }

    #[test]
    fn a_parameter_is_no_constant() {
        let scope = Scope::sample(&["ttl", "config"], true);
        let said = |value: Expr, rule| {
            let mut errors = Errors::default();
            let length = DurationArg::new(value, rule, &mut errors);
            length.expect("no error").resolve(&scope, &mut errors);
            errors.messages().join("\n")
        };
        assert_eq!(
            said(parse_quote!(ttl), DurationOption::Ttl),
            "`ttl` is a constant, and `ttl` is known when the function is called: write \
             `ttl = dynamic(ttl)`"
        );
        assert_eq!(
            said(parse_quote!(config.wait), DurationOption::Wait),
            "`wait` is a constant, and `config` is known when the function is called: write \
             `wait = dynamic(config.wait)`"
        );
        assert_eq!(
            said(parse_quote!(self.longest), DurationOption::MaxHold),
            "`max_hold` is a constant, and `self` is known when the function is called: give it a \
             constant, or use the builder: `locks.lock(name).max_hold(self.longest)`"
        );
        for value in [
            parse_quote!(TTL),
            parse_quote!(limits::ttl),
            parse_quote!(dynamic(ttl)),
            parse_quote!(LIMITS.ttl),
        ] {
            assert_eq!(said(value, DurationOption::Ttl), "");
        }
    }

    #[test]
    fn what_no_ttl_can_satisfy_is_refused_without_one() {
        assert_eq!(
            error(parse_quote!("0s"), DurationOption::MaxHold),
            "`max_hold` (\"0s\") must be longer than 100 ms, the shortest `ttl`"
        );
        assert_eq!(
            error(parse_quote!("100ms"), DurationOption::MaxHold),
            "`max_hold` (\"100ms\") must be longer than 100 ms, the shortest `ttl`"
        );
        assert_eq!(
            error(parse_quote!("25h"), DurationOption::MinHold),
            "`min_hold` (\"25h\") must be shorter than 24 h, the longest `ttl`"
        );
        assert_eq!(
            error(parse_quote!("13h"), DurationOption::Renew),
            "`renew` (\"13h\") must be at most 12 h, half of the longest `ttl`"
        );
        length(parse_quote!("101ms"), DurationOption::MaxHold);
        length(parse_quote!("23h59m"), DurationOption::MinHold);
        length(parse_quote!("12h"), DurationOption::Renew);
    }
}
