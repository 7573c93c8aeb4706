//! Arguments that are destructured, and arguments without a name.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::Tracked;

struct Pair {
    left: Tracked,
    right: Tracked,
}

struct Wrapper(Tracked);

struct Outer {
    pair: Pair,
    rest: (Tracked, u8),
}

fn pair() -> Pair {
    Pair {
        left: Tracked("left"),
        right: Tracked("right"),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:tuple")
)]
async fn tuple((a, b): (Tracked, Tracked)) -> Result<usize, LockError> {
    Ok(a.length() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:tuple_reversed")
)]
async fn tuple_reversed((a, b): (Tracked, Tracked)) -> Result<usize, LockError> {
    drop(b);
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:tuple_in_part")
)]
async fn tuple_in_part((a, _): (Tracked, Tracked)) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:tuple_rest")
)]
async fn tuple_rest((a, .., z): (Tracked, Tracked, Tracked)) -> Result<usize, LockError> {
    Ok(z.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:tuple_assigned")
)]
async fn tuple_assigned((mut a, b): (u8, u8)) -> Result<u8, LockError> {
    a += b;
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:structure")
)]
async fn structure(Pair { left, right }: Pair) -> Result<usize, LockError> {
    Ok(right.length() + left.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:renamed")
)]
async fn renamed(
    Pair {
        left: right,
        right: left,
    }: Pair,
) -> Result<usize, LockError> {
    drop(left);
    Ok(right.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:structure_rest")
)]
async fn structure_rest(Pair { right, .. }: Pair) -> Result<usize, LockError> {
    Ok(right.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:wrapper")
)]
async fn wrapper(Wrapper(inner): Wrapper, b: Tracked) -> Result<Tracked, LockError> {
    drop(b);
    Ok(inner)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:nested:{count}")
)]
async fn nested(
    Outer {
        pair: Pair { left, right },
        rest: (last, count),
    }: Outer,
) -> Result<usize, LockError> {
    Ok(left.length() + last.length() + right.length() + usize::from(count))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:nested_in_part")
)]
async fn nested_in_part(
    first: Tracked,
    Outer {
        pair: Pair { right, .. },
        rest: (_, count),
    }: Outer,
    last: Tracked,
) -> Result<usize, LockError> {
    Ok(right.length() + usize::from(count) + first.length() + last.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:by_ref")
)]
async fn by_ref(ref a: Tracked, b: Tracked) -> Result<usize, LockError> {
    Ok(a.length() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:by_ref_mut")
)]
async fn by_ref_mut(ref mut a: Vec<u8>) -> Result<usize, LockError> {
    a.push(1);
    Ok(a.len())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:ref_inside")
)]
async fn ref_inside((ref a, b): (Tracked, Tracked)) -> Result<usize, LockError> {
    drop(b);
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:behind_reference")
)]
async fn behind_reference(&(a, ref b): &(u8, Tracked)) -> Result<usize, LockError> {
    Ok(usize::from(a) + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:default_binding")
)]
async fn default_binding(Pair { left, right }: &Pair) -> Result<usize, LockError> {
    Ok(left.length() + right.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:array")
)]
async fn array([a, b, c]: [Tracked; 3]) -> Result<usize, LockError> {
    drop(c);
    Ok(b.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:array_rest")
)]
async fn array_rest([first, .., last]: [u8; 4]) -> Result<u8, LockError> {
    Ok(first + last)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:bound_rest")
)]
async fn bound_rest([first, rest @ ..]: &[u8; 4]) -> Result<usize, LockError> {
    Ok(usize::from(*first) + rest.len())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:bound_whole")
)]
async fn bound_whole(whole @ (a, _): (u8, u8)) -> Result<u8, LockError> {
    Ok(whole.1 + a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:unit")
)]
async fn unit((): (), a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:underscored")
)]
async fn underscored(_a: Tracked) -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:wild")
)]
async fn wild(_: Tracked) -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:wild_twice")
)]
async fn wild_twice(_: Tracked, _: Tracked) -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:wild_with_local")
)]
async fn wild_with_local(_: Tracked, _b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:wild_and_named")
)]
async fn wild_and_named(_: Tracked, b: Tracked, _c: Tracked) -> Result<usize, LockError> {
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "patterns:wild_in_tuple")
)]
async fn wild_in_tuple((_, _b): (Tracked, Tracked), c: Tracked) -> Result<usize, LockError> {
    Ok(c.length())
}

pub(crate) async fn run() {
    let two = || (Tracked("a"), Tracked("b"));
    let outer = || Outer {
        pair: pair(),
        rest: (Tracked("rest"), 1),
    };
    show!(tuple(two()));
    show!(tuple_reversed(two()));
    show!(tuple_in_part(two()));
    show!(tuple_rest((Tracked("a"), Tracked("m"), Tracked("z"))));
    show!(tuple_assigned((1, 2)));
    show!(structure(pair()));
    show!(renamed(pair()));
    show!(structure_rest(pair()));
    show!(wrapper(Wrapper(Tracked("inner")), Tracked("b")));
    show!(nested(outer()));
    show!(nested_in_part(Tracked("first"), outer(), Tracked("last")));
    show!(by_ref(Tracked("a"), Tracked("b")));
    show!(by_ref_mut(vec![1]));
    show!(ref_inside(two()));
    show!(behind_reference(&(1, Tracked("b"))));
    show!(default_binding(&pair()));
    show!(array([Tracked("a"), Tracked("b"), Tracked("c")]));
    show!(array_rest([1, 2, 3, 4]));
    show!(bound_rest(&[1, 2, 3, 4]));
    show!(bound_whole((1, 2)));
    show!(unit((), Tracked("a")));
    show!(underscored(Tracked("a")));
    show!(wild(Tracked("a")));
    show!(wild_twice(Tracked("a"), Tracked("b")));
    show!(wild_with_local(Tracked("a"), Tracked("b")));
    show!(wild_and_named(Tracked("a"), Tracked("b"), Tracked("c")));
    show!(wild_in_tuple(two(), Tracked("c")));
}
