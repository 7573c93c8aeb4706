//! `lock_name!`: a template that also takes expressions.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, LitStr, Token};

use crate::errors::Errors;
use crate::template::Template;
use crate::value::CratePath;

const NO_TEMPLATE: &str = "expected a template: `lock_name!(\"order:{}\", expression)`";

/// Reads `$crate, "template", expression, ..`.
pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let read = |input: ParseStream<'_>| {
        let krate = CratePath::of_macro(input.call(Ident::parse_any)?);
        input.parse::<Token![,]>()?;
        let name = read(input, &krate, &mut errors);
        let name = name.unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        // What is left behind an error is not read.
        input.parse::<TokenStream>()?;
        Ok(name
            .filter(|_| errors.is_empty())
            .unwrap_or_else(|| no_name(&errors, &krate)))
    };
    Parser::parse2(read, input).unwrap_or_else(|error| error.to_compile_error())
}

/// The errors where a name was to stand, and something of its type, so that they stay the only
/// ones.
fn no_name(errors: &Errors, krate: &CratePath) -> TokenStream {
    let site = Span::mixed_site();
    let krate = krate.at(site);
    let errors = errors.to_tokens();
    quote_spanned! {site=> {
        #errors
        #krate::macro_support::typed_return(
            #krate::macro_support::ReturnType::<#krate::LockName>::new(),
        )
    }}
}

fn read(
    input: ParseStream<'_>,
    krate: &CratePath,
    errors: &mut Errors,
) -> syn::Result<Option<TokenStream>> {
    if !input.peek(LitStr) {
        let span = if input.is_empty() {
            Span::call_site()
        } else {
            input.span()
        };
        return Err(syn::Error::new(span, NO_TEMPLATE));
    }
    let literal: LitStr = input.parse()?;
    let mut expressions: Vec<Expr> = Vec::new();
    while !input.is_empty() {
        input.parse::<Token![,]>()?;
        if input.is_empty() {
            break;
        }
        expressions.push(input.parse()?);
    }
    let Some(template) = Template::of_lock_name(&literal, errors) else {
        return Ok(None);
    };
    for named in expressions
        .iter()
        .filter(|value| matches!(value, Expr::Assign(_)))
    {
        let message = "named expressions are not supported; write `{}`, which takes the next one";
        errors.on(named, message);
    }
    let (asked, given) = (template.expressions(), expressions.len());
    if asked != given && errors.is_empty() {
        let message = format!(
            "the template has {asked} `{{}}`, and {given} {} behind it",
            if given == 1 {
                "expression stands"
            } else {
                "expressions stand"
            }
        );
        errors.at(template.span(), message);
    }
    // In parentheses, so that `&` takes all of it.
    let expressions = expressions
        .iter()
        .map(|value| parenthesized(&value.to_token_stream()));
    Ok(Some(template.expand_lock_name(krate, expressions)))
}

fn parenthesized(value: &TokenStream) -> TokenStream {
    let first = value.clone().into_iter().next();
    let site = first.map_or_else(Span::call_site, |first| first.span());
    let site = Span::mixed_site().located_at(site);
    quote_spanned!(site=> (#value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn expanded(input: &TokenStream) -> String {
        expand(quote!(krate, #input)).to_string()
    }

    #[test]
    fn braces_take_the_expressions_in_turn() {
        let text = expanded(&quote!("a:{}:{b.c}:{}", f(x), y + 1));
        for expected in [
            "krate :: macro_support :: name_from_template (& [",
            "NamePart :: Text (\"a:\")",
            "match (& (f (x)) , & (y + 1) ,)",
            "NamePart :: Value (& * __distributed_lock_value_0)",
            "match & b . c { __distributed_lock_value =>",
            "NamePart :: Value (& * __distributed_lock_value_1)",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!text.contains("compile_error"), "{text}");
        assert!(!expanded(&quote!("a:{}", x,)).contains("compile_error"));
        assert!(!expanded(&quote!("a")).contains("compile_error"));
    }

    #[test]
    fn faults_are_explained() {
        for (input, expected) in [
            (quote!(), NO_TEMPLATE),
            (quote!(name), NO_TEMPLATE),
            (
                quote!("a:{}"),
                "the template has 1 `{}`, and 0 expressions stand behind it",
            ),
            (
                quote!("a", x),
                "the template has 0 `{}`, and 1 expression stands behind it",
            ),
            (
                quote!("{0}", x),
                "positional `{0}` is not supported; write `{}`, which takes the next expression",
            ),
            (
                quote!("{x}", x = 1),
                "named expressions are not supported; write `{}`, which takes the next one",
            ),
            (
                quote!("{}{}", a, b),
                "nothing separates `{}` from `{}`; put `:` between them",
            ),
            (
                quote!("{f()}"),
                "only field paths are allowed in `{...}`; for other expressions write `{}`, and \
                 the expression after the template",
            ),
            (
                quote!("{a.await}"),
                "`.await` is not allowed in `{...}`; await before the name is made",
            ),
            (quote!(""), "lock name is empty"),
        ] {
            let text = expanded(&input);
            let expected = proc_macro2::Literal::string(expected).to_string();
            assert!(text.contains(&expected), "{expected} in {text}");
        }
        for keyword in ["Self", "super", "crate", "_"] {
            let template = format!("{{{keyword}}}");
            assert!(
                expanded(&quote!(#template)).contains("only field paths"),
                "{keyword}"
            );
        }
    }
}
