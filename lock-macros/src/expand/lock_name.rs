//! Writes `lock_name!`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::parse::{ParseStream, Parser};

use crate::check;
use crate::crate_path::CratePath;
use crate::errors::Errors;
use crate::parse::lock_name::{LockNameInput, crate_path};

/// Expands `$crate, "template", expression, ..`.
pub(crate) fn lock_name(input: TokenStream) -> TokenStream {
    let expand = |input: ParseStream<'_>| {
        let krate = crate_path(input)?;
        let mut errors = Errors::default();
        let name = LockNameInput::parse(input, &mut errors).unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        // After an error, the rest is skipped.
        input.parse::<TokenStream>()?;
        if let Some(name) = &name {
            check::lock_name(name, &mut errors);
        }
        Ok(match name {
            Some(name) if errors.is_empty() => with_expressions(&name, &krate),
            _ => without_name(&errors, &krate),
        })
    };
    Parser::parse2(expand, input).unwrap_or_else(|error| error.to_compile_error())
}

fn with_expressions(name: &LockNameInput, krate: &CratePath) -> TokenStream {
    // In parentheses, so that `&` applies to the whole expression.
    let expressions = name
        .expressions
        .iter()
        .map(|value| parenthesized(&value.to_token_stream()));
    name.template.expand_lock_name(krate, expressions)
}

/// Writes the errors and a value of the type `LockName`, so that no other error follows.
fn without_name(errors: &Errors, krate: &CratePath) -> TokenStream {
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
        lock_name(quote!(krate, #input)).to_string()
    }

    #[test]
    fn each_brace_pair_takes_the_next_expression() {
        let text = expanded(&quote!("a:{}:{b.c}:{}", f(x), y + 1));
        for expected in [
            "krate :: macro_support :: name_from_template (\"a:{}:{b.c}:{}\" , & [",
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
    fn invalid_templates_are_explained() {
        let no_template = "expected a template: `lock_name!(\"order:{}\", expression)`";
        for (input, expected) in [
            (quote!(), no_template),
            (quote!(name), no_template),
            (
                quote!("a:{}"),
                "the template has 1 `{}`, but 0 expressions follow it",
            ),
            (
                quote!("a", x),
                "the template has 0 `{}`, but 1 expression follows it",
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
