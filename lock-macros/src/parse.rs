//! The first step: reads the options and the function. It reports what cannot be read; `check`
//! reports the rest.

pub(crate) mod args;
pub(crate) mod body;
pub(crate) mod duration;
mod duration_text;
pub(crate) mod function;
pub(crate) mod generics;
pub(crate) mod kind;
pub(crate) mod lock_name;
pub(crate) mod option_names;
pub(crate) mod output;
pub(crate) mod scope;
mod separator;
pub(crate) mod template;
pub(crate) mod text_of_code;
pub(crate) mod timing;
pub(crate) mod tokens;
pub(crate) mod uses;
pub(crate) mod values;
