//! The second step: checks the options against each other and against the function.

mod fields;
mod function;
mod kind;
mod lock_name;
mod manifest;
mod names;
mod timing;

use proc_macro2::Span;

use crate::errors::Errors;
use crate::parse::args::Args;
use crate::parse::duration::DurationValue;
use crate::parse::scope::Scope;
use crate::parse::values::OnContended;

pub(crate) use self::fields::fields;
pub(crate) use self::function::function;
pub(crate) use self::lock_name::lock_name;

/// Checks the options of one attribute. `scope` holds the parameters of its function.
pub(crate) fn args(args: &Args, scope: &Scope, errors: &mut Errors) {
    declaration(args, scope, errors);
    if args.lock.is_some() {
        of_a_declared_lock(args, errors);
    }
    if let Some(max_queue) = args.written.find("max_queue")
        && makes_one_attempt(args)
    {
        let message = "`max_queue` needs a `wait`: a call that makes one attempt never waits";
        errors.on(max_queue, message);
    }
    if let Some(bind) = &args.bind
        && scope.has_parameter(bind)
    {
        errors.on(
            bind,
            format!("`bind = {bind}` hides the parameter `{bind}`"),
        );
    }
}

/// Checks the options of one declared lock. `scope` holds the fields of its type.
pub(crate) fn declaration(args: &Args, scope: &Scope, errors: &mut Errors) {
    names::names(args, scope, errors);
    timing::timing(&args.timing, scope, errors);
    kind::kind(&args.kind, &args.written, scope, errors);
    if args.krate.is_default()
        && let Some(error) = manifest::error()
    {
        errors.at(Span::call_site(), error);
    }
}

/// Returns whether a call never waits, as far as its attribute shows.
fn makes_one_attempt(args: &Args) -> bool {
    match &args.timing.wait {
        Some(wait) => matches!(&wait.value, DurationValue::Literal(wait) if wait.value.is_zero()),
        // A declared lock may have a wait of its own.
        None => matches!(args.on_contended, OnContended::Skip(_)) && args.lock.is_none(),
    }
}

/// Checks that a function says nothing that its lock declares.
fn of_a_declared_lock(args: &Args, errors: &mut Errors) {
    if let Some(name) = args.written.find("name") {
        errors.on(name, "`lock` cannot be combined with `name`");
    }
    let declared = ["ttl", "permits", "weight", "hash_tag"];
    for option in declared
        .iter()
        .filter_map(|option| args.written.find(option))
    {
        errors.on(
            option,
            format!("`{option}` is declared with the lock; write it in its `#[lock(...)]`"),
        );
    }
}

#[cfg(test)]
mod tests;
