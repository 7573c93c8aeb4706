//! The names that a constant item inside the function cannot use.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::{GenericParam, Generics, Signature};

/// The generic parameters of a function and of its `impl`.
#[derive(Debug, Default)]
pub(crate) struct GenericNames {
    /// The type and const parameters of the function.
    names: BTreeSet<String>,
    /// Whether the function is a method. The parameters of its `impl` are unknown here.
    is_method: bool,
}

impl GenericNames {
    pub(crate) fn new(signature: &Signature) -> Self {
        Self {
            is_method: signature.receiver().is_some(),
            ..Self::of_struct(&signature.generics)
        }
    }

    /// Takes the generic parameters of a struct, whose implementation is written.
    pub(crate) fn of_struct(generics: &Generics) -> Self {
        let parameters = generics.params.iter();
        let names = parameters.filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => Some(parameter.ident.to_string()),
            GenericParam::Const(parameter) => Some(parameter.ident.to_string()),
            GenericParam::Lifetime(_) => None,
        });
        Self {
            names: names.collect(),
            is_method: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn sample(names: &[&str], is_method: bool) -> Self {
        Self {
            names: names.iter().map(ToString::to_string).collect(),
            is_method,
        }
    }

    /// Returns whether `tokens` may name one of them.
    pub(crate) fn are_in(&self, tokens: TokenStream) -> bool {
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
                // `<T as Trait>::TTL`. Without an operand before it, `<` is no comparison.
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

    /// Returns whether a single word may be a const parameter of an `impl`. In a method each word may; elsewhere
    /// one letter.
    pub(crate) fn may_be_constant_of_the_impl(&self, word: &str) -> bool {
        self.is_method || word.chars().count() == 1
    }

    /// Returns whether `Name::` may begin with a parameter of an `impl`. In a method each type may;
    /// elsewhere a type with the short name of a type parameter.
    fn may_be_of_the_impl(&self, name: &str) -> bool {
        let is_type = name.starts_with(char::is_uppercase) && name != "Duration";
        is_type && (self.is_method || name.chars().count() <= 2)
    }
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;
    use syn::{Expr, parse_quote};

    use super::*;

    #[test]
    fn type_in_a_method_may_be_a_generic_of_its_impl() {
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
}
