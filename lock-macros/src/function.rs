//! The annotated function: its signature is read, its body stays raw tokens.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, GenericParam, Signature, Token, Visibility};

use crate::error::Faults;
use crate::output::Output;
use crate::scope::Scope;

/// An `async fn` with a body, or what `#[async_trait]` made of one.
pub(crate) struct Function {
    /// Attributes, visibility and signature as they were written.
    pub(crate) head: TokenStream,
    pub(crate) body: Body,
    pub(crate) scope: Scope,
    /// The names of its type and const parameters.
    pub(crate) generics: BTreeSet<String>,
    pub(crate) output: Output,
    pub(crate) shell: Shell,
}

/// What the body stands in.
pub(crate) enum Shell {
    AsyncFn,
    /// `Box::pin(async move { .. })`, which `#[async_trait]` makes of a body. The tokens are
    /// what is before the parenthesis.
    Boxed(TokenStream),
}

/// The body, never parsed: a half-typed one still expands.
pub(crate) struct Body {
    /// `#![..]` at its beginning, which are only allowed where a function's body begins.
    pub(crate) inner_attributes: TokenStream,
    pub(crate) statements: TokenStream,
    pub(crate) span: Span,
}

impl Function {
    /// Reads `item`; what is wrong with it goes to `faults`.
    pub(crate) fn new(item: TokenStream, faults: &mut Faults) -> Option<Self> {
        let (head, body) = cut(item);
        let read = match read_head.parse2(head.clone()) {
            Ok(read) => read,
            Err(fault) => {
                faults.push(fault);
                return None;
            }
        };
        let (attributes, signature) = match read {
            Head::Function(attributes, signature) => (attributes, signature),
            Head::Other(keyword) => {
                faults.at(
                    keyword,
                    "`#[distributed_lock]` belongs on a function; annotate each method",
                );
                return None;
            }
        };
        let body = body.as_ref().map(Body::new);
        let boxed = body
            .as_ref()
            .and_then(Body::unbox)
            .zip(Output::of_boxed(&signature))
            .filter(|_| signature.asyncness.is_none());
        let sound = boxed.is_some() || check(&attributes, &signature, faults);
        let Some(body) = body else {
            faults.at(
                signature.fn_token.span,
                "method has no body; annotate the implementation",
            );
            return None;
        };
        let (body, output, shell) = match boxed {
            Some(((pin, body), output)) => (body, output, Shell::Boxed(pin)),
            None => (body, Output::new(&signature), Shell::AsyncFn),
        };
        sound.then(|| Self {
            head,
            body,
            scope: Scope::new(&signature),
            generics: generics(&signature),
            output,
            shell,
        })
    }
}

/// A function ends with its body or a semicolon, and no other item puts a brace group there
/// that would be read before its keyword is.
fn cut(item: TokenStream) -> (TokenStream, Option<Group>) {
    let mut head: Vec<TokenTree> = peel(item).into_iter().collect();
    let body = match head.last() {
        Some(TokenTree::Group(group)) => braces(group),
        _ => None,
    };
    let semicolon = matches!(head.last(), Some(TokenTree::Punct(last)) if last.as_char() == ';');
    if body.is_some() || semicolon {
        head.pop();
    }
    (head.into_iter().collect(), body)
}

/// `$item:item` of a `macro_rules!` macro arrives inside an invisible group.
fn peel(item: TokenStream) -> TokenStream {
    let mut tokens = item.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::None => {
            peel(group.stream())
        }
        _ => item,
    }
}

/// The brace group, also when `$body:block` wrapped it into an invisible one.
fn braces(group: &Group) -> Option<Group> {
    match group.delimiter() {
        Delimiter::Brace => Some(group.clone()),
        Delimiter::None => {
            let mut tokens = group.stream().into_iter();
            match (tokens.next(), tokens.next()) {
                (Some(TokenTree::Group(inner)), None) => braces(&inner),
                _ => None,
            }
        }
        Delimiter::Parenthesis | Delimiter::Bracket => None,
    }
}

enum Head {
    Function(Vec<Attribute>, Box<Signature>),
    /// Some other item; the span is its keyword's.
    Other(Span),
}

fn read_head(input: ParseStream<'_>) -> syn::Result<Head> {
    let attributes = input.call(Attribute::parse_outer)?;
    input.parse::<Visibility>()?;
    let ahead = input.fork();
    while ahead.peek(Token![const])
        || ahead.peek(Token![async])
        || ahead.peek(Token![unsafe])
        || ahead.peek(Token![extern])
        || ahead.peek(syn::LitStr)
    {
        ahead.parse::<TokenTree>()?;
    }
    if ahead.peek(Token![fn]) {
        return Ok(Head::Function(attributes, Box::new(input.parse()?)));
    }
    let keyword = input.span();
    input.parse::<TokenStream>()?;
    Ok(Head::Other(keyword))
}

/// Whether a lock can be held for the time of this function.
fn check(attributes: &[Attribute], signature: &Signature, faults: &mut Faults) -> bool {
    if let Some(constness) = &signature.constness {
        faults.on(constness, "`const fn` cannot hold a lock");
        return false;
    }
    if signature.asyncness.is_some() {
        return true;
    }
    let mut message = "`#[distributed_lock]` needs an `async fn`".to_owned();
    // An attribute for tests or `main` that was expanded before us has taken the `async` away.
    if attributes.iter().any(is_test) {
        message.push_str("; put it above `#[tokio::test]`");
    } else if signature.ident == "main" {
        message.push_str("; put it above `#[tokio::main]`");
    }
    faults.on(signature.fn_token, message);
    false
}

fn is_test(attribute: &Attribute) -> bool {
    let last = attribute.path().segments.last();
    last.is_some_and(|segment| segment.ident == "test")
}

impl Body {
    fn new(braces: &Group) -> Self {
        let mut tokens: Vec<TokenTree> = braces.stream().into_iter().collect();
        let mut end = 0;
        while let [
            TokenTree::Punct(hash),
            TokenTree::Punct(bang),
            TokenTree::Group(group),
            ..,
        ] = &tokens[end..]
            && hash.as_char() == '#'
            && bang.as_char() == '!'
            && group.delimiter() == Delimiter::Bracket
        {
            end += 3;
        }
        let statements = tokens.split_off(end);
        Self {
            inner_attributes: tokens.into_iter().collect(),
            statements: statements.into_iter().collect(),
            span: braces.span(),
        }
    }

    /// The path and the block of `Box::pin(async move { .. })`, when there is nothing else.
    fn unbox(&self) -> Option<(TokenStream, Self)> {
        let mut tokens: Vec<TokenTree> = self.statements.clone().into_iter().collect();
        let Some(TokenTree::Group(call)) = tokens.pop() else {
            return None;
        };
        let pin: TokenStream = tokens.into_iter().collect();
        let path: syn::Path = syn::parse2(pin.clone()).ok()?;
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|name| name.ident.to_string())
            .collect();
        let inside: Vec<TokenTree> = call.stream().into_iter().collect();
        match (names.as_slice(), inside.as_slice()) {
            (
                [.., owner, function],
                [
                    TokenTree::Ident(first),
                    TokenTree::Ident(second),
                    TokenTree::Group(block),
                ],
            ) if owner == "Box"
                && function == "pin"
                && first == "async"
                && second == "move"
                && block.delimiter() == Delimiter::Brace =>
            {
                Some((pin, Self::new(block)))
            }
            _ => None,
        }
    }

    /// The block, in braces that are ours: rustc would find the user's own superfluous.
    pub(crate) fn block(&self) -> Group {
        let mut block = Group::new(Delimiter::Brace, self.statements.clone());
        block.set_span(self.site());
        block
    }

    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(self.span)
    }
}

fn generics(signature: &Signature) -> BTreeSet<String> {
    let parameters = signature.generics.params.iter();
    parameters
        .filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => Some(parameter.ident.to_string()),
            GenericParam::Const(parameter) => Some(parameter.ident.to_string()),
            GenericParam::Lifetime(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Krate;
    use quote::quote;

    fn read(item: TokenStream) -> (Option<Function>, Vec<String>) {
        let mut faults = Faults::default();
        let function = Function::new(item, &mut faults);
        (function, faults.messages())
    }

    fn good(item: TokenStream) -> Function {
        let (function, faults) = read(item);
        assert_eq!(faults, <[&str; 0]>::default());
        function.expect("no fault")
    }

    fn fault(item: TokenStream) -> String {
        let (function, faults) = read(item);
        assert!(function.is_none());
        faults.join("\n")
    }

    fn hidden(inner: TokenStream) -> Group {
        Group::new(Delimiter::None, inner)
    }

    #[test]
    fn head_and_body_are_kept_as_they_are() {
        let head = quote! {
            /// Documented.
            #[inline]
            pub(crate) async unsafe fn f<'a, T: Copy>(&'a self, mut a: T) -> R<T> where T: Send
        };
        let body = quote!(let x = half typed ; x .);
        let function = good(quote!(#head { #body }));
        assert_eq!(function.head.to_string(), head.to_string());
        assert_eq!(function.body.statements.to_string(), body.to_string());
        assert!(function.body.inner_attributes.is_empty());
        assert_eq!(
            function.body.block().to_string(),
            quote!({ #body }).to_string()
        );
    }

    #[test]
    fn inner_attributes_are_told_from_statements() {
        let function = good(quote! {
            async fn f() { #![allow(a)] #![warn(b)] #[c] let d = !e; }
        });
        assert_eq!(
            function.body.inner_attributes.to_string(),
            quote!(#![allow(a)] #![warn(b)]).to_string()
        );
        assert_eq!(
            function.body.statements.to_string(),
            quote!(#[c] let d = !e;).to_string()
        );
    }

    #[test]
    fn invisible_groups_are_peeled() {
        let body = hidden(quote!({ 1 }));
        let visibility = hidden(quote!(pub));
        let ty = hidden(quote!(u8));
        let pattern = hidden(quote!((a, b)));
        let function = hidden(quote!(#visibility async fn f(#pattern: (#ty, #ty)) -> #ty #body));
        let function = good(quote!(#function));
        assert!(function.scope.find("b").is_some());
        assert_eq!(function.body.statements.to_string(), "1");
    }

    #[test]
    fn only_async_functions_can_hold_a_lock() {
        let plain = "`#[distributed_lock]` needs an `async fn`";
        assert_eq!(
            fault(quote!(
                fn f() {}
            )),
            plain
        );
        assert_eq!(
            fault(quote!(
                pub unsafe extern "C" fn f() {}
            )),
            plain
        );
        assert_eq!(
            fault(quote!(
                fn f();
            )),
            format!(
                "{plain}\n{}",
                "method has no body; annotate the implementation"
            )
        );
        assert_eq!(
            fault(quote!(
                #[test]
                fn f() {}
            )),
            format!("{plain}; put it above `#[tokio::test]`")
        );
        assert_eq!(
            fault(quote!(
                #[doc = "x"]
                #[::core::prelude::v1::test]
                fn f() {}
            )),
            format!("{plain}; put it above `#[tokio::test]`")
        );
        assert_eq!(
            fault(quote!(
                fn main() {}
            )),
            format!("{plain}; put it above `#[tokio::main]`")
        );
        assert_eq!(
            fault(quote!(
                const fn f() {}
            )),
            "`const fn` cannot hold a lock"
        );
        assert_eq!(
            fault(quote!(
                async fn f();
            )),
            "method has no body; annotate the implementation"
        );
    }

    #[test]
    fn other_items_are_refused() {
        for item in [
            quote!(
                struct S;
            ),
            quote!(
                pub struct S {
                    a: u8,
                }
            ),
            quote!(
                pub(crate) enum E {}
            ),
            quote!(impl S { async fn f() {} }),
            quote!(
                unsafe impl Send for S {}
            ),
            quote!(
                trait T {
                    async fn f();
                }
            ),
            quote!(
                #[cfg(a)]
                mod m {
                    fn f() {}
                }
            ),
            quote!(
                const C: u8 = 1;
            ),
            quote!(
                static S: u8 = 1;
            ),
            quote!(
                use a::b;
            ),
            quote!(
                type T = fn();
            ),
            quote!(
                extern crate a;
            ),
            quote!(
                macro_rules! m {
                    () => {};
                }
            ),
        ] {
            assert_eq!(
                fault(item.clone()),
                "`#[distributed_lock]` belongs on a function; annotate each method",
                "{item}"
            );
        }
    }

    #[test]
    fn an_unreadable_signature_is_a_fault() {
        assert_ne!(fault(quote!(async fn f(a) {})), "");
        assert_ne!(fault(quote!(async fn {})), "");
        assert_ne!(fault(quote!()), "");
    }

    #[test]
    fn generics_that_a_constant_cannot_name() {
        let generics = good(quote!(
            async fn f<'a, T: Copy, const N: usize, U>() {}
        ))
        .generics;
        let generics: Vec<&str> = generics.iter().map(String::as_str).collect();
        assert_eq!(generics, ["N", "T", "U"]);
    }

    #[test]
    fn what_async_trait_makes_of_a_function_is_taken() {
        let function = good(quote! {
            fn f<'life0, 'async_trait>(&'life0 self, id: u8)
                -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>>
            where
                'life0: 'async_trait,
            {
                ::std::boxed::Box::pin(async move { let id = id; g(id) })
            }
        });
        assert!(matches!(function.shell, Shell::Boxed(_)));
        assert_eq!(
            function.body.statements.to_string(),
            quote!(let id = id; g(id)).to_string()
        );
        assert_eq!(function.output.written(&Krate::default()).to_string(), "R");
    }

    #[test]
    fn other_boxed_futures_are_refused() {
        for body in [
            quote!(Box::pin(async { 1 })),
            quote!(Box::pin(self.g())),
            quote!(let x = 1; Box::pin(async move { x })),
            quote!(Box::pin(async move { 1 }, 2)),
            quote!(Rc::pin(async move { 1 })),
            quote!(Box::new(async move { 1 })),
            quote!(Box::pin(async move { 1 });),
            quote!(),
        ] {
            assert_eq!(
                fault(quote!(fn f() -> Pin<Box<dyn Future<Output = R>>> { #body })),
                "`#[distributed_lock]` needs an `async fn`",
                "{body}"
            );
        }
    }
}
