//! Parameters that the body cannot simply rebind: those with `#[cfg]` or lints, a mutable `self`,
//! and those that options or other attributes also use.
#![deny(warnings)]

use lock_core::LockError;
use tracing::instrument;

use crate::support::{Tracked, pause};

struct Client {
    client: u8,
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:cfg")
)]
async fn left_out(a: Tracked, #[cfg(any())] b: Tracked, c: Tracked) -> Result<usize, LockError> {
    #[cfg(any())]
    {
        return Ok(b.length());
    }
    Ok(c.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:field")
)]
async fn left_out_field(
    a: u8,
    #[cfg(any())] client: &Client,
    #[cfg(any())] mut b: u8,
    #[cfg(all())] b: u8,
) -> Result<u8, LockError> {
    #[cfg(any())]
    {
        b += 1;
    }
    let made = Client { client: a };
    Ok(made.client + b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:lints")
)]
async fn allowed(#[allow(unused_mut)] mut a: u8, #[allow(unused)] b: u8) -> Result<u8, LockError> {
    let b = a;
    Ok(b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:expected")
)]
async fn expected(#[expect(unused_mut)] mut a: Tracked, b: Tracked) -> Result<usize, LockError> {
    Ok(b.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:deep")
)]
async fn behind_a_reference(&mut mut a: &mut u8, ref b: Tracked) -> Result<u8, LockError> {
    a += 1;
    pause().await;
    Ok(a + b.length() as u8)
}

struct Parts {
    a: u8,
    name: String,
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:instrumented")
)]
#[instrument(skip_all)]
async fn instrumented(mut parts: Parts, b: Tracked, mut pair: (u8, u8)) -> Result<u8, LockError> {
    parts.a = 1;
    parts.name = "new".to_owned();
    pair.0 = 2;
    Ok(parts.a + pair.0 + (parts.name.len() + b.length()) as u8)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "mentioned:contended", on_contended = |e| Err(e))
)]
async fn contended(
    mut parts: Parts,
    a: Tracked,
    mut b: Tracked,
    c: Tracked,
) -> Result<usize, LockError> {
    parts.name = "new".to_owned();
    let local = Tracked("local");
    let before = b.length();
    b = Tracked("other");
    pause().await;
    Ok(before + c.length() + b.length() + a.length() + local.length() + parts.name.len())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = format!("mentioned:{}", a.length()),
        on_error = { let length = a.length(); move |e| { let _ = length; Err(e) } },
    )
)]
async fn named_by_options(mut a: Tracked, mut b: Tracked) -> Result<usize, LockError> {
    let before = a.length() + b.length();
    a = Tracked("x");
    pause().await;
    b = Tracked("y");
    Ok(before + a.length() + b.length())
}

struct Transaction {
    done: bool,
    name: Tracked,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.done {
            self.name.0 = "rolled back";
        }
    }
}

impl Transaction {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "mentioned:commit")
    )]
    async fn commit(mut self, good: bool) -> Result<(), LockError> {
        if good {
            self.done = true;
        }
        Ok(())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "mentioned:replace")
    )]
    async fn replace(mut self, a: Tracked) -> Result<usize, LockError> {
        self = Transaction {
            done: false,
            name: a,
        };
        pause().await;
        Ok(self.name.length())
    }
}

/// An option moves the first parameter, and the body repeats its word.
#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = name))]
#[instrument(skip_all)]
async fn moved_by_an_option(
    #[cfg_attr(not(feature = "attribute"), expect(unused_variables))] name: String,
    parts: Parts,
    b: Tracked,
) -> Result<usize, LockError> {
    let name = parts.name;
    pause().await;
    Ok(name.len() + b.length())
}

pub(crate) async fn run() {
    show!(left_out(Tracked("a"), Tracked("c")));
    show!(left_out_field(1, 2));
    show!(allowed(1, 2));
    show!(expected(Tracked("a"), Tracked("b")));
    show!(behind_a_reference(&mut 1, Tracked("b")));
    let parts = || Parts {
        a: 3,
        name: "old".to_owned(),
    };
    show!(moved_by_an_option(
        "moved".to_owned(),
        parts(),
        Tracked("b")
    ));
    show!(instrumented(parts(), Tracked("b"), (4, 5)));
    show!(contended(parts(), Tracked("a"), Tracked("b"), Tracked("c")));
    show!(named_by_options(Tracked("a"), Tracked("b")));
    for good in [true, false] {
        let transaction = Transaction {
            done: false,
            name: Tracked("transaction"),
        };
        show!(commit => transaction.commit(good));
    }
    let transaction = Transaction {
        done: true,
        name: Tracked("transaction"),
    };
    show!(replace => transaction.replace(Tracked("other")));
}
