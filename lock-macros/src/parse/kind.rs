//! The options that say how many callers hold the lock together, and wait for it: `mode`, `permits`, `weight` and
//! `max_queue`.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{Expr, Lit, UnOp};

use crate::errors::Errors;
use crate::parse::duration::{is_dynamic, not_dynamic};
use crate::parse::values::shown;

/// The kind of a lock.
#[derive(Default)]
pub(crate) struct KindArgs {
    pub(crate) mode: Option<Mode>,
    pub(crate) permits: Option<NumberArg>,
    pub(crate) weight: Option<NumberArg>,
    pub(crate) max_queue: Option<NumberArg>,
}

/// The value of `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Exclusive,
    Read,
    Write,
    /// Only where a lock is declared: each caller chooses.
    ReadWrite,
}

impl Mode {
    /// The modes in which a function takes a lock.
    pub(crate) const OF_A_FUNCTION: [(&str, Self); 3] = [
        ("exclusive", Self::Exclusive),
        ("read", Self::Read),
        ("write", Self::Write),
    ];

    /// The modes of a declared lock.
    pub(crate) const OF_A_DECLARATION: [(&str, Self); 2] = [
        ("exclusive", Self::Exclusive),
        ("read_write", Self::ReadWrite),
    ];
}

/// An option that takes a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberOption {
    Permits,
    Weight,
    MaxQueue,
}

impl NumberOption {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Permits => "permits",
            Self::Weight => "weight",
            Self::MaxQueue => "max_queue",
        }
    }

    fn example(self) -> u32 {
        match self {
            Self::Permits => 4,
            Self::Weight => 2,
            Self::MaxQueue => 20,
        }
    }
}

/// A whole number of the attribute.
pub(crate) struct NumberArg {
    pub(crate) option: NumberOption,
    pub(crate) value: NumberValue,
    /// The value in the source, where its errors belong.
    pub(crate) written: TokenStream,
}

pub(crate) enum NumberValue {
    /// A number below zero is zero, and a number that is too large is the largest one: both are out of the
    /// limits anyway.
    Literal(u32),
    /// The compiler evaluates it.
    Constant(Expr),
}

impl NumberArg {
    pub(crate) fn parse(value: Expr, option: NumberOption, errors: &mut Errors) -> Option<Self> {
        let written = value.to_token_stream();
        if let Expr::Call(call) = &value
            && is_dynamic(call)
        {
            let name = option.name();
            let (message, argument) = (not_dynamic(name), shown(&call.args));
            let builder = format!("use the builder: `locks.lock(name).{name}({argument})`");
            errors.on(
                &value,
                format!("{message}; for a value of the call {builder}"),
            );
            return None;
        }
        let value = match value {
            Expr::Lit(literal) => literal_value(&literal.lit).map(NumberValue::Literal),
            Expr::Unary(negative) if matches!(negative.op, UnOp::Neg(_)) => match &*negative.expr {
                Expr::Lit(literal) => literal_value(&literal.lit).map(|_| NumberValue::Literal(0)),
                _ => Some(NumberValue::Constant(Expr::Unary(negative))),
            },
            constant => Some(NumberValue::Constant(constant)),
        };
        let Some(value) = value else {
            let (name, example) = (option.name(), option.example());
            let message = format!("`{name}` takes a whole number, such as `{name} = {example}`");
            errors.on(written, message);
            return None;
        };
        Some(Self {
            option,
            value,
            written,
        })
    }

    pub(crate) fn literal(&self) -> Option<u32> {
        match &self.value {
            NumberValue::Literal(number) => Some(*number),
            NumberValue::Constant(_) => None,
        }
    }
}

/// Reads a literal. Returns `None` when it is no whole number.
fn literal_value(literal: &Lit) -> Option<u32> {
    match literal {
        Lit::Int(number) => Some(
            number
                .base10_parse::<u64>()
                .map_or(u32::MAX, |number| u32::try_from(number).unwrap_or(u32::MAX)),
        ),
        _ => None,
    }
}

impl KindArgs {
    /// Returns all numbers, `permits` first.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = &NumberArg> {
        [&self.permits, &self.weight, &self.max_queue]
            .into_iter()
            .flatten()
    }
}

/// The options in the order in which they were written, with their names in the source.
#[derive(Default)]
pub(crate) struct Written(Vec<Ident>);

impl Written {
    /// Adds an option. Returns whether it is new.
    pub(crate) fn add(&mut self, key: &Ident) -> bool {
        let is_new = self.find(&key.to_string()).is_none();
        if is_new {
            self.0.push(key.clone());
        }
        is_new
    }

    /// Returns the name of an option in the source.
    pub(crate) fn find(&self, option: &str) -> Option<&Ident> {
        self.0.iter().find(|key| *key == option)
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn whole_number_is_a_literal_or_a_constant() {
        for (value, expected) in [
            (parse_quote!(4), Some(4)),
            (parse_quote!(4u32), Some(4)),
            (parse_quote!(0x10), Some(16)),
            (parse_quote!(-1), Some(0)),
            (parse_quote!(99999999999999999999999), Some(u32::MAX)),
            (parse_quote!(5_000_000_000), Some(u32::MAX)),
            (parse_quote!(PERMITS), None),
            (parse_quote!(2 * PERMITS), None),
            (parse_quote!(-PERMITS), None),
        ] {
            let mut errors = Errors::default();
            let number = NumberArg::parse(value, NumberOption::Permits, &mut errors);
            assert_eq!(number.expect("a number").literal(), expected);
            assert!(errors.is_empty());
        }
        let mut errors = Errors::default();
        let dynamic = parse_quote!(dynamic(self.n));
        assert!(NumberArg::parse(dynamic, NumberOption::Permits, &mut errors).is_none());
        assert_eq!(
            errors.messages(),
            [
                "`permits` must be known at compile time; only `ttl`, `wait` and `outage_wait` take \
                 `dynamic(...)`; for a value of the call use the builder: `locks.lock(name).permits(self.n)`"
            ]
        );
        for value in [
            parse_quote!("4"),
            parse_quote!(4.5),
            parse_quote!(true),
            parse_quote!('4'),
            parse_quote!(-1.5),
        ] {
            let mut errors = Errors::default();
            assert!(NumberArg::parse(value, NumberOption::Weight, &mut errors).is_none());
            assert_eq!(
                errors.messages(),
                ["`weight` takes a whole number, such as `weight = 2`"]
            );
        }
    }
}
