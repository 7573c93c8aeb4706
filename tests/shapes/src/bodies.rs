//! The forms of a body, and its end.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::{Tracked, log, pause};

/// A value that lives as long as a temporary.
struct Temporary(Tracked);

fn temporary(name: &'static str) -> Temporary {
    Temporary(Tracked(name))
}

impl Temporary {
    fn length(&self, other: &Tracked) -> usize {
        log("length");
        self.0.length() + other.length()
    }

    fn option(&self) -> Option<usize> {
        Some(self.0.length())
    }

    async fn later(&self) -> usize {
        pause().await;
        self.0.length()
    }
}

#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "bodies:one_line"))]
#[rustfmt::skip]
async fn one_line() -> Result<u8, LockError> { Ok(1) }

#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "bodies:one_name"))]
#[rustfmt::skip]
async fn one_name(x: Result<u8, LockError>) -> Result<u8, LockError> { x }

#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "bodies:one_call"))]
#[rustfmt::skip]
async fn one_call(a: Tracked) -> Result<u8, LockError> { one_line_of(a).await }

async fn one_line_of(a: Tracked) -> Result<u8, LockError> {
    log("callee");
    drop(a);
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_temporary")
)]
async fn tail_temporary() -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(temporary("tail").length(&local))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_temporary_and_arguments")
)]
async fn tail_temporary_and_arguments(a: Tracked, _b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(temporary("tail").length(&local) + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_temporary_only")
)]
async fn tail_temporary_only(a: Tracked) -> Result<usize, LockError> {
    Ok(temporary("tail").length(&a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_awaited")
)]
async fn tail_awaited(a: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(temporary("tail").later().await + local.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_match")
)]
async fn tail_match(a: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    match temporary("scrutinee").option() {
        Some(length) => Ok(length + local.length() + a.length()),
        None => Ok(0),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_if_let")
)]
async fn tail_if_let(a: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    if let Some(length) = temporary("scrutinee").option() {
        log("then");
        Ok(length + local.length() + a.length())
    } else {
        log("else");
        Ok(0)
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_block")
)]
async fn tail_block() -> Result<usize, LockError> {
    let local = Tracked("local");
    {
        let inner = Tracked("inner");
        Ok(temporary("tail").length(&inner) + local.length())
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_question")
)]
async fn tail_question() -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(temporary("tail").option().ok_or(LockError::NotConfigured)? + local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:tail_macro")
)]
async fn tail_macro() -> Result<String, LockError> {
    let local = Tracked("local");
    Ok(format!("{}", temporary("tail").length(&local)))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:no_tail")
)]
async fn no_tail() -> Result<usize, LockError> {
    let local = Tracked("local");
    let length = temporary("statement").length(&local);
    return Ok(length);
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:unit_tail", on_error = |e| crate::support::refused(e))
)]
async fn unit_tail(a: Tracked) {
    let local = Tracked("local");
    assert_ne!(temporary("tail").length(&local), 0);
    log(a.0)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:only_match")
)]
async fn only_match(a: Option<u8>) -> Result<u8, LockError> {
    match a {
        Some(a) if a > 1 => Ok(a),
        Some(_) => Err(LockError::NotConfigured),
        None => Ok(0),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:only_if")
)]
async fn only_if(a: bool) -> Result<u8, LockError> {
    if a { Ok(1) } else { Ok(2) }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:only_loop")
)]
async fn only_loop(mut a: u8) -> Result<u8, LockError> {
    loop {
        a += 1;
        if a > 5 {
            break Ok(a);
        }
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:only_unsafe")
)]
async fn only_unsafe(a: &u8) -> Result<u8, LockError> {
    unsafe { Ok(std::ptr::read(a)) }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:unsafe_function")
)]
async unsafe fn unsafe_function(a: *const u8) -> Result<u8, LockError> {
    Ok(unsafe { *a })
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:labeled_block")
)]
async fn labeled_block(a: u8) -> Result<u8, LockError> {
    'out: {
        if a == 1 {
            break 'out Ok(7);
        }
        Ok(a)
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:labels")
)]
async fn labels() -> Result<u8, LockError> {
    let mut count = 0;
    'held: loop {
        'body: loop {
            count += 1;
            if count < 3 {
                continue 'held;
            }
            break 'body;
        }
        break 'held;
    }
    Ok(count)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:async_block")
)]
async fn async_block(a: Tracked) -> Result<usize, LockError> {
    async move { Ok(a.length()) }.await
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:block_in_braces")
)]
#[allow(unused_braces)]
async fn block_in_braces() -> Result<u8, LockError> {
    { Ok(1) }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:items")
)]
async fn items(a: Tracked) -> Result<usize, LockError> {
    use std::collections::BTreeMap as Map;

    const SIZE: usize = 2;
    static BASE: usize = 3;

    struct Local {
        size: usize,
    }

    impl Local {
        fn size(&self) -> usize {
            self.size * 2
        }
    }

    fn helper(size: usize) -> usize {
        size + BASE
    }

    let mut map = Map::new();
    map.insert(SIZE, Local { size: helper(SIZE) }.size());
    Ok(map[&2] + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:macro_first")
)]
async fn macro_first(a: u8) -> Result<u8, LockError> {
    macro_rules! add {
        ($a:expr) => {
            $a + 1
        };
    }
    Ok(add!(a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:item_last")
)]
async fn item_last(a: u8) -> Result<u8, LockError> {
    return Ok(helper(a));

    fn helper(a: u8) -> u8 {
        a + 1
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:inner_attribute")
)]
async fn inner_attribute(a: u8) -> Result<u8, LockError> {
    #![allow(unused_variables, unused_mut)]
    let mut unused = 1;
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:inner_attributes")
)]
async fn inner_attributes(a: u8, b: Tracked) -> Result<u8, LockError> {
    #![allow(unused_variables)]
    #![allow(unused_assignments)]
    let mut unused = 1;
    unused = 2;
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:inner_comment")
)]
async fn inner_comment() -> Result<u8, LockError> {
    // Only a comment is before this line.
    Ok(1) // And after it.
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:attributed")
)]
async fn attributed() -> Result<u8, LockError> {
    #[allow(unused_variables)]
    let unused = 1;
    #[cfg(any())]
    return Err(LockError::NotConfigured);
    #[cfg(all())]
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:late_init")
)]
async fn late_init(a: bool) -> Result<Tracked, LockError> {
    let result;
    if a {
        result = Tracked("then");
    } else {
        result = Tracked("else");
    }
    Ok(result)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:line:{a}")
)]
async fn line(a: u8) -> Result<(u32, u8), LockError> {
    Ok((line!(), a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "bodies:statements")
)]
async fn statements(a: Tracked) -> Result<usize, LockError> {
    let first = Tracked("first");
    pause().await;
    let _ = Tracked("nothing");
    let _second = Tracked("second");
    temporary("statement").later().await;
    let Temporary(third) = temporary("third");
    Ok(first.length() + third.length() + a.length())
}

pub(crate) async fn run() {
    show!(one_line());
    show!(one_name(Ok(1)));
    show!(one_call(Tracked("a")));
    show!(tail_temporary());
    show!(tail_temporary_and_arguments(Tracked("a"), Tracked("b")));
    show!(tail_temporary_only(Tracked("a")));
    show!(tail_awaited(Tracked("a")));
    show!(tail_match(Tracked("a")));
    show!(tail_if_let(Tracked("a")));
    show!(tail_block());
    show!(tail_question());
    show!(tail_macro());
    show!(no_tail());
    show!(unit_tail(Tracked("a")));
    show!(only_match(Some(2)));
    show!(only_match(Some(1)));
    show!(only_match(None));
    show!(only_if(true));
    show!(only_if(false));
    show!(only_loop(1));
    show!(only_unsafe(&1));
    show!(unsafe_function => unsafe { unsafe_function(&1) });
    show!(labeled_block(1));
    show!(labeled_block(2));
    show!(labels());
    show!(async_block(Tracked("a")));
    show!(block_in_braces());
    show!(items(Tracked("a")));
    show!(macro_first(1));
    show!(item_last(1));
    show!(inner_attribute(1));
    show!(inner_attributes(1, Tracked("b")));
    show!(inner_comment());
    show!(attributed());
    show!(late_init(true));
    show!(late_init(false));
    show!(line(1));
    show!(statements(Tracked("a")));
}
