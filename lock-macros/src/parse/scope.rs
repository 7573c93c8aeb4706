//! The parameters of the function: the names that a placeholder may begin with.

use proc_macro2::{Ident, Literal, Span, TokenTree};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Fields, FnArg, GenericParam, Pat, PatSlice, PatTuple, PatTupleStruct, Signature,
    Token, Type,
};

use crate::errors::list;
use crate::nearest::nearest;
use crate::parse::tokens::peel_type;

/// The variables that the patterns of a function bind, and `self`.
pub(crate) struct Scope {
    receiver: Option<TokenTree>,
    parameters: Vec<Parameter>,
    /// The parameters whose type is generic, or a reference to a generic type.
    generic: Vec<String>,
    /// The const parameters of the function.
    constants: Vec<Ident>,
    /// Whether the function is a test.
    is_test: bool,
    /// The fields of a struct, in place of parameters: their names, or their numbers.
    fields: Option<Vec<TokenTree>>,
}

/// A variable that a pattern binds.
pub(crate) struct Parameter {
    pub(crate) name: Ident,
    pub(crate) mutability: Option<Token![mut]>,
    /// The attributes that also apply to its uses in the body: `#[cfg]` and lint levels.
    pub(crate) attributes: Vec<Attribute>,
    /// Whether its type is a reference. Its drop has no effect, and a closure captures it whole.
    pub(crate) is_reference: bool,
}

impl Parameter {
    /// Returns whether it has `#[expect]`, which only one place may fulfil.
    pub(crate) fn expects_a_lint(&self) -> bool {
        self.attributes
            .iter()
            .any(|it| it.path().is_ident("expect"))
    }
}

impl Scope {
    pub(crate) fn new(signature: &Signature, is_test: bool) -> Self {
        let (mut parameters, mut generic) = (Vec::new(), Vec::new());
        for argument in &signature.inputs {
            if let FnArg::Typed(argument) = argument {
                let first = parameters.len();
                bindings(&argument.pat, &argument.attrs, &mut parameters);
                let is_reference =
                    matches!(&*argument.pat, Pat::Ident(_)) && is_reference(&argument.ty);
                if let Pat::Ident(binding) = &*argument.pat
                    && is_generic(&argument.ty, signature)
                {
                    generic.push(binding.ident.unraw().to_string());
                }
                for parameter in &mut parameters[first..] {
                    parameter.is_reference = is_reference;
                }
            }
        }
        let receiver = signature.receiver().map(|receiver| {
            let token = receiver.self_token;
            TokenTree::Ident(Ident::new("self", token.span))
        });
        let constants = signature.generics.params.iter();
        let constants = constants.filter_map(|parameter| match parameter {
            GenericParam::Const(parameter) => Some(parameter.ident.clone()),
            GenericParam::Lifetime(_) | GenericParam::Type(_) => None,
        });
        Self {
            receiver,
            parameters,
            generic,
            constants: constants.collect(),
            is_test,
            fields: None,
        }
    }

    /// Takes the fields of a struct as parameters.
    pub(crate) fn of_fields(fields: &Fields) -> Self {
        let fields = fields.iter().enumerate().map(|(number, field)| {
            let index = || {
                let mut index = Literal::usize_unsuffixed(number);
                index.set_span(field.span());
                TokenTree::Literal(index)
            };
            let name = field.ident.clone().map(TokenTree::Ident);
            name.unwrap_or_else(index)
        });
        Self {
            receiver: Some(Ident::new("self", Span::call_site()).into()),
            parameters: Vec::new(),
            generic: Vec::new(),
            constants: Vec::new(),
            is_test: false,
            fields: Some(fields.collect()),
        }
    }

    /// Returns whether the scope is that of a struct.
    pub(crate) fn is_struct(&self) -> bool {
        self.fields.is_some()
    }

    /// Returns all parameters except `self`, in the order of their declaration.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns `self` and all parameters, in the order of their declaration.
    pub(crate) fn all(&self) -> impl Iterator<Item = TokenTree> {
        let parameters = self.parameters.iter();
        let parameters = parameters.map(|known| TokenTree::Ident(known.name.clone()));
        let fields = self.fields.iter().flatten().cloned();
        self.receiver
            .clone()
            .into_iter()
            .chain(parameters)
            .chain(fields)
    }

    /// Returns the names of `self` and all parameters, without `r#`.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.all().map(|known| unraw(&known))
    }

    /// Returns whether a constant has this name: a const parameter, or a name in capitals.
    pub(crate) fn is_constant(&self, name: &str) -> bool {
        let in_capitals = name.contains(char::is_uppercase) && !name.contains(char::is_lowercase);
        in_capitals || self.constants.iter().any(|known| known.unraw() == name)
    }

    /// Returns the token of `self` or of the parameter `name`, which is without `r#`.
    pub(crate) fn find(&self, name: &str) -> Option<TokenTree> {
        if name == "self" {
            return self.receiver.clone();
        }
        if let Some(fields) = &self.fields {
            let mut fields = fields.iter();
            return fields.find(|field| unraw(field) == name).cloned();
        }
        let mut parameters = self.parameters.iter();
        let found = parameters.find(|known| known.name.unraw() == name);
        found.map(|known| TokenTree::Ident(known.name.clone()))
    }

    /// Returns whether the type of a parameter is generic.
    pub(crate) fn is_generic(&self, name: &str) -> bool {
        self.generic.iter().any(|known| known == name)
    }

    pub(crate) fn has_parameter(&self, ident: &Ident) -> bool {
        self.parameters
            .iter()
            .any(|known| known.name.unraw() == ident.unraw())
    }

    /// Returns the error for a name that `find` does not know.
    pub(crate) fn unknown(&self, name: &str) -> String {
        if let Some(fields) = &self.fields {
            return unknown_field(name, fields);
        }
        if name == "self" {
            return match self.names().next() {
                Some(first) => {
                    format!("function has no `self`; name a parameter, such as `{{{first}}}`")
                }
                None => "function has no `self`; add `&self`, or name a parameter".into(),
            };
        }
        // `#[async_trait]` moves patterns into the body.
        let replaced = |known: &Parameter| known.name.to_string().starts_with("__arg");
        if self.parameters.iter().any(replaced) {
            return "under `#[async_trait]` name a whole parameter, not a pattern".into();
        }
        let known: Vec<String> = self.names().collect();
        let known = known.iter().map(String::as_str);
        if let Some(meant) = nearest(name, known.clone()) {
            return format!("no parameter named `{name}`; did you mean `{meant}`?");
        }
        let all = list(known);
        if all.is_empty() {
            // `#[rstest]` copies its attributes to each case, which is a test without parameters.
            let order = if self.is_test {
                "; put the attribute above `#[rstest]`"
            } else {
                ""
            };
            return format!("no parameter named `{name}`; the function has none{order}");
        }
        let field = if self.receiver.is_some() {
            format!("; for a field write `{{self.{name}}}`")
        } else {
            String::new()
        };
        format!("no parameter named `{name}`; parameters: {all}{field}")
    }

    #[cfg(test)]
    pub(crate) fn sample(names: &[&str], method: bool) -> Self {
        let receiver = method.then(|| Ident::new("self", proc_macro2::Span::call_site()).into());
        let parameters = names.iter().filter_map(|name| {
            Some(Parameter {
                name: syn::parse_str(name).ok()?,
                mutability: None,
                attributes: Vec::new(),
                is_reference: false,
            })
        });
        let parameters = parameters.collect();
        Self {
            receiver,
            parameters,
            generic: Vec::new(),
            constants: Vec::new(),
            is_test: false,
            fields: None,
        }
    }
}

fn is_generic(written: &Type, signature: &Signature) -> bool {
    match peel_type(written) {
        Type::Reference(inner) => is_generic(&inner.elem, signature),
        Type::ImplTrait(_) => true,
        Type::Path(path) => path.path.get_ident().is_some_and(|name| {
            signature
                .generics
                .type_params()
                .any(|known| known.ident == *name)
        }),
        _ => false,
    }
}

fn is_reference(written: &Type) -> bool {
    matches!(peel_type(written), Type::Reference(_))
}

/// Adds the variables that a pattern binds. `attributes` are those of the patterns around it.
fn bindings(pattern: &Pat, attributes: &[Attribute], found: &mut Vec<Parameter>) {
    match pattern {
        Pat::Ident(binding) => {
            let holds = |it: &&Attribute| {
                ["cfg", "allow", "expect", "warn", "deny", "forbid"]
                    .iter()
                    .any(|known| it.path().is_ident(known))
            };
            found.push(Parameter {
                name: binding.ident.clone(),
                mutability: binding.mutability.filter(|_| binding.by_ref.is_none()),
                attributes: attributes.iter().filter(holds).cloned().collect(),
                is_reference: false,
            });
            if let Some((_, inner)) = &binding.subpat {
                bindings(inner, attributes, found);
            }
        }
        Pat::Paren(inner) => bindings(&inner.pat, attributes, found),
        Pat::Reference(inner) => bindings(&inner.pat, attributes, found),
        Pat::Type(inner) => bindings(&inner.pat, attributes, found),
        Pat::Slice(PatSlice { elems, .. })
        | Pat::Tuple(PatTuple { elems, .. })
        | Pat::TupleStruct(PatTupleStruct { elems, .. }) => {
            for pattern in elems {
                bindings(pattern, attributes, found);
            }
        }
        Pat::Struct(inner) => {
            for field in &inner.fields {
                let attributes = [attributes, &field.attrs].concat();
                bindings(&field.pat, &attributes, found);
            }
        }
        // Every case binds the same names.
        Pat::Or(inner) => {
            inner
                .cases
                .iter()
                .take(1)
                .for_each(|pat| bindings(pat, attributes, found));
        }
        _ => {}
    }
}

/// Returns the text of a name without its `r#`, or of a number.
fn unraw(token: &TokenTree) -> String {
    match token {
        TokenTree::Ident(name) => name.unraw().to_string(),
        other => other.to_string(),
    }
}

fn unknown_field(name: &str, fields: &[TokenTree]) -> String {
    let known: Vec<String> = fields.iter().map(unraw).collect();
    let known = known.iter().map(String::as_str);
    if let Some(meant) = nearest(name, known.clone()) {
        return format!("no field named `{name}`; did you mean `{meant}`?");
    }
    match list(known) {
        all if all.is_empty() => format!("no field named `{name}`; the struct has none"),
        all => format!("no field named `{name}`; fields: {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::TokenStream;
    use quote::quote;

    fn read(item: TokenStream) -> Scope {
        let function: syn::ItemFn = syn::parse2(item).expect("a function");
        Scope::new(&function.sig, false)
    }

    #[test]
    fn every_binding_of_a_pattern_is_found() {
        let scope = read(quote! {
            async fn f(
                &self,
                mut a: u8,
                (b, _): (u8, u8),
                S { c, d: (e, .., f), .. }: S,
                &g: &u8,
                h @ [i, j @ .., _]: [u8; 3],
                T(ref k, ref mut l): T,
                r#type: u8,
                (m): u8,
                _: u8,
            ) {}
        });
        for name in [
            "self", "a", "b", "c", "e", "f", "g", "h", "i", "j", "k", "l", "type", "m",
        ] {
            assert!(scope.find(name).is_some(), "{name}");
        }
        for name in ["d", "S", "_", "x"] {
            assert!(scope.find(name).is_none(), "{name}");
        }
        let raw = scope.find("type").map(|token| token.to_string());
        assert_eq!(raw.as_deref(), Some("r#type"));
    }

    #[test]
    fn unknown_name_is_explained() {
        let scope = read(quote!(
            async fn f(&self, order_id: u8, r#type: u8) {}
        ));
        assert_eq!(
            scope.unknown("ordr_id"),
            "no parameter named `ordr_id`; did you mean `order_id`?"
        );
        assert_eq!(
            scope.unknown("customer"),
            "no parameter named `customer`; parameters: `self`, `order_id`, `type`; for a field write \
             `{self.customer}`"
        );
        let scope = read(quote!(
            async fn f() {}
        ));
        assert_eq!(
            scope.unknown("x"),
            "no parameter named `x`; the function has none"
        );
        assert_eq!(
            scope.unknown("self"),
            "function has no `self`; add `&self`, or name a parameter"
        );
        assert_eq!(
            Scope::sample(&["a"], true).unknown("x"),
            "no parameter named `x`; parameters: `self`, `a`; for a field write `{self.x}`"
        );
    }

    #[test]
    fn self_is_found_in_all_forms() {
        for receiver in [
            quote!(self),
            quote!(mut self),
            quote!(&self),
            quote!(&'a mut self),
            quote!(self: Arc<Self>),
            quote!(self: Pin<&mut Self>),
        ] {
            let scope = read(quote!(async fn f(#receiver) {}));
            assert!(scope.find("self").is_some(), "{receiver}");
        }
    }

    #[test]
    fn pattern_under_async_trait_is_explained() {
        let scope = read(quote!(
            fn f(&self, __arg1: (u8, u8), id: u8) {}
        ));
        assert_eq!(
            scope.unknown("left"),
            "under `#[async_trait]` name a whole parameter, not a pattern"
        );
        assert!(scope.find("id").is_some());
    }
}
