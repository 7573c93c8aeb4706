//! Functions with compiler warnings. The warnings must be the same with the attribute, at the same
//! places.
#![warn(missing_docs)]

use lock_core::LockError;

use crate::support::{Tracked, pause};

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:argument")
)]
async fn unused_argument(a: u8, b: Tracked) -> Result<usize, LockError> {
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:pattern")
)]
async fn unused_in_pattern((a, b): (u8, u8)) -> Result<u8, LockError> {
    Ok(b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:local")
)]
async fn unused_local() -> Result<u8, LockError> {
    let local = 1;
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:unused_mut")
)]
async fn unused_mut(mut a: u8) -> Result<u8, LockError> {
    let mut local = a;
    Ok(local)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:unused_mut_pattern")
)]
async fn unused_mut_in_pattern((mut a, b): (u8, u8)) -> Result<u8, LockError> {
    Ok(a + b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:parentheses")
)]
async fn parentheses(a: u8) -> Result<u8, LockError> {
    if (a > 1) {
        return (Ok(2));
    }
    let b = (a);
    Ok(b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:tail_parentheses")
)]
async fn tail_parentheses(a: Result<u8, LockError>) -> Result<u8, LockError> {
    (a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:braces")
)]
async fn braces(a: u8) -> Result<u8, LockError> {
    let b = { a };
    Ok({ b })
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:tail_braces")
)]
async fn tail_braces(a: Result<u8, LockError>) -> Result<u8, LockError> {
    { a }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:assignment")
)]
async fn unused_assignment(mut a: u8) -> Result<u8, LockError> {
    let mut local = 1;
    local = a;
    a = 2;
    Ok(local)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:overwritten")
)]
async fn overwritten_argument(mut a: u8) -> Result<u8, LockError> {
    a = 2;
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:overwritten_field")
)]
async fn assigned_and_unused(mut a: (u8, u8)) -> Result<(), LockError> {
    a.0 = 1;
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:only_assigned")
)]
async fn only_assigned(mut a: u8) -> Result<(), LockError> {
    a = 1;
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:captured", on_contended = |e| Err(e))
)]
async fn assigned_and_captured(mut a: (u8, u8), mut b: u8) -> Result<u8, LockError> {
    a.0 = 1;
    b += a.1;
    if b == 5 {
        a = (b, 3);
        return Ok(a.1);
    }
    b += 1;
    Ok(0)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:added_to")
)]
async fn only_added_to(mut a: u8) -> Result<(), LockError> {
    a += 1;
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:after_return")
)]
async fn after_return(a: u8) -> Result<u8, LockError> {
    return Ok(a);
    pause().await;
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:after_loop")
)]
async fn after_loop(mut a: u8) -> Result<u8, LockError> {
    loop {
        a += 1;
        if a > 3 {
            return Ok(a);
        }
    }
    Ok(0)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:after_panic")
)]
async fn after_panic(a: Tracked) -> Result<u8, LockError> {
    panic!("at once");
    drop(a);
    Ok(0)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:only_panics")
)]
async fn only_panics(a: Tracked) -> Result<u8, LockError> {
    panic!("only")
}

#[deprecated]
async fn obsolete() -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:deprecated")
)]
async fn uses_deprecated() -> Result<u8, LockError> {
    obsolete().await
}

#[deprecated(note = "use another one")]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:is_deprecated")
)]
async fn is_deprecated() -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:undocumented")
)]
pub async fn undocumented() -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:unused_result")
)]
async fn unused_result() -> Result<u8, LockError> {
    undocumented().await;
    pause();
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:must_use")
)]
#[must_use]
async fn must_use() -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:never_called")
)]
async fn never_called() -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:items")
)]
async fn unused_items() -> Result<u8, LockError> {
    use std::fmt::Debug;
    const UNUSED: u8 = 1;
    fn unused() {}
    macro_rules! unused_macro {
        () => {};
    }
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:label")
)]
async fn unused_label() -> Result<u8, LockError> {
    'held: for _ in 0..2 {}
    Ok(1)
}

#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "warned:semicolon"))]
#[rustfmt::skip]
async fn redundant_semicolon() -> Result<u8, LockError> {
    ;
    let a = 2;;
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:unsafe")
)]
async fn unused_unsafe() -> Result<u8, LockError> {
    unsafe { Ok(1) }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:qualification")
)]
#[warn(unused_qualifications)]
async fn unused_qualification(a: u8) -> std::result::Result<u8, LockError> {
    std::result::Result::Ok(a)
}

#[expect(unused_variables)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:expectation")
)]
async fn unfulfilled_expectation(a: u8) -> Result<u8, LockError> {
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:case")
)]
async fn NotInSnakeCase(NotSnake: u8) -> Result<u8, LockError> {
    let AlsoNot = NotSnake;
    Ok(AlsoNot)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:shadowed")
)]
async fn shadowed_argument(a: u8) -> Result<u8, LockError> {
    let a = 1;
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:comparison")
)]
async fn useless_comparison(a: u8) -> Result<bool, LockError> {
    Ok(a >= 0)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "warned:closure")
)]
async fn unused_closure(a: u8) -> Result<u8, LockError> {
    let unused = |b: u8| a;
    Ok(a)
}

struct Counter(u8);

impl Counter {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "warned:mut_self")
    )]
    async fn unused_mut_self(mut self) -> Result<u8, LockError> {
        Ok(self.0)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "warned:self_field")
    )]
    async fn assigned_self(mut self) -> Result<(), LockError> {
        self.0 = 1;
        Ok(())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "warned:method")
    )]
    async fn unused_in_method(&self, a: u8) -> Result<u8, LockError> {
        Ok(self.0)
    }
}

pub(crate) async fn run() {
    show!(unused_argument(1, Tracked("b")));
    show!(unused_in_pattern((1, 2)));
    show!(unused_local());
    show!(unused_mut(1));
    show!(unused_mut_in_pattern((1, 2)));
    show!(parentheses(1));
    show!(tail_parentheses(Ok(1)));
    show!(braces(1));
    show!(tail_braces(Ok(1)));
    show!(unused_assignment(1));
    show!(overwritten_argument(1));
    show!(assigned_and_unused((1, 2)));
    show!(only_assigned(1));
    show!(assigned_and_captured((1, 2), 3));
    show!(only_added_to(1));
    show!(after_return(1));
    show!(after_loop(1));
    show!(panicking after_panic(Tracked("a")));
    show!(panicking only_panics(Tracked("a")));
    show!(uses_deprecated());
    show!(is_deprecated());
    show!(undocumented());
    show!(unused_result());
    must_use();
    show!(unused_items());
    show!(unused_label());
    show!(redundant_semicolon());
    show!(unused_unsafe());
    show!(unused_qualification(1));
    show!(unfulfilled_expectation(1));
    show!(NotInSnakeCase(1));
    show!(shadowed_argument(1));
    show!(useless_comparison(1));
    show!(unused_closure(1));
    show!(unused_mut_self => Counter(1).unused_mut_self());
    show!(assigned_self => Counter(1).assigned_self());
    show!(unused_in_method => Counter(1).unused_in_method(1));
}
