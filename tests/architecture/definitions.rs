//! The modules of lock-core and of the crates whose items it re-exports: what they define, and what their names mean.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenTree;
use syn::{Attribute, Ident, Item, ItemImpl, UseTree, Visibility, parse_quote};

use super::tree::read;

#[derive(Default)]
pub(crate) struct Module {
    pub(crate) definitions: Vec<Definition>,
    imports: Vec<Import>,
    pub(crate) impls: Vec<ItemImpl>,
    /// The features that it needs.
    pub(crate) features: BTreeSet<String>,
}

pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) attrs: Vec<Attribute>,
    is_public: bool,
    pub(crate) item: Item,
}

struct Import {
    path: Vec<String>,
    name: String,
    attrs: Vec<Attribute>,
    is_public: bool,
}

/// A path under which users find an item.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) path: String,
    pub(crate) features: BTreeSet<String>,
}

impl Place {
    pub(crate) fn needing(&self, features: &BTreeSet<String>) -> Self {
        let path = self.path.clone();
        let features = &self.features | features;
        Self { path, features }
    }
}

#[derive(Default)]
pub(crate) struct Sources {
    /// By their paths, which begin with the crate.
    pub(crate) modules: BTreeMap<String, Module>,
    /// The public items, by the paths of their definitions; the shortest path for users comes first.
    pub(crate) places: BTreeMap<String, Vec<Place>>,
}

impl Sources {
    pub(crate) fn load() -> Self {
        let mut sources = Self::default();
        for package in ["lock-core", "lock-protocol", "lock-macros"] {
            let folder = format!("{package}/src");
            let items = parsed(&format!("{folder}/lib.rs"));
            sources.load_module(&package.replace('-', "_"), &folder, items, BTreeSet::new());
        }
        sources.publish("lock_core", "lock_core", &BTreeSet::new());
        for places in sources.places.values_mut() {
            places.sort_by_key(|place| (place.path.matches("::").count(), place.path.clone()));
        }
        sources
    }

    fn load_module(
        &mut self,
        path: &str,
        folder: &str,
        items: Vec<Item>,
        features: BTreeSet<String>,
    ) {
        let mut module = Module::default();
        for item in items.into_iter().flat_map(labels) {
            let (attrs, vis, name) = match &item {
                Item::Const(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Enum(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Fn(item) => (&item.attrs, &item.vis, &item.sig.ident),
                Item::Mod(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Struct(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Trait(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Type(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Macro(item) => match &item.ident {
                    Some(name) => (&item.attrs, &Visibility::Inherited, name),
                    None => continue,
                },
                Item::Impl(item) => {
                    module.impls.push(item.clone());
                    continue;
                }
                Item::Use(item) => {
                    module
                        .imports
                        .extend(used(&item.tree).into_iter().map(|(path, name)| Import {
                            path,
                            name,
                            attrs: item.attrs.clone(),
                            is_public: matches!(item.vis, Visibility::Public(_)),
                        }));
                    continue;
                }
                _ => continue,
            };
            if features_of(attrs).contains("test") {
                continue;
            }
            if let Item::Mod(inner) = &item {
                let below = format!("{folder}/{name}");
                let items = inner.content.clone().map(|(_, items)| items);
                let items = items.unwrap_or_else(|| parsed(&format!("{below}.rs")));
                let features = &features | &features_of(attrs);
                self.load_module(&format!("{path}::{name}"), &below, items, features);
            }
            module.definitions.push(Definition {
                // A derive has the name of its trait.
                name: derived(attrs).unwrap_or_else(|| name.to_string()),
                attrs: attrs.clone(),
                is_public: matches!(vis, Visibility::Public(_)) || has(attrs, "macro_export"),
                item,
            });
        }
        module.features = features;
        self.modules.insert(path.to_owned(), module);
    }

    /// Finds what users can name below `path`, where they find `module`.
    fn publish(&mut self, path: &str, module: &str, features: &BTreeSet<String>) {
        let found = &self.modules[module];
        let mut public = Vec::new();
        for item in &found.definitions {
            if item.is_public && !is_hidden(&item.attrs) {
                let definition = format!("{module}::{}", item.name);
                public.push((definition, item.name.clone(), features_of(&item.attrs)));
            }
        }
        for import in &found.imports {
            if import.is_public && !is_hidden(&import.attrs) {
                let definitions = self.definitions_of(module, &import.path);
                // Of another project, behind `*`, or declared by a macro: the list would miss it.
                assert!(
                    !definitions.is_empty(),
                    "{module}: `{}` is not found",
                    import.name
                );
                for definition in definitions {
                    public.push((definition, import.name.clone(), features_of(&import.attrs)));
                }
            }
        }
        for (definition, name, own) in public {
            let path = format!("{path}::{name}");
            let features = features | &own;
            if self.modules.contains_key(&definition) {
                self.publish(&path, &definition, &features);
            }
            let places = self.places.entry(definition).or_default();
            places.push(Place { path, features });
        }
    }

    /// The paths of the definitions that `path` means in `module`; none when it means an item of another project.
    pub(crate) fn definitions_of(&self, module: &str, path: &[String]) -> Vec<String> {
        let Some((last, before)) = path.split_last() else {
            return Vec::new();
        };
        let mut base = module.to_owned();
        for (at, step) in before.iter().enumerate() {
            let parts: Vec<_> = base.split("::").collect();
            base = match step.as_str() {
                "crate" => parts[0].to_owned(),
                "self" => continue,
                "super" => parts[..parts.len() - 1].join("::"),
                package if at == 0 && self.modules.contains_key(package) => step.clone(),
                _ => match self.definitions_of(&base, std::slice::from_ref(step)).pop() {
                    Some(inner) => inner,
                    None => return Vec::new(),
                },
            };
        }
        let Some(found) = self.modules.get(&base) else {
            return Vec::new();
        };
        let is_here = found.definitions.iter().any(|item| item.name == *last);
        let mut definitions = Vec::new();
        definitions.extend(is_here.then(|| format!("{base}::{last}")));
        for import in &found.imports {
            if import.name == *last && import.path.len() > 1 {
                definitions.extend(self.definitions_of(&base, &import.path));
            }
        }
        definitions
    }
}

fn parsed(file: &str) -> Vec<Item> {
    let file = syn::parse_file(&read(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    file.items
}

/// What the macro `labels!` of the telemetry declares; another item as it is.
fn labels(item: Item) -> Vec<Item> {
    let mut tokens = match &item {
        Item::Macro(call) if call.mac.path.is_ident("labels") => {
            call.mac.tokens.clone().into_iter()
        }
        _ => return vec![item],
    };
    let name = tokens.find(|token| matches!(token, TokenTree::Ident(_)));
    let variants = tokens.next();
    vec![
        parse_quote! {
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[non_exhaustive]
            pub enum #name #variants
        },
        parse_quote! { impl #name { pub const fn as_str(self) -> &'static str {} } },
        parse_quote! { impl Display for #name {} },
    ]
}

/// The paths that an import names, each with the name that it gives.
fn used(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let text = |name: &Ident| vec![name.to_string()];
    match tree {
        UseTree::Path(outer) => {
            let mut inner = used(&outer.tree);
            for (path, name) in &mut inner {
                path.insert(0, outer.ident.to_string());
                if name == "self" {
                    path.pop();
                    *name = outer.ident.to_string();
                }
            }
            inner
        }
        UseTree::Name(name) => vec![(text(&name.ident), name.ident.to_string())],
        UseTree::Rename(name) => vec![(text(&name.ident), name.rename.to_string())],
        UseTree::Group(group) => group.items.iter().flat_map(used).collect(),
        UseTree::Glob(_) => vec![(vec!["*".to_owned()], "*".to_owned())],
    }
}

/// The trait for which a function of lock-macros is the derive.
fn derived(attrs: &[Attribute]) -> Option<String> {
    let mut attrs = attrs.iter();
    let derive = attrs.find(|attr| attr.path().is_ident("proc_macro_derive"))?;
    let tokens = derive.meta.require_list().ok()?.tokens.clone();
    tokens.into_iter().next().map(|name| name.to_string())
}

pub(crate) fn has(attrs: &[Attribute], name: &str) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident(name))
}

pub(crate) fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let list = attr.meta.require_list();
        attr.path().is_ident("doc") && list.is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}

/// What `cfg` asks for, mostly features.
pub(crate) fn features_of(attrs: &[Attribute]) -> BTreeSet<String> {
    let cfgs = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    let lists = cfgs.filter_map(|attr| attr.meta.require_list().ok());
    lists
        .map(|list| {
            let text = list.tokens.to_string().replace("feature = ", "");
            text.replace(['"', ' '], "").replace(',', ", ")
        })
        .collect()
}
