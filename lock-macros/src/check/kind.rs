//! Checks `mode`, `permits`, `weight` and `max_queue`: their limits, and what they cannot be combined with.

use crate::check::timing::{ConstantAdvice, constant};
use crate::errors::Errors;
use crate::parse::kind::{KindArgs, Mode, NumberArg, NumberOption, NumberValue, Written};
use crate::parse::scope::Scope;

/// The most permits of a name.
const MAX_PERMITS: u32 = 10_000;

/// The most permits that one holder takes.
const MAX_WEIGHT: u32 = 256;

/// Checks the kind of a lock. `written` has the options with their places.
pub(crate) fn kind(kind: &KindArgs, written: &Written, scope: &Scope, errors: &mut Errors) {
    let [mode, permits, weight, min_hold] =
        ["mode", "permits", "weight", "min_hold"].map(|option| written.find(option));
    // A function with a declared lock has another error.
    let is_declared = written.find("lock").is_some();
    if let (Some(_), Some(permits), false) = (mode, permits, is_declared) {
        errors.on(permits, "`permits` cannot be combined with `mode`");
    }
    if let (None, Some(weight), false) = (permits, weight, is_declared) {
        let message = "`weight` needs `permits`, such as `permits = 8, weight = 2`";
        errors.on(weight, message);
    }
    if let (Some(Mode::Read), Some(min_hold)) = (kind.mode, min_hold) {
        errors.on(min_hold, "`min_hold` cannot be combined with `mode = read`");
    }
    if let Some(once_per) = written.find("once_per") {
        if let Some(min_hold) = min_hold {
            let message = "`min_hold` cannot be combined with `once_per`; remove one of them";
            errors.on(min_hold, message);
        }
        let other = match (kind.mode, permits) {
            (Some(Mode::Read), _) => Some("`mode = read`"),
            (_, Some(_)) => Some("`permits`"),
            _ => None,
        };
        if let Some(other) = other {
            let message = format!("`once_per` cannot be combined with {other}");
            errors.on(once_per, message);
        }
    }
    let permits = kind.permits.as_ref().and_then(NumberArg::literal);
    for number in kind.numbers() {
        match &number.value {
            NumberValue::Literal(value) => {
                if let Some(message) = limits(number.option, *value, permits) {
                    errors.on(&number.written, message);
                }
            }
            NumberValue::Constant(value) => {
                let advice = ConstantAdvice::Builder;
                constant(number.option.name(), value, advice, scope, errors);
            }
        }
    }
}

fn limits(option: NumberOption, value: u32, permits: Option<u32>) -> Option<String> {
    let name = option.name();
    let most = match option {
        NumberOption::Permits => MAX_PERMITS,
        NumberOption::Weight => MAX_WEIGHT,
        NumberOption::MaxQueue => u32::MAX,
    };
    if value == 0 && option == NumberOption::MaxQueue {
        return Some(
            "`max_queue` must be at least 1; to wait for nobody, write `wait = \"0s\"`".into(),
        );
    }
    if value == 0 {
        return Some(format!("`{name}` must be at least 1"));
    }
    if value > most {
        return Some(format!("`{name}` must be at most {most}"));
    }
    // Permits that are out of their limits have an error of their own.
    let permits = permits.filter(|permits| (1..=MAX_PERMITS).contains(permits))?;
    (option == NumberOption::Weight && value > permits)
        .then(|| format!("`weight` ({value}) must be at most `permits` ({permits})"))
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use quote::quote;

    use super::*;
    use crate::parse::args::Args;

    fn errors(options: &TokenStream) -> Vec<String> {
        let mut errors = Errors::default();
        let args = Args::parse(quote!(name = "x", #options), &mut errors);
        let scope = Scope::sample(&["count"], false);
        kind(&args.kind, &args.written, &scope, &mut errors);
        errors.messages()
    }

    #[test]
    fn numbers_have_limits() {
        for (options, expected) in [
            (quote!(permits = 0), "`permits` must be at least 1"),
            (quote!(permits = -1), "`permits` must be at least 1"),
            (quote!(permits = 20000), "`permits` must be at most 10000"),
            (
                quote!(permits = 4, weight = 0),
                "`weight` must be at least 1",
            ),
            (
                quote!(permits = 500, weight = 300),
                "`weight` must be at most 256",
            ),
            (
                quote!(weight = 3, permits = 2),
                "`weight` (3) must be at most `permits` (2)",
            ),
            (
                quote!(permits = 0, weight = 3),
                "`permits` must be at least 1",
            ),
            (
                quote!(max_queue = 0),
                "`max_queue` must be at least 1; to wait for nobody, write `wait = \"0s\"`",
            ),
        ] {
            assert_eq!(errors(&options), [expected]);
        }
        for valid in [
            quote!(permits = 10000, weight = 256),
            quote!(permits = 1, weight = 1, min_hold = "1s"),
            quote!(permits = PERMITS, weight = 200),
            quote!(mode = write, min_hold = "1s"),
            quote!(mode = read),
            quote!(max_queue = 1),
            quote!(max_queue = WAITERS),
        ] {
            assert_eq!(errors(&valid), <[&str; 0]>::default());
        }
    }

    #[test]
    fn kinds_exclude_each_other() {
        for (options, expected) in [
            (
                quote!(permits = 2, mode = read),
                "`permits` cannot be combined with `mode`",
            ),
            (
                quote!(weight = 2),
                "`weight` needs `permits`, such as `permits = 8, weight = 2`",
            ),
            (
                quote!(min_hold = "1s", mode = read),
                "`min_hold` cannot be combined with `mode = read`",
            ),
            (
                quote!(once_per = "1h", min_hold = "1s"),
                "`min_hold` cannot be combined with `once_per`; remove one of them",
            ),
            (
                quote!(once_per = "1h", mode = read),
                "`once_per` cannot be combined with `mode = read`",
            ),
            (
                quote!(once_per = "1h", permits = 2),
                "`once_per` cannot be combined with `permits`",
            ),
            (
                quote!(permits = count),
                "`permits` is a constant, but `count` is only known at the call: give it a constant, \
                 or use the builder: `locks.lock(name).permits(count)`",
            ),
        ] {
            assert_eq!(errors(&options), [expected]);
        }
    }
}
