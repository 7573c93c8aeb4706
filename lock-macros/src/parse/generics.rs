//! The names that a constant item inside the function cannot use.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Expr, GenericParam, Generics, Signature};

/// The generic parameters that an option may name.
#[derive(Debug, Default)]
pub(crate) struct GenericNames {
    /// The type and const parameters of the function, or of the struct.
    names: BTreeSet<String>,
    around: Surroundings,
}

/// What is known about the parameters of an `impl` around the function. The attribute does not see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Surroundings {
    /// There is none, because the item is a struct.
    Struct,
    /// The function is in an `impl`, so each name may be one of its parameters.
    Impl,
    /// There may be one. Only names that are as short as most parameters count.
    #[default]
    Unknown,
}

impl GenericNames {
    pub(crate) fn new(signature: &Signature, body: &TokenStream) -> Self {
        let is_in_impl = signature.receiver().is_some()
            || names_self(signature.to_token_stream())
            || names_self(body.clone());
        Self {
            around: if is_in_impl {
                Surroundings::Impl
            } else {
                Surroundings::Unknown
            },
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
            around: Surroundings::Struct,
        }
    }

    #[cfg(test)]
    pub(crate) fn sample(names: &[&str], around: Surroundings) -> Self {
        Self {
            names: names.iter().map(ToString::to_string).collect(),
            around,
        }
    }

    /// Returns whether a number may depend on one of them. The user says so with `const { .. }`.
    pub(crate) fn are_in_number(&self, value: &Expr) -> bool {
        matches!(value, Expr::Const(_)) || self.are_in(value.to_token_stream())
    }

    /// Returns whether a duration may depend on one of them. No const parameter is a `Duration`, so a constant
    /// alone is none, nor is one whose method is called.
    pub(crate) fn are_in_duration(&self, value: &Expr) -> bool {
        match value {
            Expr::Path(path) if path.path.get_ident().is_some() => false,
            Expr::MethodCall(call) => {
                self.are_in_duration(&call.receiver) || self.are_in(call.args.to_token_stream())
            }
            other => self.are_in_number(other),
        }
    }

    /// Returns whether `tokens` may name one of them.
    fn are_in(&self, tokens: TokenStream) -> bool {
        let mut tokens = tokens.into_iter().peekable();
        let mut before = None;
        let mut operand = false;
        while let Some(token) = tokens.next() {
            let found = match &token {
                TokenTree::Ident(ident) => {
                    let name = ident.to_string();
                    let begins_path = before != Some(':') && is_sign(tokens.peek(), ':');
                    // A field or a method, a part of a path, a function, a macro.
                    let is_word = !matches!(before, Some(':' | '.'))
                        && !is_sign(tokens.peek(), '!')
                        && !is_call(tokens.peek());
                    name == "Self"
                        || self.names.contains(&name)
                        || (begins_path && self.may_be_type_of_the_impl(&name))
                        || (is_word && !begins_path && self.may_be_of_the_impl(&name))
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

    /// Returns whether a word may be a parameter of an `impl`.
    fn may_be_of_the_impl(&self, name: &str) -> bool {
        let is_parameter = name.starts_with(char::is_uppercase);
        is_parameter
            && match self.around {
                Surroundings::Struct => false,
                Surroundings::Impl => true,
                Surroundings::Unknown => name.chars().count() == 1,
            }
    }

    /// Returns whether `Name::` may begin with a type parameter of an `impl`.
    fn may_be_type_of_the_impl(&self, name: &str) -> bool {
        let is_type = name.starts_with(char::is_uppercase) && name != "Duration";
        is_type
            && match self.around {
                Surroundings::Struct => false,
                Surroundings::Impl => true,
                Surroundings::Unknown => name.chars().count() <= 2,
            }
    }
}

fn is_sign(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(it)) if it.as_char() == sign)
}

fn is_call(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(it)) if it.delimiter() == Delimiter::Parenthesis)
}

/// Returns whether `tokens` name the type `Self`.
fn names_self(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "Self",
        TokenTree::Group(group) => names_self(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;
    use syn::{Expr, parse_quote};

    use super::*;

    #[test]
    fn name_in_a_method_may_be_a_generic_of_its_impl() {
        for (value, in_method, elsewhere) in [
            (parse_quote!(Conf::TTL), true, false),
            (parse_quote!(seconds(Conf::SECONDS)), true, false),
            (parse_quote!(Duration::from_secs(3)), false, false),
            (parse_quote!(Duration::from_secs(SIZE as u64)), true, false),
            (parse_quote!(Duration::from_secs(N as u64)), true, true),
            (parse_quote!(config::TTL), false, false),
            (parse_quote!(config::Times::TTL), false, false),
            (parse_quote!(TTL), false, false),
            (parse_quote!(TTL.saturating_mul(2)), false, false),
            (parse_quote!(TTL.saturating_mul(SIZE)), true, false),
            (parse_quote!(if SIZE < 3 { TTL } else { LONG }), true, false),
            (
                parse_quote!(Duration::from_secs(size_of::<Page>())),
                true,
                false,
            ),
            (parse_quote!(seconds(size_of::<T>())), true, true),
            (parse_quote!(const { config::TTL }), true, true),
        ] {
            let value: Expr = value;
            let found = |around| GenericNames::sample(&[], around).are_in_duration(&value.clone());
            assert_eq!(
                (found(Surroundings::Impl), found(Surroundings::Unknown)),
                (in_method, elsewhere),
                "{}",
                value.to_token_stream()
            );
        }
    }

    #[test]
    fn number_that_is_one_word_may_be_a_generic() {
        for (value, around, expected) in [
            (parse_quote!(SIZE), Surroundings::Impl, true),
            (parse_quote!(SIZE * 2), Surroundings::Impl, true),
            (parse_quote!(limit(2)), Surroundings::Impl, false),
            (parse_quote!(SIZE * 2), Surroundings::Unknown, false),
            (parse_quote!(N * 2), Surroundings::Unknown, true),
            (parse_quote!(N * 2), Surroundings::Struct, false),
        ] {
            let value: Expr = value;
            let found = GenericNames::sample(&[], around).are_in_number(&value);
            assert_eq!(found, expected, "{}", value.to_token_stream());
        }
    }

    #[test]
    fn function_that_names_self_is_in_an_impl() {
        for (function, around) in [
            (
                quote::quote!(
                    async fn f(&self) {}
                ),
                Surroundings::Impl,
            ),
            (
                quote::quote!(
                    async fn f() -> Self {
                        loop {}
                    }
                ),
                Surroundings::Impl,
            ),
            (
                quote::quote!(
                    async fn f() {
                        Self::g().await
                    }
                ),
                Surroundings::Impl,
            ),
            (
                quote::quote!(
                    async fn f() {}
                ),
                Surroundings::Unknown,
            ),
        ] {
            let function: syn::ItemFn = syn::parse2(function).expect("a function");
            let body = function.block.to_token_stream();
            assert_eq!(GenericNames::new(&function.sig, &body).around, around);
        }
    }
}
