//! Finds the parameters that the body uses, as the compiler would: the word of a parameter may also be a field,
//! a key of a macro, a new variable, or a part of a string.
//!
//! The answer matters for parameters that an option may move, such as `lock = PageLock { path }`. If such a
//! parameter is counted as used by mistake, the body takes it a second time, and the function does not compile.
//! If a use is missed, the body still compiles, because its block captures what it uses. So where a macro has
//! its own grammar, and in a body that is only half typed, the doubt is resolved as "not used".

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::visit::{self, Visit};
use syn::{Arm, Block, Expr, ExprClosure, ExprForLoop, ExprIf, ExprLet, ExprPath, ExprWhile};
use syn::{Item, Local, Macro, Pat, PatIdent, Token};

use super::tokens::{arguments, variables, variables_of_template};

/// Returns which of `names` the statements use.
pub(crate) fn uses(statements: TokenStream, names: BTreeSet<String>) -> BTreeSet<String> {
    let mut uses = Uses {
        names,
        hidden: Vec::new(),
        found: BTreeSet::new(),
    };
    if let Ok(statements) = Block::parse_within.parse2(statements) {
        for statement in &statements {
            uses.visit_stmt(statement);
        }
    }
    uses.found
}

struct Uses {
    names: BTreeSet<String>,
    /// The names that variables of the body hide at this place.
    hidden: Vec<String>,
    found: BTreeSet<String>,
}

impl Uses {
    /// Runs `visit`, and forgets the variables that it declares.
    fn scoped(&mut self, visit: impl FnOnce(&mut Self)) {
        let outside = self.hidden.len();
        visit(self);
        self.hidden.truncate(outside);
    }

    fn add(&mut self, name: String) {
        if self.names.contains(&name) && !self.hidden.contains(&name) {
            self.found.insert(name);
        }
    }

    /// Declares the variables of a pattern.
    fn declare(&mut self, pattern: &Pat) {
        struct Bindings<'a>(&'a mut Uses);
        impl<'ast> Visit<'ast> for Bindings<'_> {
            fn visit_pat_ident(&mut self, binding: &'ast PatIdent) {
                let name = binding.ident.unraw().to_string();
                if self.0.names.contains(&name) {
                    self.0.hidden.push(name);
                }
                visit::visit_pat_ident(self, binding);
            }

            fn visit_expr(&mut self, _: &'ast Expr) {}
        }
        Bindings(self).visit_pat(pattern);
    }

    /// Reads the arguments of a macro.
    fn macro_call(&mut self, name: &str, tokens: TokenStream) {
        if name == "select" && self.select(tokens.clone()) {
            return;
        }
        let template = match name {
            "assert_eq" | "assert_ne" | "debug_assert_eq" | "debug_assert_ne" => 2,
            "assert" | "debug_assert" | "ensure" | "write" | "writeln" => 1,
            _ => 0,
        };
        self.arguments(tokens, Some(template), name.ends_with("matches"));
    }

    /// Reads `pattern = future, if condition => body` of `select!`. Returns whether it has this form.
    fn select(&mut self, tokens: TokenStream) -> bool {
        let arms = |input: ParseStream<'_>| {
            if input.peek2(Token![;]) {
                input.parse::<TokenTree>()?;
                input.parse::<Token![;]>()?;
            }
            let mut arms = Vec::new();
            while !input.is_empty() {
                let word = input.peek2(Token![=>]);
                let head = if word {
                    input.parse::<TokenTree>()?;
                    None
                } else {
                    let pattern = Pat::parse_multi_with_leading_vert(input)?;
                    input.parse::<Token![=]>()?;
                    let future: Expr = input.parse()?;
                    let mut condition = None;
                    if input.peek(Token![,]) {
                        input.parse::<Token![,]>()?;
                        input.parse::<Token![if]>()?;
                        condition = Some(input.parse::<Expr>()?);
                    }
                    Some((pattern, future, condition))
                };
                input.parse::<Token![=>]>()?;
                let body = if input.peek(syn::token::Brace) {
                    let block: Block = input.parse()?;
                    Expr::Verbatim(quote::ToTokens::into_token_stream(block))
                } else {
                    input.parse()?
                };
                input.parse::<Option<Token![,]>>()?;
                arms.push((head, body));
            }
            Ok(arms)
        };
        let Ok(arms) = Parser::parse2(arms, tokens) else {
            return false;
        };
        for (head, body) in arms {
            self.scoped(|uses| {
                if let Some((pattern, future, condition)) = &head {
                    uses.visit_expr(future);
                    if let Some(condition) = condition {
                        uses.visit_expr(condition);
                    }
                    uses.declare(pattern);
                }
                match body {
                    Expr::Verbatim(block) => uses.unknown(block),
                    other => uses.visit_expr(&other),
                }
            });
        }
        true
    }

    /// Reads arguments between commas or semicolons. `template` is the number of the first argument that may be
    /// a template, as of `format!`.
    fn arguments(&mut self, tokens: TokenStream, template: Option<usize>, has_pattern: bool) {
        let mut template = template;
        let arguments = arguments(tokens).into_iter().map(without_key);
        let arguments: Vec<_> = arguments.collect();
        let keys: Vec<String> = arguments
            .iter()
            .filter_map(|(key, _)| key.clone())
            .collect();
        for (number, (key, value)) in arguments.into_iter().enumerate() {
            if let [TokenTree::Literal(literal)] = value.as_slice() {
                let is_template = key.is_none() && template.is_some_and(|first| number >= first);
                if is_template && literal.to_string().contains('"') {
                    template = None;
                    variables_of_template(&literal.to_string(), &mut |name| {
                        // A named argument hides the variable.
                        if !keys.contains(&name) {
                            self.add(name);
                        }
                    });
                }
                continue;
            }
            let value: TokenStream = value.into_iter().collect();
            if has_pattern && number == 1 {
                self.pattern(value);
            } else if let Ok(value) = syn::parse2::<Expr>(value.clone()) {
                self.visit_expr(&value);
            } else {
                self.unknown(value);
            }
        }
    }

    /// Reads the pattern of `matches!`.
    fn pattern(&mut self, tokens: TokenStream) {
        let parse = |input: ParseStream<'_>| {
            let pattern = Pat::parse_multi_with_leading_vert(input)?;
            let guard = if input.peek(Token![if]) {
                input.parse::<Token![if]>()?;
                Some(input.parse::<Expr>()?)
            } else {
                None
            };
            Ok((pattern, guard))
        };
        if let Ok((pattern, guard)) = Parser::parse2(parse, tokens) {
            self.scoped(|uses| {
                uses.declare(&pattern);
                uses.visit_pat(&pattern);
                if let Some(guard) = &guard {
                    uses.visit_expr(guard);
                }
            });
        }
    }

    /// Reads tokens of an unknown grammar.
    fn unknown(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_sign = |token: Option<&TokenTree>, sign| matches!(token, Some(TokenTree::Punct(it)) if it.as_char() == sign);
        for (at, token) in tokens.iter().enumerate() {
            let before = |back: usize| at.checked_sub(back).and_then(|at| tokens.get(at));
            match token {
                TokenTree::Group(group) => {
                    let stream = group.stream();
                    if let (Some(TokenTree::Ident(name)), true) =
                        (before(2), is_sign(before(1), '!'))
                    {
                        self.macro_call(&name.to_string(), stream);
                    } else if let (Delimiter::Brace, Ok(statements)) = (
                        group.delimiter(),
                        Block::parse_within.parse2(stream.clone()),
                    ) {
                        self.scoped(|uses| {
                            for it in &statements {
                                uses.visit_stmt(it);
                            }
                        });
                    } else {
                        self.arguments(stream, None, false);
                    }
                }
                TokenTree::Ident(_) => {
                    let next = tokens.get(at + 1);
                    // A key, or an attribute of a markup language.
                    let is_key = is_sign(next, '=') && !is_sign(tokens.get(at + 2), '=');
                    if !is_key {
                        let around =
                            tokens[at.saturating_sub(2)..(at + 2).min(tokens.len())].iter();
                        let mut names = Vec::new();
                        variables(around.cloned().collect(), &mut names);
                        let name = token.to_string();
                        let name = name.strip_prefix("r#").unwrap_or(&name);
                        if names.iter().any(|found| found == name) {
                            self.add(name.to_owned());
                        }
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_block(&mut self, block: &'ast Block) {
        self.scoped(|uses| visit::visit_block(uses, block));
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(init) = &local.init {
            self.visit_local_init(init);
        }
        self.visit_pat(&local.pat);
        self.declare(&local.pat);
    }

    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        if let (None, Some(name)) = (&path.qself, path.path.get_ident()) {
            self.add(name.unraw().to_string());
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        self.scoped(|uses| {
            closure.inputs.iter().for_each(|it| uses.declare(it));
            uses.visit_expr(&closure.body);
        });
    }

    fn visit_expr_let(&mut self, binding: &'ast ExprLet) {
        self.visit_expr(&binding.expr);
        self.declare(&binding.pat);
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        self.scoped(|uses| {
            uses.visit_expr(&branch.cond);
            uses.visit_block(&branch.then_branch);
        });
        if let Some((_, other)) = &branch.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, repeated: &'ast ExprWhile) {
        self.scoped(|uses| {
            uses.visit_expr(&repeated.cond);
            uses.visit_block(&repeated.body);
        });
    }

    fn visit_expr_for_loop(&mut self, repeated: &'ast ExprForLoop) {
        self.visit_expr(&repeated.expr);
        self.scoped(|uses| {
            uses.declare(&repeated.pat);
            uses.visit_block(&repeated.body);
        });
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.scoped(|uses| {
            uses.declare(&arm.pat);
            uses.visit_pat(&arm.pat);
            uses.visit_expr(&arm.body);
        });
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Verbatim(tokens) => self.unknown(tokens.clone()),
            other => visit::visit_expr(self, other),
        }
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let name = called.path.segments.last();
        let name = name.map(|it| it.ident.to_string()).unwrap_or_default();
        self.macro_call(&name, called.tokens.clone());
    }

    /// An item cannot use variables, but the rules of a macro can.
    fn visit_item(&mut self, item: &'ast Item) {
        if let Item::Macro(rules) = item {
            self.unknown(rules.mac.tokens.clone());
        }
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_type(&mut self, _: &'ast syn::Type) {}
}

/// Removes `key =` or `key:` from an argument, and the signs of `tracing` that say how a value is recorded.
/// Also returns the last word of the key.
fn without_key(argument: Vec<TokenTree>) -> (Option<String>, Vec<TokenTree>) {
    let sign = |at: usize| match argument.get(at) {
        Some(TokenTree::Punct(it)) => Some(it.as_char()),
        _ => None,
    };
    let is_word = |at: usize| {
        matches!(
            argument.get(at),
            Some(TokenTree::Ident(_) | TokenTree::Literal(_))
        )
    };
    let mut end = 0;
    while is_word(end) && sign(end + 1) == Some('.') {
        end += 2;
    }
    let is_key = is_word(end)
        && match sign(end + 1) {
            Some('=') => !matches!(sign(end + 2), Some('=' | '>')),
            Some(':') => end == 0 && sign(2) != Some(':'),
            _ => false,
        };
    let mut begin = if is_key { end + 2 } else { 0 };
    if matches!(sign(begin), Some('%' | '?')) {
        begin += 1;
    }
    let key = is_key.then(|| argument[end].to_string());
    (key, argument.into_iter().skip(begin).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn is_used(statements: TokenStream) -> bool {
        let names = BTreeSet::from(["path".to_owned()]);
        !uses(statements, names).is_empty()
    }

    #[test]
    fn word_of_a_parameter_is_no_use_of_it() {
        for statements in [
            quote!(let path = &page.path; log(path, path.len())),
            quote!(let (a, path) = pair; { path }),
            quote!(let Page { path, .. } = page; path),
            quote!(let Some(path) = found else { return }; path),
            quote!(if let Some(path) = found {
                open(path)
            } else {
                close()
            }),
            quote!(if a
                && let Some(path) = found
                && path.is_ok()
            {}),
            quote!(while let Some(path) = next() {
                open(path)
            }),
            quote!(for path in paths {
                open(path)
            }),
            quote!(match found {
                Some(path) if path > 1 => path,
                None => 0,
            }),
            quote!(paths.map(|path| path.len()).filter(move |(path, _)| path)),
            quote!(spawn(async move |path: u8| path)),
            quote!(Page { path: x }; page.path(); path::run(); crate::path; path!(x)),
            quote!(route("/pages/{path}")),
            quote!(route(r"/pages/{path}"); let x = "{path}";),
            quote!(
                fn path(path: u8) -> u8 {
                    path
                },
                path::<u8>(1)
            ),
            quote!(info!(path = %page.path, "done")),
            quote!(info!(path = x, request.path = ?y.path)),
            quote!(info!(route = "/pages/{path}", "done {x}")),
            quote!(info!(target: "{path}", "done")),
            quote!(println!("{path}", path = page.path())),
            quote!(assert_eq!(url, "/pages/{path}")),
            quote!(assert!(url == "/pages/{path}")),
            quote!(assert!(matches!(found, Some(path) if path > 1))),
            quote!(json!({ "path": page.path, "url": "/pages/{path}" })),
            quote!(vec!["/pages/{path}".to_owned()]),
            quote!(vec![paths.map(|path| path)]),
            quote!(tokio::select! { path = next() => open(path), else => {} }),
            quote!(
                tokio::select! { biased; Some(path) = next(), if a => { open(path) } _ = b => {} }
            ),
            // Half typed.
            quote!(page.path; let x = ),
        ] {
            assert!(!is_used(statements.clone()), "{statements}");
        }
    }

    #[test]
    fn each_use_of_a_parameter_is_found() {
        let rules = "macro_rules! m { () => { path.len() } } m!()";
        let rules = rules.parse().expect("tokens");
        for statements in [
            quote!(path),
            quote!(open(&path)),
            quote!(r#path.len()),
            quote!(path.field = 1;),
            quote!(let path = path.trim(); path),
            quote!(let path = { let path = path; path };),
            quote!(if let Some(path) = path {}),
            quote!(if let Some(path) = found {
            } else {
                path
            }),
            quote!({ let path = 1; } path),
            quote!(paths.map(|path| path); path),
            quote!(Page { path }),
            quote!(Page { path }),
            quote!(Page { ..path }),
            quote!(match path {
                _ => {}
            }),
            quote!(match x {
                Some(path) => 1,
                None => path,
            }),
            quote!([0; 3][..path]),
            quote!(spawn(async move { path })),
            quote!(format!("{path}")),
            quote!(format!("{x} {path:?}")),
            quote!(format!("{}", path)),
            quote!(format!("{x}", x = path)),
            quote!(write!(f, "{path}")),
            quote!(assert!(x, "{path}")),
            quote!(assert_eq!(x, "a", "{path}")),
            quote!(info!(%path, "done")),
            quote!(info!(?path)),
            quote!(info!(path)),
            quote!(info!(x = %path)),
            quote!(info!(target: "x", "done {path}")),
            quote!(vec![path; 3]),
            quote!(vec![format!("{path}")]),
            quote!(json!({ "path": path })),
            quote!(json!({ "path": format!("{path}") })),
            quote!(matches!(path, Some(_))),
            quote!(matches!(x, Some(y) if y > path)),
            quote!(tokio::select! { x = next(path) => {} }),
            quote!(tokio::select! { x = next() => { let y = path; } }),
            quote!(html! { <a href=path> }),
            rules,
            quote!(x.await?.push(path)?),
            quote!(return path),
            quote!(loop {
                break path;
            }),
        ] {
            assert!(is_used(statements.clone()), "{statements}");
        }
    }
}
