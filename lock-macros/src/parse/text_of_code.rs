//! Finds the names that are texts of the code, and so could be templates.

use syn::{Block, Expr, ExprCall, Lit, Path, Stmt};

/// Returns whether an expression gives a text of the code as it is: a literal, a constant, or one of
/// several. Any other expression computes its value, and a value may contain what looks like a
/// placeholder.
pub(crate) fn is_text_of_code(value: &Expr) -> bool {
    match value {
        Expr::Lit(literal) => matches!(literal.lit, Lit::Str(_)),
        Expr::Path(path) => is_constant(&path.path),
        Expr::Group(inner) => is_text_of_code(&inner.expr),
        Expr::Paren(inner) => is_text_of_code(&inner.expr),
        Expr::Reference(inner) => is_text_of_code(&inner.expr),
        Expr::Try(inner) => is_text_of_code(&inner.expr),
        Expr::MethodCall(call) => {
            let keeps_the_text = ["to_owned", "to_string", "into", "as_ref", "borrow"];
            let unwraps = ["unwrap", "expect"];
            let called = |names: &[&str]| names.iter().any(|name| call.method == name);
            let is_kept = called(&keeps_the_text) && call.args.is_empty();
            (is_kept || called(&unwraps)) && is_text_of_code(&call.receiver)
        }
        Expr::Call(call) => is_conversion(call) && call.args.iter().all(is_text_of_code),
        Expr::Block(block) => is_text_of_a_block(&block.block),
        Expr::Const(block) => is_text_of_a_block(&block.block),
        Expr::If(chosen) => {
            let other = chosen.else_branch.as_ref();
            is_text_of_a_block(&chosen.then_branch)
                && other.is_some_and(|(_, other)| is_text_of_code(other))
        }
        Expr::Match(chosen) => chosen.arms.iter().all(|arm| is_text_of_code(&arm.body)),
        _ => false,
    }
}

/// Returns whether a path names a constant: by capitals, or in a module or a type. A parameter has
/// neither.
fn is_constant(path: &Path) -> bool {
    let Some(name) = path.get_ident() else {
        return true;
    };
    let name = name.to_string();
    name.contains(char::is_uppercase) && !name.contains(char::is_lowercase)
}

/// Returns whether a call is `String::from(..)` or similar.
fn is_conversion(call: &ExprCall) -> bool {
    let Expr::Path(callee) = &*call.func else {
        return false;
    };
    let last = callee.path.segments.last();
    let converts = [
        "from",
        "new",
        "into",
        "to_owned",
        "to_string",
        "Borrowed",
        "Owned",
    ];
    last.is_some_and(|last| converts.iter().any(|name| last.ident == name)) && call.args.len() == 1
}

fn is_text_of_a_block(block: &Block) -> bool {
    matches!(block.stmts.as_slice(), [Stmt::Expr(value, None)] if is_text_of_code(value))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn literals_and_constants_are_texts_of_the_code() {
        let texts: [Expr; 14] = [
            parse_quote!(NAME),
            parse_quote!(names::ORDER),
            parse_quote!(Self::NAME),
            parse_quote!(<T as Named>::NAME),
            parse_quote!(&NAME),
            parse_quote!("order:{id}".to_owned()),
            parse_quote!(NAME.to_string()),
            parse_quote!(String::from(NAME)),
            parse_quote!(LockName::new("order:{id}").expect("it is short")),
            parse_quote!(Cow::Borrowed("order:{id}")),
            parse_quote!((NAME)),
            parse_quote!({ NAME }),
            parse_quote!(if id > 0 { "order:{id}" } else { NAME }),
            parse_quote!(match id {
                0 => "order:0",
                _ => NAME,
            }),
        ];
        for text in texts {
            assert!(is_text_of_code(&text), "{}", quote::quote!(#text));
        }
    }

    #[test]
    fn computed_values_are_no_texts_of_the_code() {
        let values: [Expr; 16] = [
            parse_quote!(name),
            parse_quote!(&name),
            parse_quote!(self.name),
            parse_quote!(name.to_owned()),
            parse_quote!(String::from(name)),
            parse_quote!(format!("{{{user}}}:cart")),
            parse_quote!(lock_name!("{{id}}:a:{id}")),
            parse_quote!(name_of(user)),
            parse_quote!(name()),
            parse_quote!(settings::name()),
            parse_quote!(NAME.replace("{id}", id)),
            parse_quote!(env::var("NAME").unwrap()),
            parse_quote!(CONFIG.name),
            parse_quote!(NAMES.get("user")),
            parse_quote!(if id > 0 { NAME.into() } else { format!("{id}") }),
            parse_quote!({
                let name = NAME;
                name
            }),
        ];
        for value in values {
            assert!(!is_text_of_code(&value), "{}", quote::quote!(#value));
        }
    }
}
