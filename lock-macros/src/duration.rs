//! Durations: `"1m30s"`, or an expression that the compiler evaluates.

use std::collections::BTreeSet;
use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, Lit};

use crate::error::Faults;
use crate::value::Krate;

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
pub(crate) enum Rule {
    Ttl,
    Wait,
    Renew,
    MaxHold,
    MinHold,
}

impl Rule {
    /// The part of the rule that does not depend on another option.
    fn check(self, written: &str, value: Duration) -> Result<(), String> {
        match self {
            Self::Ttl if value < MIN_TTL => {
                Err(format!("`ttl` (\"{written}\") must be at least 100 ms"))
            }
            Self::Ttl if value > MAX_TTL => {
                Err(format!("`ttl` (\"{written}\") must be at most 24 h"))
            }
            Self::Wait if value.is_zero() => {
                Err("`wait` must be longer than zero; leave it out to try once".into())
            }
            Self::Renew if value < MIN_RENEWAL => {
                Err(format!("`renew` (\"{written}\") must be at least 10 ms"))
            }
            _ => Ok(()),
        }
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
pub(crate) struct Length {
    rule: Rule,
    value: Value,
}

enum Value {
    Literal {
        written: String,
        value: Duration,
        span: Span,
    },
    Constant(Expr),
}

impl Length {
    /// Reads and checks `value`; what is wrong with it goes to `faults`.
    pub(crate) fn new(value: Expr, rule: Rule, faults: &mut Faults) -> Option<Self> {
        let Expr::Lit(literal) = &value else {
            let value = Value::Constant(value);
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
                let value = Value::Literal {
                    written,
                    value,
                    span,
                };
                Some(Self { rule, value })
            }
            Err(message) => {
                faults.at(span, message);
                None
            }
        }
    }

    /// Checks what can be known before the compiler evaluates anything.
    pub(crate) fn relate(&self, ttl: &Self, faults: &mut Faults) {
        if let Value::Literal {
            written,
            value,
            span,
        } = &self.value
            && let Value::Literal {
                written: of_ttl,
                value: ttl,
                ..
            } = &ttl.value
            && let Some(must_be) = self.rule.against(*value, *ttl)
        {
            let option = self.rule.option();
            faults.at(
                *span,
                format!("`{option}` (\"{written}\") must be {must_be} `ttl` (\"{of_ttl}\")"),
            );
        }
    }

    /// A constant item that holds the value to its rules, and an expression for the value.
    /// `generics` are the names of the function's type and const parameters: an item may not
    /// mention them, and then the expression is a `const` block.
    pub(crate) fn expand(
        &self,
        ttl: Option<&Self>,
        krate: &Krate,
        generics: &BTreeSet<String>,
    ) -> (TokenStream, TokenStream) {
        let ttl = ttl.filter(|_| matches!(self.rule, Rule::Renew | Rule::MaxHold | Rule::MinHold));
        let known = |length: &Self| matches!(length.value, Value::Literal { .. });
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
            None if matches!(self.rule, Rule::Ttl | Rule::Wait) => TokenStream::new(),
            None => quote_spanned!(site=> , ::core::option::Option::None),
        };
        let checked = quote_spanned!(site=> #krate::macro_support::#rule(#value #against));
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
    fn named(&self, generics: &BTreeSet<String>) -> Option<TokenStream> {
        let literal = matches!(self.value, Value::Literal { .. });
        let item = !literal && !self.value.mentions(generics);
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

impl Value {
    fn site(&self) -> Span {
        Span::mixed_site().located_at(match self {
            Self::Literal { span, .. } => *span,
            Self::Constant(value) => value.span(),
        })
    }

    fn expand(&self) -> TokenStream {
        match self {
            Self::Literal { value, .. } => {
                let site = self.site();
                let (seconds, nanos) = (value.as_secs(), value.subsec_nanos());
                quote_spanned!(site=> ::core::time::Duration::new(#seconds, #nanos))
            }
            Self::Constant(value) => value.to_token_stream(),
        }
    }

    fn mentions(&self, generics: &BTreeSet<String>) -> bool {
        match self {
            Self::Literal { .. } => false,
            Self::Constant(value) => mentions(value.to_token_stream(), generics),
        }
    }
}

fn mentions(tokens: TokenStream, names: &BTreeSet<String>) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "Self" || names.contains(&ident.to_string()),
        TokenTree::Group(group) => mentions(group.stream(), names),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// `30`, `30s` without quotes, `1.5`, `true`.
fn not_text(literal: &Lit) -> String {
    let suggestion = match literal {
        Lit::Int(number) => {
            let unit = match number.suffix() {
                suffix @ ("h" | "m" | "s" | "ms") => suffix,
                _ => "s",
            };
            format!("{}{unit}", number.base10_digits())
        }
        _ => "30s".into(),
    };
    format!(
        "invalid duration `{}`: write it as \"{suggestion}\"",
        literal.to_token_stream()
    )
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
    // A number that no clock can hold is still a number: the option's own limit names the fault.
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

    fn fault(value: Expr, rule: Rule) -> String {
        let mut faults = Faults::default();
        assert!(Length::new(value, rule, &mut faults).is_none());
        faults.messages().join("\n")
    }

    fn expand(value: Expr, generics: &[&str]) -> String {
        let mut faults = Faults::default();
        let length = Length::new(value, Rule::Ttl, &mut faults);
        assert_eq!(faults.messages(), <[&str; 0]>::default());
        let generics = generics.iter().map(ToString::to_string).collect();
        length.map_or_else(String::new, |length| {
            let (item, value) = length.expand(None, &Krate::default(), &generics);
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
            fault(parse_quote!("99999999999999999999h1s"), Rule::Ttl),
            "`ttl` (\"99999999999999999999h1s\") must be at most 24 h"
        );
    }

    #[test]
    fn a_ttl_has_limits() {
        assert_eq!(
            fault(parse_quote!("50ms"), Rule::Ttl),
            "`ttl` (\"50ms\") must be at least 100 ms"
        );
        assert_eq!(
            fault(parse_quote!("0s"), Rule::Ttl),
            "`ttl` (\"0s\") must be at least 100 ms"
        );
        assert_eq!(
            fault(parse_quote!("25h"), Rule::Ttl),
            "`ttl` (\"25h\") must be at most 24 h"
        );
        for fine in ["100ms", "24h"] {
            assert_ne!(expand(parse_quote!(#fine), &[]), "");
        }
    }

    #[test]
    fn a_wait_is_longer_than_zero() {
        assert_eq!(
            fault(parse_quote!("0ms"), Rule::Wait),
            "`wait` must be longer than zero; leave it out to try once"
        );
        let mut faults = Faults::default();
        assert!(Length::new(parse_quote!("1ms"), Rule::Wait, &mut faults).is_some());
        assert!(Length::new(parse_quote!("48h"), Rule::Wait, &mut faults).is_some());
    }

    #[test]
    fn literals_that_are_not_text_are_rewritten() {
        let advice = |value| fault(value, Rule::Ttl);
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
            "invalid duration `1.5`: write it as \"30s\""
        );
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

    fn length(value: Expr, rule: Rule) -> Length {
        let mut faults = Faults::default();
        let length = Length::new(value, rule, &mut faults);
        assert_eq!(faults.messages(), <[&str; 0]>::default());
        length.expect("no fault")
    }

    #[test]
    fn literals_are_held_to_the_ttl() {
        let ttl = length(parse_quote!("30s"), Rule::Ttl);
        let related = |value, rule| {
            let mut faults = Faults::default();
            length(value, rule).relate(&ttl, &mut faults);
            faults.messages().join("\n")
        };
        assert_eq!(
            related(parse_quote!("20s"), Rule::Renew),
            "`renew` (\"20s\") must be at most half of `ttl` (\"30s\")"
        );
        assert_eq!(
            related(parse_quote!("10s"), Rule::MaxHold),
            "`max_hold` (\"10s\") must be longer than `ttl` (\"30s\")"
        );
        assert_eq!(
            related(parse_quote!("30s"), Rule::MaxHold),
            "`max_hold` (\"30s\") must be longer than `ttl` (\"30s\")"
        );
        assert_eq!(
            related(parse_quote!("40s"), Rule::MinHold),
            "`min_hold` (\"40s\") must be shorter than `ttl` (\"30s\")"
        );
        assert_eq!(related(parse_quote!("15s"), Rule::Renew), "");
        assert_eq!(related(parse_quote!("30001ms"), Rule::MaxHold), "");
        assert_eq!(related(parse_quote!("29999ms"), Rule::MinHold), "");
        assert_eq!(related(parse_quote!("1h"), Rule::Wait), "");
        assert_eq!(related(parse_quote!(TTL), Rule::MinHold), "");
    }

    #[test]
    fn a_renewal_has_a_least_interval() {
        assert_eq!(
            fault(parse_quote!("9ms"), Rule::Renew),
            "`renew` (\"9ms\") must be at least 10 ms"
        );
        length(parse_quote!("10ms"), Rule::Renew);
    }

    #[test]
    fn constants_are_held_to_the_ttl_by_the_compiler() {
        let expanded = |value, ttl: Option<Expr>, generics: &[&str]| {
            let ttl = ttl.map(|ttl| length(ttl, Rule::Ttl));
            let generics = generics.iter().map(ToString::to_string).collect();
            let (item, value) =
                length(value, Rule::MaxHold).expand(ttl.as_ref(), &Krate::default(), &generics);
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
        ] {
            let block = expand(value, &["T", "N"]);
            assert!(block.starts_with("const {"), "{block}");
        }
    }
}
