//! The public interface of lock-core is a file, so that the diff of a commit shows each change of it.
//!
//! The list is read from the sources: the public modules, what they define or re-export, and the impl blocks for it in
//! lock-core and lock-protocol. Items with `#[doc(hidden)]` are left out.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Field, GenericArgument, GenericParam, Generics, ImplItem, Item, ItemImpl,
    PathArguments, Token, TraitItem, Type, Visibility,
};

use super::definitions::{Definition, Module, Place, Sources, features_of, has, is_hidden};
use super::tree::{read, root};

const FILE: &str = "lock-core/public-items.txt";
const COMMAND: &str = "SNAPSHOTS=overwrite cargo test -p tests --test architecture public_items";
const MOST_NAMES_AT_THE_ROOT: usize = 20;

#[test]
fn public_items_are_those_of_the_file() {
    let sources = Sources::load();
    let modules = &sources.modules;
    let items = sources
        .places
        .iter()
        .filter(|(path, _)| !modules.contains_key(*path));
    let paths = items
        .flat_map(|(_, places)| places)
        .map(|place| &place.path);
    let at_the_root: BTreeSet<_> = paths
        .filter(|path| path.matches("::").count() == 1)
        .collect();
    assert!(
        at_the_root.len() <= MOST_NAMES_AT_THE_ROOT,
        "too many names: {at_the_root:#?}"
    );

    let text = format!(
        "# What a program can name of lock-core with all features, as tests/architecture/public_items.rs reads it from the\n\
         # sources: types as written there, needed features in brackets, and no impls by macros other than derives.\n\
         # To rewrite it: {COMMAND}\n\n{}\n",
        public_items(&sources).join("\n")
    );
    if std::env::var_os("SNAPSHOTS").is_some() {
        std::fs::write(root().join(FILE), text).expect("the folder is there");
        return;
    }
    let recorded = read(FILE);
    let old: BTreeSet<_> = recorded.lines().collect();
    let new: BTreeSet<_> = text.lines().collect();
    let removed = old.difference(&new).map(|line| format!("- {line}\n"));
    let added = new.difference(&old).map(|line| format!("+ {line}\n"));
    let diff: String = removed.chain(added).collect();
    assert!(
        text == recorded,
        "a change of the public interface:\n\n{diff}\nIf it is intended, rewrite {FILE} and say it in CHANGELOG.md:\n\n\
         {COMMAND}\n"
    );
}

fn public_items(sources: &Sources) -> Vec<String> {
    let lines = BTreeSet::new();
    let mut list = List { sources, lines };
    for (definition, places) in &sources.places {
        let (module, name) = definition.rsplit_once("::").expect("a path has a crate");
        let module = &sources.modules[module];
        for item in module.definitions.iter().filter(|item| item.name == name) {
            let features = &module.features | &features_of(&item.attrs);
            list.add_item(&places[0].needing(&features), item);
        }
        for place in &places[1..] {
            list.add(
                place,
                "",
                &[],
                &format!("use {} = {}", place.path, places[0].path),
            );
        }
    }
    for (path, module) in &sources.modules {
        for item in module.impls.iter().filter(|item| !is_hidden(&item.attrs)) {
            list.add_impl(path, module, item);
        }
    }
    list.lines.into_iter().map(|(_, line)| line).collect()
}

struct List<'a> {
    sources: &'a Sources,
    /// Each behind the text by which it is sorted.
    lines: BTreeSet<(String, String)>,
}

impl List<'_> {
    /// Adds a line about a part of an item. `""` is the item itself, and `" "` comes before all parts with a name.
    fn add(&mut self, place: &Place, part: &str, attrs: &[Attribute], line: &str) {
        let features = &place.features | &features_of(attrs);
        if is_hidden(attrs) || features.contains("test") {
            return;
        }
        let features: Vec<_> = features.iter().map(String::as_str).collect();
        let line = match features[..] {
            [] => line.to_owned(),
            _ => format!("{line}  [{}]", features.join(", ")),
        };
        self.lines.insert((format!("{}{part}", place.path), line));
    }

    fn add_item(&mut self, place: &Place, definition: &Definition) {
        let path = &place.path;
        let attrs = &definition.attrs;
        match &definition.item {
            Item::Struct(item) => {
                self.add_derives(place, attrs, &item.generics, item.fields.iter());
                for (at, field) in item.fields.iter().enumerate() {
                    if is_public(&field.vis) {
                        let name = field.ident.as_ref().map_or(at.to_string(), text);
                        let line = format!("field {path}::{name}: {}", text(&field.ty));
                        self.add(place, &format!("::{name}"), &field.attrs, &line);
                    }
                }
            }
            Item::Enum(item) => {
                let fields = item.variants.iter().flat_map(|variant| &variant.fields);
                self.add_derives(place, attrs, &item.generics, fields);
                for variant in &item.variants {
                    let mut shown = variant.clone();
                    (shown.attrs, shown.discriminant) = (Vec::new(), None);
                    shown
                        .fields
                        .iter_mut()
                        .for_each(|field| field.attrs.clear());
                    let mark = non_exhaustive(&variant.attrs);
                    let line = format!("{mark}variant {path}::{}", text(&shown));
                    self.add(
                        place,
                        &format!("::{}", variant.ident),
                        &variant.attrs,
                        &line,
                    );
                }
            }
            Item::Trait(item) => {
                for item in &item.items {
                    let (name, attrs) = match item {
                        TraitItem::Fn(item) => (&item.sig.ident, &item.attrs),
                        TraitItem::Type(item) => (&item.ident, &item.attrs),
                        _ => panic!("{path} has an item that this list does not show"),
                    };
                    let line = head(item, name, &format!("{path}::{name}"));
                    self.add(place, &format!("::{name}"), attrs, &line);
                }
            }
            _ => {}
        }
        let line = match &definition.item {
            Item::Macro(_) => format!("macro {path}!"),
            Item::Fn(_) if has(attrs, "proc_macro_attribute") => format!("attribute {path}"),
            Item::Fn(_) if has(attrs, "proc_macro_derive") => format!("derive {path}"),
            item => non_exhaustive(attrs).to_owned() + &head(item, &definition.name, path),
        };
        // The attributes of the item are in `place` already.
        self.add(place, "", &[], &line);
    }

    fn add_derives<'a>(
        &mut self,
        place: &Place,
        attrs: &[Attribute],
        generics: &Generics,
        fields: impl Iterator<Item = &'a Field>,
    ) {
        let mut traits = Vec::new();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("derive")) {
            let paths = attr.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated);
            let paths = paths.expect("a derive lists traits");
            traits.extend(
                paths
                    .iter()
                    .filter_map(|path| path.segments.last())
                    .map(text),
            );
        }
        if traits.iter().any(|name| name == "Error") {
            // What `thiserror` writes besides.
            traits.push("Display".to_owned());
            let sources = fields.filter(|field| has(&field.attrs, "from"));
            traits.extend(sources.map(|field| format!("From<{}>", text(&field.ty))));
        }
        let (_, arguments, _) = generics.split_for_impl();
        for name in traits {
            let line = format!("impl {name} for {}{}", place.path, text(&arguments));
            self.add(place, " ", &[], &line);
        }
    }

    fn add_impl(&mut self, path: &str, module: &Module, item: &ItemImpl) {
        let features = &module.features | &features_of(&item.attrs);
        let own = type_path(&item.self_ty);
        let place = own.and_then(|own| self.place(path, own, &features));
        let arguments = own
            .and_then(|own| own.segments.last())
            .map(|last| text(&last.arguments));
        let owner = match (&place, arguments) {
            (Some(place), Some(arguments)) => format!("{}{arguments}", place.path),
            _ => text(&item.self_ty),
        };
        let bounds = bounds(&item.generics);
        if let Some((of, _)) = &item.trait_ {
            // An impl for a foreign type is listed at a type of ours that the trait names, or at our trait.
            let mut named: Vec<_> = own.into_iter().collect();
            let last = of.segments.last().expect("a path has a name");
            if let PathArguments::AngleBracketed(arguments) = &last.arguments {
                named.extend(arguments.args.iter().filter_map(|argument| match argument {
                    GenericArgument::Type(ty) => type_path(ty),
                    _ => None,
                }));
            }
            named.push(of);
            if named.iter().any(|named| self.is_private(path, named)) {
                return;
            }
            let reference = if matches!(*item.self_ty, Type::Reference(_)) {
                "&"
            } else {
                ""
            };
            let owner = format!("{reference}{}", owner.trim_start_matches('&'));
            let line = format!("impl {} for {owner}{bounds}", text(last));
            let place = named
                .iter()
                .find_map(|named| self.place(path, named, &features));
            if let Some(place) = place {
                self.add(&place, " ", &[], &line);
            }
        } else if let Some(place) = place {
            for item in &item.items {
                let (name, vis, attrs) = match item {
                    ImplItem::Fn(item) => (&item.sig.ident, &item.vis, &item.attrs),
                    ImplItem::Const(item) => (&item.ident, &item.vis, &item.attrs),
                    _ => continue,
                };
                if is_public(vis) {
                    let line = head(item, name, &format!("{owner}::{name}"));
                    let separator = if line.contains(" where ") {
                        ", "
                    } else {
                        " where "
                    };
                    let line = line + &bounds.replacen(" where ", separator, 1);
                    self.add(&place, &format!("::{name}"), attrs, &line);
                }
            }
        }
    }

    /// Where users find what `path` names in `module`, with more features that it needs.
    fn place(&self, module: &str, path: &syn::Path, features: &BTreeSet<String>) -> Option<Place> {
        let definitions = self.definitions_of(module, path);
        let mut places = definitions
            .iter()
            .filter_map(|found| self.sources.places.get(found));
        Some(places.next()?.first()?.needing(features))
    }

    /// Whether the path names an item of this project that users cannot name.
    fn is_private(&self, module: &str, path: &syn::Path) -> bool {
        let definitions = self.definitions_of(module, path);
        let is_public = |definition: &String| self.sources.places.contains_key(definition);
        !definitions.is_empty() && !definitions.iter().any(is_public)
    }

    fn definitions_of(&self, module: &str, path: &syn::Path) -> Vec<String> {
        let steps: Vec<_> = path
            .segments
            .iter()
            .map(|step| step.ident.to_string())
            .collect();
        self.sources.definitions_of(module, &steps)
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn non_exhaustive(attrs: &[Attribute]) -> &'static str {
    if has(attrs, "non_exhaustive") {
        "non_exhaustive "
    } else {
        ""
    }
}

fn type_path(ty: &Type) -> Option<&syn::Path> {
    match ty {
        Type::Path(ty) => Some(&ty.path),
        Type::Reference(ty) => type_path(&ty.elem),
        _ => None,
    }
}

/// The bounds of an impl block, as a `where` clause.
fn bounds(generics: &Generics) -> String {
    let mut bounds = Vec::new();
    for parameter in &generics.params {
        if let GenericParam::Type(ty) = parameter
            && !ty.bounds.is_empty()
        {
            bounds.push(format!("{}: {}", ty.ident, text(&ty.bounds)));
        }
    }
    let clause = generics.where_clause.iter();
    bounds.extend(clause.flat_map(|clause| &clause.predicates).map(text));
    if bounds.is_empty() {
        String::new()
    } else {
        format!(" where {}", bounds.join(", "))
    }
}

/// What stands before the body, the fields or the value of an item, with `path` instead of its name.
fn head(item: &impl ToTokens, name: &impl ToString, path: &str) -> String {
    let name = name.to_string();
    let mut tokens = item.to_token_stream().into_iter();
    let (mut line, mut rest) = (TokenStream::new(), TokenStream::new());
    let mut is_named = false;
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => drop(tokens.next()),
            TokenTree::Punct(punct) if punct.as_char() == ';' => break,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            TokenTree::Ident(word) if word == "pub" => {}
            TokenTree::Ident(word) if !is_named && *word == name => is_named = true,
            _ if is_named => rest.extend([token]),
            _ => line.extend([token]),
        }
    }
    let (line, mut rest) = (text(&line), text(&rest));
    match line.as_str() {
        "const" => rest.truncate(rest.find(" = ").unwrap_or(rest.len())),
        "struct" => rest.truncate(rest.find('(').unwrap_or(rest.len())),
        _ => {}
    }
    format!("{line} {path}{rest}")
}

/// Code in one line, with the usual spaces.
fn text(code: &impl ToTokens) -> String {
    let mut text = String::new();
    add_text(code.to_token_stream(), &mut text);
    text.trim_end_matches([',', ' ']).to_owned()
}

fn add_text(tokens: TokenStream, text: &mut String) {
    for token in tokens {
        let is_behind_word = text.ends_with(|c: char| c.is_alphanumeric() || "_>)]".contains(c));
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket if text.ends_with(char::is_alphanumeric) => (" [", "]"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace if group.stream().is_empty() => (" {", "}"),
                    Delimiter::Brace => (" { ", " }"),
                    Delimiter::None => ("", ""),
                };
                *text += open;
                add_text(group.stream(), text);
                text.truncate(text.strip_suffix(", ").map_or(text.len(), str::len));
                *text += close;
            }
            TokenTree::Punct(punct) => {
                let (before, after) = match (punct.as_char(), punct.spacing()) {
                    ('+' | '=', _) => (" ", " "),
                    ('-', _) => (" ", ""),
                    ('&' | '\'', _) if is_behind_word && !text.ends_with(')') => (" ", ""),
                    ('>', _) if text.ends_with('-') => ("", " "),
                    (':', Spacing::Alone) if !text.ends_with(':') => ("", " "),
                    (',' | ';', _) => ("", " "),
                    _ => ("", ""),
                };
                text.extend([before, &punct.to_string(), after]);
            }
            // Whether a parameter may be changed inside is not the caller's business.
            TokenTree::Ident(word) if word == "mut" && text.ends_with(['(', ' ']) => {}
            word => {
                *text += if is_behind_word { " " } else { "" };
                *text += &word.to_string();
            }
        }
    }
}
