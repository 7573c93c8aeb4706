//! Checks the input of `lock_name!`.

use syn::Expr;

use crate::check::names;
use crate::errors::Errors;
use crate::parse::lock_name::LockNameInput;

/// Checks the form of the name, and that each `{}` has one expression.
pub(crate) fn lock_name(input: &LockNameInput, errors: &mut Errors) {
    if !names::form(&input.template, errors) {
        return;
    }
    let is_named = |value: &&Expr| matches!(value, Expr::Assign(_));
    for named in input.expressions.iter().filter(is_named) {
        let message = "named expressions are not supported; write `{}`, which takes the next one";
        errors.on(named, message);
    }
    let (expected, given) = (input.template.expressions(), input.expressions.len());
    if expected != given && errors.is_empty() {
        let expressions = if given == 1 {
            "expression follows"
        } else {
            "expressions follow"
        };
        let message = format!("the template has {expected} `{{}}`, but {given} {expressions} it");
        errors.at(input.template.span, message);
    }
}
