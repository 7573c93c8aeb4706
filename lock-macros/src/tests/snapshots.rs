//! Compares the expansions of three functions with `snapshots/*.txt`, which are also for reading.
//! After an intended change, `SNAPSHOTS=overwrite cargo test -p lock-macros` writes them again.

use std::path::Path;

use proc_macro2::TokenStream;
use quote::quote;

fn check(name: &str, expected: &str, args: TokenStream, item: TokenStream) {
    let expanded = crate::annotate(args, item);
    let file = syn::parse2(expanded).expect("the output is valid Rust");
    let text = prettyplease::unparse(&file);
    if std::env::var_os("SNAPSHOTS").is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots");
        std::fs::write(folder.join(name), text).expect("written");
        return;
    }
    assert_eq!(text, expected, "snapshots/{name}");
}

#[test]
fn snapshot_of_a_plain_function() {
    check(
        "plain.txt",
        include_str!("../../snapshots/plain.txt"),
        quote!(name = "order:{order_id}", ttl = "30s", wait = "5s"),
        quote! {
            /// Ships an order.
            pub async fn ship(order_id: u64) -> Result<String, LockError> {
                Ok(format!("shipped {order_id}"))
            }
        },
    );
}

#[test]
fn snapshot_of_many_options() {
    check(
        "options.txt",
        include_str!("../../snapshots/options.txt"),
        quote!(
            name = format!("cart:{}", user.id),
            hash_tag = "{user.id}",
            ttl = TTL,
            max_hold = "1h",
            on_contended = skip,
            on_error = |e| Some(e.code()),
            on_lost = continue,
            release = background,
            bind = held,
            manager = state.locks
        ),
        quote! {
            async fn empty(state: &State, user: User) -> Option<u16> {
                state.empty(user, held.fencing_token()).await
            }
        },
    );
}

#[test]
fn snapshot_of_a_method_under_async_trait() {
    check(
        "async_trait.txt",
        include_str!("../../snapshots/async_trait.txt"),
        quote!(name = "van:{self.id}", on_contended = |e| Err(e.into())),
        quote! {
            fn load<'life0, 'async_trait>(
                &'life0 self,
                items: Vec<Item>,
            ) -> ::core::pin::Pin<
                Box<dyn ::core::future::Future<Output = Result<usize, Failure>> + Send + 'async_trait>,
            >
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                Box::pin(async move {
                    let __self = self;
                    let items = items;
                    __self.load_all(items).await
                })
            }
        },
    );
}
