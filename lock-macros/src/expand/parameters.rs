//! Makes the body capture its parameters as a plain `async fn` does.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::quote_spanned;
use syn::Attribute;
use syn::ext::IdentExt;

use crate::parse::args::Args;
use crate::parse::function::{FnKind, Function};
use crate::parse::scope::Parameter;
use crate::parse::uses::uses;
use crate::parse::values::OnContended;

/// How the body captures the parameters that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capture {
    /// The body binds them again, as the compiler does in a plain `async fn`. It captures whole
    /// parameters, drops them in the order of a plain function, and gets the same warnings.
    Rebound,
    /// Code that never runs mentions them, so that the block captures whole parameters. The order
    /// of the mentions is the order in which the block drops them.
    Mentioned(MentionOrder),
    /// The body begins with the bindings that `#[async_trait]` wrote.
    AsWritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MentionOrder {
    /// The reverse order of the parameters, in which a function drops them.
    Reverse,
    /// The order of first use. The block of `#[instrument]`, which then is around this one,
    /// captures in this order.
    FirstUse,
}

impl Capture {
    fn new(args: &Args, function: &Function) -> Self {
        let in_the_body = &function.used_in_the_body;
        let in_options = args.variables_in_expressions();
        let is_in = |names: &[String], name: &Ident| names.contains(&name.unraw().to_string());
        // When an option and the body both change a parameter, it stays one variable.
        let is_shared = |parameter: &Parameter| {
            is_in(in_the_body, &parameter.name)
                && ((parameter.mutability.is_some() && is_in(&in_options, &parameter.name))
                    || parameter.expects_a_lint())
        };
        if matches!(function.kind, FnKind::BoxPin(_)) {
            Self::AsWritten
        } else if function.is_instrumented {
            Self::Mentioned(MentionOrder::FirstUse)
        } else if matches!(args.on_contended, OnContended::Closure(_))
            || function.scope.parameters().iter().any(is_shared)
        {
            // The closure of `on_contended` may use the parameters, so they live until it is
            // called. Another binding would be another copy.
            Self::Mentioned(MentionOrder::Reverse)
        } else {
            Self::Rebound
        }
    }
}

/// The code at the beginning of the body.
pub(super) struct ParameterCode {
    /// Code that never runs.
    pub(super) mentions: Option<TokenStream>,
    pub(super) bindings: TokenStream,
}

/// Writes the code that captures the parameters.
pub(super) fn capture(args: &Args, function: &Function) -> ParameterCode {
    let site = function.body.site();
    let capture = Capture::new(args, function);
    let in_the_body = &function.used_in_the_body;
    let first_use = |name: &Ident| {
        let name = name.unraw().to_string();
        in_the_body.iter().position(|used| *used == name)
    };
    let mut mentions: Vec<(usize, TokenStream)> = Vec::new();
    let (mut bindings, mut used) = (TokenStream::new(), TokenStream::new());
    if let Some(TokenTree::Ident(receiver)) = function.scope.find("self")
        && function.takes_self
        && capture != Capture::AsWritten
        && let Some(place) = first_use(&receiver)
    {
        // The body cannot bind `self` again.
        mentions.push((place, quote_spanned!(site=> { let _ = &#receiver; })));
    }
    let in_options = args.variables();
    for parameter in function.scope.parameters() {
        let Parameter {
            name,
            mutability,
            attributes,
            is_reference,
        } = parameter;
        // A block always captures a whole reference.
        let place = first_use(name).filter(|_| !is_reference || mutability.is_some());
        let Some(place) = place else {
            continue;
        };
        let mention = || {
            let cfg = cfg(attributes);
            quote_spanned!(site=> #(#cfg)* { let _ = &#name; })
        };
        match capture {
            Capture::AsWritten => {}
            Capture::Mentioned(_) => mentions.push((place, mention())),
            Capture::Rebound => {
                // The compiler reports an unused value where the parameter's pattern begins.
                let mut value = name.clone();
                if let Some(token) = mutability {
                    value.set_span(name.span().located_at(token.span));
                }
                // The compiler binds the parameters of an `async fn` in the same way, and clippy leaves that out. The
                // compiler itself never sees this `allow`, so no `forbid` of that lint can collide with it.
                bindings.extend(quote_spanned! {site=>
                    #[cfg_attr(clippy, allow(clippy::shadow_same))]
                    #(#attributes)*
                    let #mutability #name = #value;
                });
                // An option uses the parameter, also where the body only seems to name it.
                if in_options.contains(&name.unraw().to_string()) {
                    used.extend(mention());
                }
            }
        }
    }
    if !used.is_empty() {
        bindings.extend(quote_spanned!(site=> if false { #used }));
    }
    match capture {
        Capture::Mentioned(MentionOrder::FirstUse) => mentions.sort_by_key(|(place, _)| *place),
        Capture::Mentioned(MentionOrder::Reverse) => mentions.reverse(),
        Capture::Rebound | Capture::AsWritten => {}
    }
    let mentions = mentions.into_iter().map(|(_, mention)| mention);
    let mentions: TokenStream = mentions.collect();
    ParameterCode {
        mentions: (!mentions.is_empty()).then_some(mentions),
        bindings,
    }
}

/// Finds out which parameters the body uses. The words in the body are enough for most. An option may move its
/// parameters, though: then the body must not take them as well, only because it repeats their words.
pub(super) fn find_uses(args: &Args, function: &mut Function) {
    let in_options = args.variables_in_expressions();
    let named = function.named_in_the_body.iter();
    let doubtful: BTreeSet<String> = named
        .filter(|name| *name != "self" && in_options.contains(name))
        .cloned()
        .collect();
    if doubtful.is_empty() {
        return;
    }
    let statements = match function.kind {
        FnKind::AsyncFn => function.body.statements.clone(),
        FnKind::BoxPin(_) => edit_rebindings(&function.body.statements, |name| {
            doubtful.contains(name).then_some(Rebinding::Remove)
        }),
    };
    let used = uses(statements, doubtful.clone());
    function
        .used_in_the_body
        .retain(|name| !doubtful.contains(name) || used.contains(name));
}

/// Returns the parameters whose `mut` moves to the bindings of the body.
pub(super) fn mut_in_the_body(args: &Args, function: &Function) -> BTreeSet<String> {
    if Capture::new(args, function) != Capture::Rebound {
        return BTreeSet::new();
    }
    let in_the_body = &function.used_in_the_body;
    let parameters = function.scope.parameters().iter();
    parameters
        .filter(|parameter| parameter.mutability.is_some())
        .map(|parameter| parameter.name.unraw().to_string())
        .filter(|name| in_the_body.contains(name))
        .collect()
}

/// Returns the statements of the body, for a block.
///
/// `#[async_trait]` begins the body with `let id = id;`. When only the attribute uses the parameter, the binding is
/// removed, because an option may have moved the value. When only a template uses it, the compiler would report the
/// binding as unused, so `let _ = &id;` follows it.
pub(super) fn statements(args: &Args, function: &Function) -> TokenStream {
    let statements = &function.body.statements;
    if !matches!(function.kind, FnKind::BoxPin(_)) {
        return statements.clone();
    }
    let in_options = args.variables();
    let (named, used) = (&function.named_in_the_body, &function.used_in_the_body);
    edit_rebindings(statements, |name| {
        let has = |names: &[String]| names.iter().any(|known| known == name);
        if has(named) && !has(used) {
            Some(Rebinding::Remove)
        } else {
            has(&in_options).then_some(Rebinding::Use)
        }
    })
}

/// What happens to a binding `let id = id;`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rebinding {
    Remove,
    /// A use follows it.
    Use,
}

/// Edits the first binding `let id = id;` of each name for which `edit` returns something. The block may contain
/// no token of this crate, so new tokens have the span of the name.
fn edit_rebindings(
    statements: &TokenStream,
    edit: impl Fn(&str) -> Option<Rebinding>,
) -> TokenStream {
    let tokens: Vec<TokenTree> = statements.clone().into_iter().collect();
    let mut edited: Vec<TokenTree> = Vec::with_capacity(tokens.len());
    let mut seen = BTreeSet::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let rebound = rebound(&tokens[..at], &tokens[at..])
            .map(|name| (name.unraw().to_string(), name))
            .filter(|(name, _)| seen.insert(name.clone()))
            .and_then(|(name, ident)| edit(&name).zip(Some(ident)));
        let Some((edit, name)) = rebound else {
            edited.push(token.clone());
            at += 1;
            continue;
        };
        let next = at + END_OF_REBINDING + 1;
        if edit == Rebinding::Remove {
            let keyword = |token: &TokenTree| matches!(token, TokenTree::Ident(it) if it == "let");
            while edited.pop().is_some_and(|token| !keyword(&token)) {}
            // Its attributes.
            while let [.., TokenTree::Punct(hash), TokenTree::Group(_)] = edited.as_slice()
                && hash.as_char() == '#'
            {
                edited.truncate(edited.len() - 2);
            }
        } else {
            edited.extend(tokens[at..next].iter().cloned());
            edited.extend(quote_spanned!(name.span()=> let _ = &#name;));
        }
        at = next;
    }
    edited.into_iter().collect()
}

/// Returns code that uses every parameter, and the statements of the body after it. The compiler then reports no
/// parameter as unused.
pub(super) fn all_used(function: &Function) -> (TokenStream, TokenStream) {
    let statements = &function.body.statements;
    if matches!(function.kind, FnKind::BoxPin(_)) {
        let statements = edit_rebindings(statements, |_| Some(Rebinding::Use));
        return (TokenStream::new(), statements);
    }
    let site = Span::mixed_site();
    let used = function.scope.parameters().iter().map(|parameter| {
        let Parameter {
            name, mutability, ..
        } = parameter;
        let cfg = cfg(&parameter.attributes);
        quote_spanned!(site=> #(#cfg)* { let _ = &#mutability #name; })
    });
    let used: TokenStream = used.collect();
    let before = (!used.is_empty()).then(|| quote_spanned!(site=> if false { #used }));
    (before.unwrap_or_default(), statements.clone())
}

/// How many tokens after the first name of `name = name;` the semicolon is.
const END_OF_REBINDING: usize = 3;

/// Returns the name if `let` is before, and `name = name;` is next.
fn rebound(before: &[TokenTree], next: &[TokenTree]) -> Option<Ident> {
    let is_word = |token: &TokenTree, word| matches!(token, TokenTree::Ident(it) if it == word);
    let is_sign =
        |token: &TokenTree, sign| matches!(token, TokenTree::Punct(it) if it.as_char() == sign);
    let is_let = match before {
        [.., keyword, mutability] if is_word(mutability, "mut") => is_word(keyword, "let"),
        [.., keyword] => is_word(keyword, "let"),
        [] => false,
    };
    match next {
        [
            TokenTree::Ident(name),
            equals,
            TokenTree::Ident(value),
            end,
            ..,
        ] if is_let && is_sign(equals, '=') && name == value && is_sign(end, ';') => {
            Some(name.clone())
        }
        _ => None,
    }
}

/// Mentions the parameters in the order in which the boxed future of `#[async_trait]` captures
/// them.
pub(super) fn mention_all(function: &Function) -> TokenStream {
    let site = function.body.site();
    let in_the_body = &function.named_in_the_body;
    let receiver = function.scope.find("self").map(|it| (it, [].as_slice()));
    let parameters = function.scope.parameters().iter();
    let parameters =
        parameters.map(|it| (TokenTree::Ident(it.name.clone()), it.attributes.as_slice()));
    receiver
        .into_iter()
        .chain(parameters)
        .filter(|(it, _)| match it {
            TokenTree::Ident(name) => in_the_body.contains(&name.unraw().to_string()),
            _ => false,
        })
        .map(|(name, attributes)| {
            let cfg = cfg(attributes);
            quote_spanned!(site=> #(#cfg)* { let _ = &#name; })
        })
        .collect()
}

fn cfg(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|it| it.path().is_ident("cfg"))
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;
    use crate::expand::tests::{count, text};

    /// Returns the bindings at the beginning of the body.
    fn bound(item: TokenStream, args: TokenStream) -> Vec<String> {
        let text = text(args, item);
        let (_, body) = text.split_once("async move {").expect("a body");
        let (bound, _) = body.split_once("match () {").expect("a block");
        bound
            .split("let ")
            .skip(1)
            .map(|rest| rest.split(" ;").next().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn body_binds_the_parameters_that_it_names() {
        let all = quote!(
            async fn f(self, a: A, (b, _): (B, C), mut d: D, e: E) -> R {
                d.x = a.y;
                log!("{b} {e:?}");
                self.e()
            }
        );
        assert_eq!(
            bound(all.clone(), quote!(name = "{a}")),
            // The name uses the last one.
            [
                "_ = & self",
                "a = a",
                "b = b",
                "mut d = d",
                "e = e",
                "_ = & a"
            ]
        );
        let all = text(quote!(name = "{a}"), all);
        assert!(all.contains(", d : D"), "{all}");
        let fields = quote!(
            async fn f(a: A, b: B, c: C) -> R {
                x.a + x.b() + [0; 3][..c].len()
            }
        );
        assert_eq!(bound(fields, quote!(name = "{a}")), ["c = c"]);
        let attributes = quote!(
            async fn f(
                #[cfg(x)]
                #[doc = "y"]
                #[deny(z)]
                a: A,
                b: &B,
                S {
                    #[cfg(x)]
                    c,
                    ..
                }: S,
            ) -> R {
                g(a, b, c)
            }
        );
        let attributes = text(quote!(name = "x"), attributes);
        assert_eq!(
            count(&attributes, &quote!(#[cfg(x)] #[deny(z)] let a = a;)),
            1
        );
        assert_eq!(count(&attributes, &quote!(let b = b)), 0);
        assert_eq!(count(&attributes, &quote!(#[cfg(x)] let c = c;)), 1);
    }

    #[test]
    fn fields_paths_and_new_variables_are_no_parameters() {
        let item = quote!(
            async fn f(a: A, b: B, c: C, d: D, e: E, g: G) -> R {
                let S { a: x } = S { a: 1 };
                b::run(self::c::run(), |d: u8| x.e);
                [0; 3][..g]
            }
        );
        assert_eq!(bound(item, quote!(name = "x")), ["g = g"]);
    }

    #[test]
    fn parameters_that_cannot_be_bound_are_mentioned() {
        let item = |attribute: TokenStream| {
            quote!(
                #attribute
                async fn f(a: A, mut b: B, #[cfg(x)] c: C) -> R {
                    b.x = a.y(c);
                }
            )
        };
        let plain = item(TokenStream::new());
        let reverse = ["_ = & c", "_ = & b", "_ = & a"];
        for args in [
            quote!(name = "x", on_contended = |e| Err(e)),
            quote!(name = b.name()),
            quote!(name = "x", ttl = dynamic(b.ttl)),
        ] {
            assert_eq!(bound(plain.clone(), args.clone()), reverse, "{args}");
            let text = text(args, plain.clone());
            assert!(text.contains("mut b : B"), "{text}");
            assert_eq!(
                count(
                    &text,
                    &quote!(
                        #[cfg(x)]
                        {
                            let _ = &c;
                        }
                    )
                ),
                1
            );
        }
        // `#[instrument]` comes after this attribute.
        let instrumented = item(quote!(#[tracing::instrument(skip_all)]));
        let first_use = ["_ = & b", "_ = & a", "_ = & c"];
        assert_eq!(bound(instrumented, quote!(name = "x")), first_use);
    }
    #[test]
    fn parameter_that_an_option_moves_is_not_taken_by_a_body_that_repeats_its_word() {
        let plain = |body: TokenStream| quote!(async fn f(path: P, page: Page) -> R { #body });
        for args in [
            quote!(lock = PageLock { path }),
            quote!(name = path),
            quote!(lock = PageLock { path }, on_contended = |e| Err(e)),
        ] {
            let repeats = text(
                args.clone(),
                plain(quote!(let path = &page.path; path.len())),
            );
            assert_eq!(count(&repeats, &quote!(path = path)), 0, "{repeats}");
            assert_eq!(count(&repeats, &quote!(let _ = &path)), 0, "{repeats}");
            let uses = text(args, plain(quote!(page.open(&path))));
            let taken = count(&uses, &quote!(path = path)) + count(&uses, &quote!(let _ = &path));
            assert!(taken > 0, "{uses}");
        }
    }

    #[test]
    fn binding_of_async_trait_is_removed_when_only_an_option_uses_the_parameter() {
        let boxed = |body: TokenStream| {
            quote!(
                fn f<'a>(
                    path: P,
                    page: Page,
                ) -> Pin<Box<dyn Future<Output = R> + Send + 'a>> {
                    Box::pin(async move {
                        let page = page;
                        #[cfg(all())]
                        let mut path = path;
                        let __ret: R = { #body };
                        __ret
                    })
                }
            )
        };
        let args = quote!(lock = PageLock { path });
        let repeats = text(
            args.clone(),
            boxed(quote!(let path = &page.path; path.len())),
        );
        assert_eq!(count(&repeats, &quote!(path = path)), 0, "{repeats}");
        assert_eq!(count(&repeats, &quote!(#[cfg(all())])), 0, "{repeats}");
        assert_eq!(count(&repeats, &quote!(let page = page;)), 1, "{repeats}");
        let uses = text(args, boxed(quote!(page.open(&path))));
        let bound_again = quote!(#[cfg(all())] let mut path = path; let _ = &path;);
        assert_eq!(count(&uses, &bound_again), 1, "{uses}");
    }
}
