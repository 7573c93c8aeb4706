//! The second step: checks the options against each other and against the function.

mod function;
mod kind;
mod lock_name;
mod manifest;
mod names;
mod timing;

use proc_macro2::Span;

use crate::errors::Errors;
use crate::parse::args::Args;
use crate::parse::scope::Scope;

pub(crate) use self::function::function;
pub(crate) use self::lock_name::lock_name;

/// Checks the options of one attribute. `scope` holds the parameters of its function.
pub(crate) fn args(args: &Args, scope: &Scope, errors: &mut Errors) {
    names::names(args, scope, errors);
    timing::timing(&args.timing, scope, errors);
    kind::kind(&args.kind, &args.written, scope, errors);
    if let Some(bind) = &args.bind
        && scope.has_parameter(bind)
    {
        errors.on(
            bind,
            format!("`bind = {bind}` hides the parameter `{bind}`"),
        );
    }
    if args.krate.is_default()
        && let Some(error) = manifest::error()
    {
        errors.at(Span::call_site(), error);
    }
}

#[cfg(test)]
mod tests;
