//! Arguments that the body uses as a whole, uses in parts, or assigns to.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::Tracked;

struct Point {
    a: u8,
    b: u8,
}

struct Named {
    name: String,
    count: usize,
}

struct Three {
    a: Tracked,
    b: Tracked,
    c: Tracked,
}

fn three() -> Three {
    Three {
        a: Tracked("a"),
        b: Tracked("b"),
        c: Tracked("c"),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:none")
)]
async fn none() -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:by_value")
)]
async fn by_value(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:moved_out")
)]
async fn moved_out(a: Tracked) -> Result<Tracked, LockError> {
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:copied:{a}")
)]
async fn copied(a: u8, b: u8) -> Result<u8, LockError> {
    Ok(a + b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:by_reference")
)]
async fn by_reference(a: &Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:by_mutable_reference")
)]
async fn by_mutable_reference(point: &mut Point) -> Result<(), LockError> {
    point.a += 1;
    point.b = point.a;
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:reborrowed")
)]
async fn reborrowed(list: &mut Vec<u8>) -> Result<usize, LockError> {
    fn push(list: &mut Vec<u8>) {
        list.push(1);
    }
    push(list);
    push(&mut *list);
    let again = &mut *list;
    again.push(2);
    Ok(list.len())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:taken_from")
)]
async fn taken_from(list: &mut Vec<Tracked>) -> Result<Vec<Tracked>, LockError> {
    Ok(std::mem::take(list))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:field_assigned")
)]
async fn field_assigned(mut point: Point) -> Result<u8, LockError> {
    point.a = 1;
    Ok(point.a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:field_assigned_and_others_read")
)]
async fn field_assigned_and_others_read(mut point: Point) -> Result<u8, LockError> {
    point.a = point.b;
    point.b = 7;
    Ok(point.a + point.b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:string_field_assigned")
)]
async fn string_field_assigned(mut named: Named) -> Result<String, LockError> {
    named.name = "new".to_owned();
    Ok(named.name)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:string_field_changed")
)]
async fn string_field_changed(mut named: Named) -> Result<String, LockError> {
    named.name.push('!');
    named.count += named.name.len();
    Ok(format!("{} {}", named.name, named.count))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:tuple_field_assigned")
)]
async fn tuple_field_assigned(mut pair: (u8, String)) -> Result<String, LockError> {
    pair.0 = 2;
    pair.1 = pair.0.to_string();
    Ok(pair.1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:tracked_field_assigned")
)]
async fn tracked_field_assigned(mut all: Three) -> Result<Tracked, LockError> {
    all.b = Tracked("new b");
    Ok(all.b)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:partly_moved")
)]
async fn partly_moved(all: Three) -> Result<usize, LockError> {
    let first = all.a;
    drop(all.b);
    Ok(first.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:moved_in_parts")
)]
async fn moved_in_parts(all: Three) -> Result<(Tracked, Tracked), LockError> {
    drop(all.c);
    Ok((all.b, all.a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:one_field_read")
)]
async fn one_field_read(all: Three, other: Tracked) -> Result<usize, LockError> {
    Ok(all.b.length() + other.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:one_field_moved")
)]
async fn one_field_moved(all: Three, other: Tracked) -> Result<usize, LockError> {
    let b = all.b;
    Ok(b.length() + other.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:field_in_closure")
)]
async fn field_in_closure(all: Three) -> Result<usize, LockError> {
    // Since edition 2021 the closure captures only the field.
    let length = move || all.b.length();
    Ok(length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:put_back")
)]
async fn put_back(mut all: Three) -> Result<usize, LockError> {
    drop(all.a);
    all.a = Tracked("put back");
    Ok(all.a.length() + all.b.length() + all.c.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:reassigned")
)]
async fn reassigned(mut a: Tracked) -> Result<usize, LockError> {
    let before = a.length();
    a = Tracked("reassigned");
    Ok(before + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:reassigned_in_loop")
)]
async fn reassigned_in_loop(mut count: u8) -> Result<u8, LockError> {
    let mut steps = 0;
    while count > 0 {
        count /= 2;
        steps += 1;
    }
    Ok(steps)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:assigned_in_one_branch")
)]
async fn assigned_in_one_branch(mut text: String, long: bool) -> Result<String, LockError> {
    if long {
        text = text.repeat(2);
    }
    Ok(text)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:consumed_in_branch")
)]
async fn consumed_in_branch(a: Tracked, b: Tracked, now: bool) -> Result<usize, LockError> {
    if now {
        drop(a);
    }
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:raw:{r#type}")
)]
async fn raw_name(r#type: u8, r#gen: u8) -> Result<u8, LockError> {
    Ok(r#type + r#gen)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:many:{a}")
)]
#[allow(clippy::too_many_arguments)]
async fn many(
    a: u8,
    b: &str,
    mut c: Vec<u8>,
    d: [u8; 2],
    e: Option<Tracked>,
    f: (u8, u8),
    g: Box<u8>,
    h: Tracked,
) -> Result<String, LockError> {
    c.push(a);
    Ok(format!("{a} {b} {c:?} {d:?} {e:?} {f:?} {g} {h}"))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "arguments:conditional")
)]
async fn conditional(
    #[cfg(any())] missing: Missing,
    #[cfg(all())] a: Tracked,
    #[allow(unused_variables)] allowed: u8,
    b: Tracked,
) -> Result<usize, LockError> {
    Ok(a.length() + b.length())
}

pub(crate) async fn run() {
    show!(none());
    show!(by_value(Tracked("a")));
    show!(moved_out(Tracked("a")));
    show!(copied(1, 2));
    show!(by_reference(&Tracked("a")));
    let mut point = Point { a: 1, b: 1 };
    show!(by_mutable_reference(&mut point));
    show!(by_mutable_reference_after => async { (point.a, point.b) });
    show!(reborrowed(&mut vec![1]));
    show!(taken_from(&mut vec![Tracked("a"), Tracked("b")]));
    show!(field_assigned(Point { a: 3, b: 4 }));
    show!(field_assigned_and_others_read(Point { a: 3, b: 4 }));
    let named = |name: &str| Named {
        name: name.to_owned(),
        count: 3,
    };
    show!(string_field_assigned(named("old")));
    show!(string_field_changed(named("old")));
    show!(tuple_field_assigned((1, "one".to_owned())));
    show!(tracked_field_assigned(three()));
    show!(partly_moved(three()));
    show!(moved_in_parts(three()));
    show!(one_field_read(three(), Tracked("other")));
    show!(one_field_moved(three(), Tracked("other")));
    show!(field_in_closure(three()));
    show!(put_back(three()));
    show!(reassigned(Tracked("a")));
    show!(reassigned_in_loop(9));
    show!(assigned_in_one_branch("ab".to_owned(), true));
    show!(assigned_in_one_branch("ab".to_owned(), false));
    show!(consumed_in_branch(Tracked("a"), Tracked("b"), true));
    show!(consumed_in_branch(Tracked("a"), Tracked("b"), false));
    show!(raw_name(1, 2));
    show!(many(
        1,
        "b",
        vec![2],
        [3, 4],
        Some(Tracked("e")),
        (5, 6),
        Box::new(7),
        Tracked("h"),
    ));
    show!(conditional(Tracked("a"), 1, Tracked("b")));
}
