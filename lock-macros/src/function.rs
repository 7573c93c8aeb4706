//! The annotated function: its signature is read, its body stays raw tokens.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, ReceiverKind, Signature, Token, Visibility};

use crate::duration::GenericNames;
use crate::errors::Errors;
use crate::output::FnOutput;
use crate::scope::Scope;

/// An `async fn` with a body, or what `#[async_trait]` made of one.
pub(crate) struct Function {
    /// Attributes, visibility and signature as they were written.
    pub(crate) head: TokenStream,
    pub(crate) body: Body,
    pub(crate) scope: Scope,
    pub(crate) generics: GenericNames,
    pub(crate) output: FnOutput,
    pub(crate) kind: FnKind,
    is_instrumented: bool,
    takes_self: bool,
}

/// What the body stands in.
pub(crate) enum FnKind {
    AsyncFn,
    /// `Box::pin(async move { .. })`, which `#[async_trait]` makes of a body.
    BoxPin(BoxPin),
}

/// `Box::pin(async move { .. })` without the block.
pub(crate) struct BoxPin {
    /// What is before the parenthesis.
    path: TokenStream,
    parentheses: Span,
    keywords: [TokenTree; 2],
    /// The braces of the function.
    braces: Span,
}

/// The body, never parsed: a half-typed one still expands.
pub(crate) struct Body {
    /// `#![..]` at its beginning, which are only allowed where a function's body begins.
    pub(crate) inner_attributes: TokenStream,
    pub(crate) statements: TokenStream,
    /// Its braces.
    pub(crate) span: Span,
}

/// Braces with the author's span: the compiler asks it for the edition, which decides in which
/// order the body drops what it holds, and other attributes take it for their own code.
fn block(tokens: TokenStream, span: Span) -> Group {
    let mut block = Group::new(Delimiter::Brace, tokens);
    block.set_span(span);
    block
}

impl BoxPin {
    fn around(&self, tokens: TokenStream, body: Span) -> TokenStream {
        let mut call: TokenStream = self.keywords.iter().cloned().collect();
        call.extend([TokenTree::Group(block(tokens, body))]);
        let mut call = Group::new(Delimiter::Parenthesis, call);
        call.set_span(self.parentheses);
        let path = &self.path;
        quote!(#path #call)
    }
}

impl Function {
    /// Reads `item`; what is wrong with it goes to `errors`.
    pub(crate) fn new(item: TokenStream, errors: &mut Errors) -> Option<Self> {
        let (head, body) = cut(item);
        let read = match read_head.parse2(head.clone()) {
            Ok(read) => read,
            Err(error) => {
                errors.push(error);
                return None;
            }
        };
        let (attributes, signature) = match read {
            ItemHead::Function(attributes, signature) => (attributes, signature),
            ItemHead::Other(keyword) => {
                errors.at(
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
            .zip(FnOutput::of_boxed(&signature))
            .filter(|_| signature.asyncness.is_none());
        let sound = boxed.is_some() || check(&attributes, &signature, errors);
        let Some(body) = body else {
            errors.at(
                signature.fn_token.span,
                "method has no body; annotate the implementation",
            );
            return None;
        };
        let (body, output, kind) = match boxed {
            Some(((kind, body), output)) => (body, output, FnKind::BoxPin(kind)),
            None => (body, FnOutput::new(&signature), FnKind::AsyncFn),
        };
        sound.then(|| Self {
            head,
            body,
            scope: Scope::new(
                &signature,
                attributes.iter().any(|it| is_called(it, "test")),
            ),
            generics: GenericNames::new(&signature),
            output,
            kind,
            is_instrumented: attributes.iter().any(|it| is_called(it, "instrument")),
            takes_self: signature
                .receiver()
                .is_some_and(|it| !matches!(it.kind, ReceiverKind::Reference(..))),
        })
    }

    /// The whole function, with `steps` in the place of its body.
    pub(crate) fn with(&self, steps: TokenStream) -> TokenStream {
        let head = &self.head;
        let inner_attributes = &self.body.inner_attributes;
        let (steps, braces) = match &self.kind {
            FnKind::AsyncFn => (steps, self.body.span),
            FnKind::BoxPin(kind) => (kind.around(steps, self.body.span), kind.braces),
        };
        let block = block(quote!(#inner_attributes #steps), braces);
        quote!(#head #block)
    }

    /// The function as it was written, with `before` as the first statements of its body.
    pub(crate) fn as_it_was(&self, before: Option<TokenStream>) -> TokenStream {
        let mut statements = before.unwrap_or_default();
        statements.extend(self.body.statements.clone());
        self.with(statements)
    }

    /// The names that may stand for a variable in the body, in the order of their first use.
    pub(crate) fn names_in_the_body(&self) -> Vec<String> {
        let mut names = Vec::new();
        names_in(self.body.statements.clone(), &mut names);
        names
    }

    /// Whether `#[instrument]` comes after this attribute, which puts the body into a block that
    /// takes what it names, in the order in which it names it.
    pub(crate) fn is_instrumented(&self) -> bool {
        self.is_instrumented
    }

    /// Whether `self` is taken by value.
    pub(crate) fn takes_self(&self) -> bool {
        self.takes_self
    }

    /// Takes the `mut` from the bindings of `parameters`: the body binds them anew.
    pub(crate) fn without_mut(mut self, parameters: &BTreeSet<String>) -> Self {
        if !parameters.is_empty() {
            self.head = without_mut_in_head(self.head, parameters);
        }
        self
    }
}

fn without_mut_in_head(head: TokenStream, parameters: &BTreeSet<String>) -> TokenStream {
    let mut head: Vec<TokenTree> = head.into_iter().collect();
    let keyword = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "fn");
    let Some(begin) = head.iter().position(keyword) else {
        return head.into_iter().collect();
    };
    // Behind the name stand the generics, which may hold parentheses of their own.
    let mut depth = 0_usize;
    let mut arrow = false;
    let inputs = head[begin..].iter().position(|token| {
        match token {
            TokenTree::Punct(punct) => {
                match punct.as_char() {
                    '<' => depth += 1,
                    '>' if !arrow => depth = depth.saturating_sub(1),
                    _ => {}
                }
                arrow = punct.as_char() == '-';
            }
            TokenTree::Group(group) => {
                return depth == 0 && group.delimiter() == Delimiter::Parenthesis;
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) => arrow = false,
        }
        false
    });
    if let Some(at) = inputs
        && let Some(TokenTree::Group(group)) = head.get(begin + at)
    {
        let mut without = Group::new(
            Delimiter::Parenthesis,
            without_mut_in(group.stream(), parameters),
        );
        without.set_span(group.span());
        head[begin + at] = TokenTree::Group(without);
    }
    head.into_iter().collect()
}

fn without_mut_in(tokens: TokenStream, parameters: &BTreeSet<String>) -> TokenStream {
    let mut without = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let token = match token {
            TokenTree::Ident(word) if word == "mut" => {
                // Not the one of a reference, with or without a lifetime, a pointer or `ref mut`.
                let binds = match without.as_slice() {
                    [.., TokenTree::Punct(before)] => !matches!(before.as_char(), '&' | '*'),
                    [.., TokenTree::Punct(before), TokenTree::Ident(_)]
                        if before.as_char() == '\'' =>
                    {
                        false
                    }
                    [.., TokenTree::Ident(before)] => before != "ref",
                    _ => true,
                };
                let named = matches!(
                    tokens.peek(),
                    Some(TokenTree::Ident(name)) if parameters.contains(&name.unraw().to_string())
                );
                if binds && named {
                    continue;
                }
                TokenTree::Ident(word)
            }
            TokenTree::Group(group) => {
                let inner = without_mut_in(group.stream(), parameters);
                let mut inner = Group::new(group.delimiter(), inner);
                inner.set_span(group.span());
                TokenTree::Group(inner)
            }
            other => other,
        };
        without.push(token);
    }
    without.into_iter().collect()
}

/// Every name that may stand for a variable, also in the templates of `format!` and its like, in the
/// order of their first use.
pub(crate) fn names_in(tokens: TokenStream, names: &mut Vec<String>) {
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let sign = |at: Option<usize>| match at.and_then(|at| tokens.get(at)) {
        Some(TokenTree::Punct(punct)) => Some(punct.as_char()),
        _ => None,
    };
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(ident) => {
                // Behind one point stands a field or a method, behind two an expression.
                let field =
                    sign(at.checked_sub(1)) == Some('.') && sign(at.checked_sub(2)) != Some('.');
                // Around colons stand fields, paths, and variables that are new.
                let colon = sign(Some(at + 1)) == Some(':')
                    || (sign(at.checked_sub(1)) == Some(':')
                        && sign(at.checked_sub(2)) == Some(':'));
                if !field && !colon {
                    add(ident.unraw().to_string());
                }
            }
            TokenTree::Literal(literal) => names_in_template(&literal.to_string(), &mut add),
            TokenTree::Group(group) => {
                let mut inner = Vec::new();
                names_in(group.stream(), &mut inner);
                inner.into_iter().for_each(&mut add);
            }
            TokenTree::Punct(_) => {}
        }
    }
}

fn names_in_template(literal: &str, add: &mut impl FnMut(String)) {
    for inside in literal.split('{').skip(1) {
        let inside = inside.trim_start();
        let end = inside.find(|letter| !unicode_ident::is_xid_continue(letter));
        let name = &inside[..end.unwrap_or(inside.len())];
        if !name.is_empty() {
            add(name.to_owned());
        }
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

enum ItemHead {
    Function(Vec<Attribute>, Box<Signature>),
    /// Some other item; the span is its keyword's.
    Other(Span),
}

fn read_head(input: ParseStream<'_>) -> syn::Result<ItemHead> {
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
        return Ok(ItemHead::Function(attributes, Box::new(input.parse()?)));
    }
    let keyword = input.span();
    input.parse::<TokenStream>()?;
    Ok(ItemHead::Other(keyword))
}

/// Whether a lock can be held for the time of this function.
fn check(attributes: &[Attribute], signature: &Signature, errors: &mut Errors) -> bool {
    if let Some(constness) = &signature.constness {
        errors.on(constness, "`const fn` cannot hold a lock");
        return false;
    }
    if signature.asyncness.is_some() {
        return true;
    }
    let mut message = "`#[distributed_lock]` needs an `async fn`".to_owned();
    // An attribute for tests or `main` that was expanded before us has taken the `async` away, and
    // left another one; what a case of many is made of is not expanded yet.
    if attributes.iter().any(is_test_of_a_framework) {
        message.push_str("; put it above `#[test_case]`");
    } else if attributes.iter().any(|it| is_called(it, "test")) {
        message.push_str("; put it above `#[tokio::test]`");
    } else if signature.ident == "main" {
        message.push_str("; put it above `#[tokio::main]`");
    }
    errors.on(signature.fn_token, message);
    false
}

/// `#[tokio::test]` and its like, but not `#[::core::prelude::v1::test]`.
fn is_test_of_a_framework(attribute: &Attribute) -> bool {
    let segments = &attribute.path().segments;
    let first = segments.first().map(|segment| segment.ident.to_string());
    is_called(attribute, "test")
        && segments.len() > 1
        && !matches!(first.as_deref(), Some("core" | "std"))
}

fn is_called(attribute: &Attribute, name: &str) -> bool {
    let last = attribute.path().segments.last();
    last.is_some_and(|segment| segment.ident == name)
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

    /// The kind and the block of `Box::pin(async move { .. })`, when there is nothing else.
    fn unbox(&self) -> Option<(BoxPin, Self)> {
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
                let kind = BoxPin {
                    path: pin,
                    parentheses: call.span(),
                    keywords: [first.clone().into(), second.clone().into()],
                    braces: self.span,
                };
                Some((kind, Self::new(block)))
            }
            _ => None,
        }
    }

    /// The block, in the braces of its author.
    pub(crate) fn block(&self) -> Group {
        block(self.statements.clone(), self.span)
    }

    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::CratePath;

    fn read(item: TokenStream) -> (Option<Function>, Vec<String>) {
        let mut errors = Errors::default();
        let function = Function::new(item, &mut errors);
        (function, errors.messages())
    }

    fn good(item: TokenStream) -> Function {
        let (function, errors) = read(item);
        assert_eq!(errors, <[&str; 0]>::default());
        function.expect("no error")
    }

    fn error(item: TokenStream) -> String {
        let (function, errors) = read(item);
        assert!(function.is_none());
        errors.join("\n")
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
    fn only_the_mut_of_a_binding_is_taken_away() {
        let hidden = hidden(quote!((mut d, ref mut e)));
        let function = good(quote! {
            pub(crate) async fn f<F: Fn(&mut a) -> u8, const N: usize>(
                &mut self,
                mut a: &mut a,
                b: *mut b,
                mut c: &'static mut c,
                #hidden: (u8, u8),
                &mut g: &mut u8,
                mut h: u8,
                &mut mut i: &mut u8,
            ) -> &mut a {}
        });
        let names = ["a", "b", "c", "d", "e", "g", "i"].map(ToOwned::to_owned);
        let without = function.without_mut(&names.into_iter().collect());
        let head = without.head.to_string().replace(' ', "");
        let expected = quote! {
            pub(crate) async fn f<F: Fn(&mut a) -> u8, const N: usize>(
                &mut self,
                a: &mut a,
                b: *mut b,
                c: &'static mut c,
                (d, ref mut e): (u8, u8),
                &mut g: &mut u8,
                mut h: u8,
                &mut i: &mut u8,
            ) -> &mut a
        };
        assert_eq!(head, expected.to_string().replace(' ', ""));
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
            error(quote!(
                fn f() {}
            )),
            plain
        );
        assert_eq!(
            error(quote!(
                pub unsafe extern "C" fn f() {}
            )),
            plain
        );
        assert_eq!(
            error(quote!(
                fn f();
            )),
            format!(
                "{plain}\n{}",
                "method has no body; annotate the implementation"
            )
        );
        assert_eq!(
            error(quote!(
                #[test]
                fn f() {}
            )),
            format!("{plain}; put it above `#[tokio::test]`")
        );
        assert_eq!(
            error(quote!(
                #[doc = "x"]
                #[::core::prelude::v1::test]
                fn f() {}
            )),
            format!("{plain}; put it above `#[tokio::test]`")
        );
        assert_eq!(
            error(quote!(
                #[tokio::test]
                fn case_1() {}
            )),
            format!("{plain}; put it above `#[test_case]`")
        );
        assert_eq!(
            error(quote!(
                fn main() {}
            )),
            format!("{plain}; put it above `#[tokio::main]`")
        );
        assert_eq!(
            error(quote!(
                const fn f() {}
            )),
            "`const fn` cannot hold a lock"
        );
        assert_eq!(
            error(quote!(
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
                error(item.clone()),
                "`#[distributed_lock]` belongs on a function; annotate each method",
                "{item}"
            );
        }
    }

    #[test]
    fn an_unreadable_signature_is_a_error() {
        assert_ne!(error(quote!(async fn f(a) {})), "");
        assert_ne!(error(quote!(async fn {})), "");
        assert_ne!(error(quote!()), "");
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
        assert!(matches!(function.kind, FnKind::BoxPin(_)));
        assert_eq!(
            function.body.statements.to_string(),
            quote!(let id = id; g(id)).to_string()
        );
        let output = function.output.expand(&CratePath::default()).to_string();
        assert!(output.contains("ReturnType :: < R > :: new"), "{output}");
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
                error(quote!(fn f() -> Pin<Box<dyn Future<Output = R>>> { #body })),
                "`#[distributed_lock]` needs an `async fn`",
                "{body}"
            );
        }
    }
}
