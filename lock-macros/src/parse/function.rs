//! The annotated function: its signature is parsed, its body stays raw tokens.

use std::collections::BTreeSet;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, ReceiverKind, Signature, Token, Visibility};

use crate::errors::Errors;
use crate::parse::body::{BoxPin, FnBody, block};
use crate::parse::generics::GenericNames;
use crate::parse::output::FnOutput;
use crate::parse::scope::Scope;
use crate::parse::tokens;

/// A function with any signature. `check` says whether it can hold a lock.
pub(crate) struct FnItem {
    head: TokenStream,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) signature: Signature,
    pub(crate) body: Option<FnBody>,
    /// The parts of a body that `#[async_trait]` wrote.
    boxed: Option<(BoxPin, FnBody, FnOutput)>,
}

/// An `async fn` with a body, or the function that `#[async_trait]` makes of one.
pub(crate) struct Function {
    /// Attributes, visibility and signature in the user's own tokens.
    pub(crate) head: TokenStream,
    pub(crate) body: FnBody,
    pub(crate) scope: Scope,
    pub(crate) generics: GenericNames,
    pub(crate) output: FnOutput,
    pub(crate) kind: FnKind,
    /// Whether `#[instrument]` comes after this attribute. It moves the body into a block that
    /// captures variables in the order in which the body names them.
    pub(crate) is_instrumented: bool,
    /// The parameters whose words are in the body, without `r#`, in the order of first use.
    pub(crate) named_in_the_body: Vec<String>,
    /// The parameters that the body uses, as far as its code tells.
    pub(crate) used_in_the_body: Vec<String>,
    /// Whether the function takes `self` by value.
    pub(crate) takes_self: bool,
    /// Whether the body may assign to `self` or to its fields, and the compiler sees a receiver in it.
    pub(crate) can_assign_self: bool,
}

/// The form of the function.
pub(crate) enum FnKind {
    AsyncFn,
    /// `#[async_trait]` turned the body into `Box::pin(async move { .. })`.
    BoxPin(BoxPin),
}

impl FnItem {
    /// Reads the item below the attribute.
    pub(crate) fn parse(item: TokenStream, errors: &mut Errors) -> Option<Self> {
        let (head, body) = split_off_body(item);
        let parsed = match parse_head.parse2(head.clone()) {
            Ok(parsed) => parsed,
            Err(error) => {
                errors.push(error);
                return None;
            }
        };
        let (attributes, signature) = match parsed {
            ItemHead::Function(attributes, signature) => (attributes, *signature),
            ItemHead::Other(keyword) => {
                errors.at(
                    keyword,
                    "`#[distributed_lock]` belongs on a function; annotate each method",
                );
                return None;
            }
        };
        let boxed = body
            .as_ref()
            .filter(|_| signature.asyncness.is_none())
            .and_then(FnBody::unbox)
            .zip(FnOutput::of_boxed(&signature))
            .map(|((call, body), output)| (call, body, output));
        Some(Self {
            head,
            attributes,
            signature,
            body,
            boxed,
        })
    }

    /// Returns whether the function returns a boxed future that `#[async_trait]` wrote.
    pub(crate) fn is_boxed(&self) -> bool {
        self.boxed.is_some()
    }

    /// Returns whether the body runs a future. Most likely an attribute moved the body of an `async fn`
    /// into it.
    pub(crate) fn runs_a_future(&self) -> bool {
        let body = self.body.as_ref();
        body.is_some_and(|body| runs_a_future(body.statements.clone()))
    }

    /// Returns whether the last segment of an attribute's path is `name`.
    pub(crate) fn has_attribute(&self, name: &str) -> bool {
        self.attributes.iter().any(|it| is_called(it, name))
    }
}

fn runs_a_future(tokens: TokenStream) -> bool {
    let mut was_async = false;
    tokens.into_iter().any(|token| {
        let found = match &token {
            TokenTree::Ident(word) => word == "block_on" || (was_async && word == "fn"),
            TokenTree::Group(group) => runs_a_future(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        };
        was_async = matches!(&token, TokenTree::Ident(word) if word == "async");
        found
    })
}

impl Function {
    /// Takes the item apart. Returns `None` without a body.
    pub(crate) fn new(item: FnItem) -> Option<Self> {
        let is_test = item.has_attribute("test");
        let is_instrumented = item.has_attribute("instrument");
        let FnItem {
            head,
            signature,
            body,
            boxed,
            ..
        } = item;
        let (body, output, kind) = match boxed {
            Some((call, body, output)) => (body, output, FnKind::BoxPin(call)),
            None => (body?, FnOutput::new(&signature), FnKind::AsyncFn),
        };
        let scope = Scope::new(&signature, is_test);
        let named_in_the_body = named_in(&body, &scope);
        Some(Self {
            generics: GenericNames::new(&signature, &body.statements),
            head,
            body,
            scope,
            used_in_the_body: named_in_the_body.clone(),
            named_in_the_body,
            output,
            kind,
            is_instrumented,
            can_assign_self: !is_instrumented
                && signature
                    .receiver()
                    .is_some_and(|it| it.mutability.is_some()),
            takes_self: signature
                .receiver()
                .is_some_and(|it| !matches!(it.kind, ReceiverKind::Reference(..))),
        })
    }

    /// Writes the whole function, with `steps` in place of its body.
    pub(crate) fn with(&self, steps: TokenStream) -> TokenStream {
        let head = &self.head;
        let inner_attributes = &self.body.inner_attributes;
        let (steps, braces) = match &self.kind {
            FnKind::AsyncFn => (steps, self.body.span),
            FnKind::BoxPin(call) => (call.around(steps, self.body.span), call.braces),
        };
        let block = block(quote!(#inner_attributes #steps), braces);
        quote!(#head #block)
    }

    /// Removes the `mut` from the bindings of `parameters`, which the body binds again.
    pub(crate) fn without_mut(mut self, parameters: &BTreeSet<String>) -> Self {
        if !parameters.is_empty() {
            self.head = tokens::without_mut_in_head(self.head, parameters);
        }
        self
    }
}

/// Returns the parameters that may be variables in the body, in the order of first use.
fn named_in(body: &FnBody, scope: &Scope) -> Vec<String> {
    let mut unseen: BTreeSet<String> = scope.names().collect();
    let mut named = Vec::new();
    tokens::each_variable(body.statements.clone(), &mut |name| {
        if unseen.remove(&name) {
            named.push(name);
        }
    });
    named
}

/// Splits an item into its head and its body. A function ends with its body or a semicolon. No
/// other item has a brace group there before its keyword is read.
fn split_off_body(item: TokenStream) -> (TokenStream, Option<FnBody>) {
    let mut head: Vec<TokenTree> = tokens::peel_item(item).into_iter().collect();
    let body = match head.last() {
        Some(TokenTree::Group(group)) => tokens::braces(group),
        _ => None,
    };
    let semicolon = matches!(head.last(), Some(TokenTree::Punct(last)) if last.as_char() == ';');
    if body.is_some() || semicolon {
        head.pop();
    }
    (head.into_iter().collect(), body.as_ref().map(FnBody::new))
}

enum ItemHead {
    Function(Vec<Attribute>, Box<Signature>),
    /// Another item, with the span of its keyword.
    Other(Span),
}

fn parse_head(input: ParseStream<'_>) -> syn::Result<ItemHead> {
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

/// Returns whether the last segment of the attribute's path is `name`.
pub(crate) fn is_called(attribute: &Attribute, name: &str) -> bool {
    let last = attribute.path().segments.last();
    last.is_some_and(|segment| segment.ident == name)
}

#[cfg(test)]
mod tests;
