//! Functions on tokens that are not parsed.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::{Expr, Type};

/// Removes the invisible group that `$name:expr` of a `macro_rules!` macro adds.
pub(crate) fn peel(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => peel(*group.expr),
        other => other,
    }
}

/// Removes parentheses, and the invisible group that `$t:ty` of a `macro_rules!` macro adds.
pub(crate) fn peel_type(written: &Type) -> &Type {
    match written {
        Type::Group(group) => peel_type(&group.elem),
        Type::Paren(inner) => peel_type(&inner.elem),
        other => other,
    }
}

/// Removes the invisible group that `$item:item` of a `macro_rules!` macro adds.
pub(crate) fn peel_item(item: TokenStream) -> TokenStream {
    match only_group(&item) {
        Some(group) if group.delimiter() == Delimiter::None => peel_item(group.stream()),
        _ => item,
    }
}

/// Returns the brace group, also from the invisible group that `$body:block` adds.
pub(crate) fn braces(group: &Group) -> Option<Group> {
    match group.delimiter() {
        Delimiter::Brace => Some(group.clone()),
        Delimiter::None => only_group(&group.stream()).and_then(|inner| braces(&inner)),
        Delimiter::Parenthesis | Delimiter::Bracket => None,
    }
}

fn only_group(tokens: &TokenStream) -> Option<Group> {
    let mut tokens = tokens.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Group(group)), None) => Some(group),
        _ => None,
    }
}

/// Makes a group with the span of another one.
pub(crate) fn group(delimiter: Delimiter, tokens: TokenStream, span: Span) -> Group {
    let mut group = Group::new(delimiter, tokens);
    group.set_span(span);
    group
}

/// Finds the first `.await` that an expression would run. An async block or closure inside the
/// expression runs its own.
pub(crate) fn find_await(tokens: TokenStream) -> Option<Span> {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(keyword) if keyword == "await" => return Some(keyword.span()),
            TokenTree::Ident(keyword) if keyword == "async" => {
                tokens.next_if(|next| matches!(next, TokenTree::Ident(next) if next == "move"));
                match tokens.next() {
                    Some(TokenTree::Group(_)) | None => {}
                    // A closure ends with the group around it, or at a comma.
                    Some(_) => while tokens.next_if(|next| !is_comma(next)).is_some() {},
                }
            }
            TokenTree::Group(group) => {
                let found = find_await(group.stream());
                if found.is_some() {
                    return found;
                }
            }
            _ => {}
        }
    }
    None
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')
}

/// Adds every name that may be a variable, in the order of first use. Names in the templates of
/// `format!` and similar macros count, too.
pub(crate) fn variables(tokens: TokenStream, names: &mut Vec<String>) {
    let mut known: BTreeSet<String> = names.iter().cloned().collect();
    each_variable(tokens, &mut |name| {
        if !known.contains(&name) {
            known.insert(name.clone());
            names.push(name);
        }
    });
}

/// Calls `add` with each name that may be a variable, as often as it occurs.
pub(crate) fn each_variable(tokens: TokenStream, add: &mut dyn FnMut(String)) {
    let mut tokens = tokens.into_iter().peekable();
    let sign = |token: Option<&TokenTree>| match token {
        Some(TokenTree::Punct(punct)) => Some(punct.as_char()),
        _ => None,
    };
    // The signs before the token: the last one, and the one before it.
    let (mut last, mut before_last) = (None, None);
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Ident(ident) => {
                // A field or a method follows one point; an expression follows two.
                let field = last == Some('.') && before_last != Some('.');
                // Next to colons are fields, paths, and new variables.
                let colon = sign(tokens.peek()) == Some(':')
                    || (last == Some(':') && before_last == Some(':'));
                if !field && !colon {
                    add(ident.unraw().to_string());
                }
            }
            TokenTree::Literal(literal) => variables_of_template(&literal.to_string(), add),
            TokenTree::Group(group) => each_variable(group.stream(), add),
            TokenTree::Punct(_) => {}
        }
        before_last = last;
        last = sign(Some(&token));
    }
}

/// Calls `add` with the names in the placeholders of a template, as that of `format!`.
pub(crate) fn variables_of_template(literal: &str, add: &mut dyn FnMut(String)) {
    for inside in literal.split('{').skip(1) {
        let inside = inside.trim_start();
        let end = inside.find(|letter| !unicode_ident::is_xid_continue(letter));
        let name = &inside[..end.unwrap_or(inside.len())];
        if !name.is_empty() {
            add(name.to_owned());
        }
    }
}

/// Splits the arguments of a macro at commas and semicolons.
pub(crate) fn arguments(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut arguments = vec![Vec::new()];
    for token in tokens {
        match &token {
            TokenTree::Punct(it) if matches!(it.as_char(), ',' | ';') => arguments.push(Vec::new()),
            _ => {
                if let Some(last) = arguments.last_mut() {
                    last.push(token);
                }
            }
        }
    }
    arguments
}

/// Removes the `mut` from the bindings of `parameters` in a function's head.
pub(crate) fn without_mut_in_head(head: TokenStream, parameters: &BTreeSet<String>) -> TokenStream {
    let mut head: Vec<TokenTree> = head.into_iter().collect();
    let keyword = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "fn");
    let Some(begin) = head.iter().position(keyword) else {
        return head.into_iter().collect();
    };
    // The generics come before the parameters, and may contain parentheses.
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
        && let Some(TokenTree::Group(inputs)) = head.get(begin + at)
    {
        let without = without_mut(inputs.stream(), parameters);
        let without = group(Delimiter::Parenthesis, without, inputs.span());
        head[begin + at] = TokenTree::Group(without);
    }
    head.into_iter().collect()
}

fn without_mut(tokens: TokenStream, parameters: &BTreeSet<String>) -> TokenStream {
    let mut without = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let token = match token {
            TokenTree::Ident(word) if word == "mut" => {
                // The `mut` of a reference, a pointer or `ref mut` stays.
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
            TokenTree::Group(inner) => {
                let tokens = without_mut(inner.stream(), parameters);
                TokenTree::Group(group(inner.delimiter(), tokens, inner.span()))
            }
            other => other,
        };
        without.push(token);
    }
    without.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn only_the_mut_of_a_binding_is_removed() {
        let hidden = Group::new(Delimiter::None, quote!((mut d, ref mut e)));
        let head = quote! {
            pub(crate) async fn f<F: Fn(&mut a) -> u8, const N: usize>(
                &mut self,
                mut a: &mut a,
                b: *mut b,
                mut c: &'static mut c,
                #hidden: (u8, u8),
                &mut g: &mut u8,
                mut h: u8,
                &mut mut i: &mut u8,
            ) -> &mut a
        };
        let names = ["a", "b", "c", "d", "e", "g", "i"].map(ToOwned::to_owned);
        let head = without_mut_in_head(head, &names.into_iter().collect());
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
        let close = |tokens: TokenStream| tokens.to_string().replace(' ', "");
        assert_eq!(close(head), close(expected));
    }

    #[test]
    fn variables_are_found_in_order_of_first_use() {
        let mut names = Vec::new();
        let tokens = quote!(c.a + b::d + f!("{e} {c:?}", x = 0..g) + S { h: i });
        variables(tokens, &mut names);
        // A macro counts as a variable: a name too many does no harm.
        assert_eq!(names, ["c", "f", "e", "x", "g", "S", "i"]);
    }

    #[test]
    fn await_inside_an_async_block_does_not_count() {
        assert!(find_await(quote!(a(b(c).await))).is_some());
        assert!(find_await(quote!(spawn(async move { a.await }))).is_none());
        assert!(find_await(quote!(f(async |e| e.await, a.await))).is_some());
    }
}
