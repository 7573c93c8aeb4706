//! Functions that `macro_rules!` macros generate, as a whole or in parts.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::Tracked;

macro_rules! whole_item {
    ($item:item) => {
        #[cfg_attr(
            feature = "attribute",
            lock_core::distributed_lock(name = "made_by_macros:whole_item")
        )]
        $item
    };
}

whole_item! {
    async fn whole_item(a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }
}

macro_rules! passed_on {
    ($item:item) => {
        $item
    };
}

passed_on! {
    #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "made_by_macros:passed_on"))]
    pub(crate) async fn passed_on(a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }
}

passed_on! {
    passed_on! {
        #[cfg_attr(
            feature = "attribute",
            lock_core::distributed_lock(name = "made_by_macros:passed_on_twice")
        )]
        async fn passed_on_twice((a, b): (u8, Tracked)) -> Result<usize, LockError> {
            Ok(b.length() + usize::from(a))
        }
    }
}

macro_rules! with_block {
    ($name:ident, $key:literal, $body:block) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name() -> Result<usize, LockError> $body
    };
}

with_block!(with_block, "made_by_macros:with_block", {
    let local = Tracked("local");
    Ok(local.length())
});

with_block!(with_block_of_one_name, "made_by_macros:one_name", { FOUR });

const FOUR: Result<usize, LockError> = Ok(4);

macro_rules! with_expression {
    ($name:ident, $key:literal, $result:expr) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name() -> Result<usize, LockError> {
            $result
        }
    };
}

with_expression!(with_expression, "made_by_macros:with_expression", Ok(1 + 2));
with_expression!(with_block_expression, "made_by_macros:block_expression", {
    let local = Tracked("local");
    Ok(Tracked("tail").length() + local.length())
});
with_expression!(
    with_match_expression,
    "made_by_macros:match_expression",
    match 1 + 1 {
        2 => Ok(2),
        _ => Err(LockError::NotConfigured),
    }
);

macro_rules! with_arguments {
    ($name:ident, $key:literal, $($argument:ident: $t:ty),* => $result:expr) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name($($argument: $t),*) -> Result<usize, LockError> {
            Ok($result)
        }
    };
}

with_arguments!(
    with_arguments, "made_by_macros:with_arguments",
    a: Tracked, b: &Tracked => b.length() + a.length()
);

macro_rules! with_hidden_argument {
    ($name:ident, $key:literal, $visible:ident => $result:expr) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name($visible: Tracked, hidden: Tracked) -> Result<usize, LockError> {
            let local = hidden.length();
            Ok(local + $result)
        }
    };
}

with_hidden_argument!(with_hidden_argument, "made_by_macros:hidden", local => local.length());

// Two arguments of the same name, which the compiler distinguishes by their place in the source.
macro_rules! with_same_names {
    ($name:ident, $key:literal, $a:ident) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name(a: Tracked, $a: Tracked) -> Result<usize, LockError> {
            drop(a);
            Ok($a.length() + 1)
        }
    };
}

with_same_names!(with_same_names, "made_by_macros:same_names", a);

macro_rules! with_pattern {
    ($name:ident, $key:literal, $pattern:pat, $t:ty => $result:expr) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name($pattern: $t) -> Result<usize, LockError> {
            Ok($result)
        }
    };
}

with_pattern!(with_pattern, "made_by_macros:pattern", (a, b), (Tracked, Tracked) => b.length() + a.length());
with_pattern!(with_wild, "made_by_macros:wild", _, Tracked => 1);
with_pattern!(with_name, "made_by_macros:name", a, Tracked => a.length());
with_pattern!(with_mutable, "made_by_macros:mutable", mut a, Vec<u8> => {
    a.push(1);
    a.len()
});

macro_rules! with_visibility {
    ($visibility:vis $name:ident, $key:literal) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        $visibility async fn $name() -> Result<usize, LockError> {
            Ok(1)
        }
    };
}

with_visibility!(without_visibility, "made_by_macros:private");
with_visibility!(pub(crate) with_visibility, "made_by_macros:visible");

macro_rules! with_lifetime {
    ($name:ident, $key:literal, $life:lifetime, $label:lifetime) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name<$life>(a: &$life str) -> Result<&$life str, LockError> {
            $label: loop {
                break $label;
            }
            Ok(a)
        }
    };
}

with_lifetime!(with_lifetime, "made_by_macros:lifetime", 'a, 'held);

macro_rules! with_attributes {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        async fn $name(a: Tracked) -> Result<usize, LockError> {
            Ok(a.length())
        }
    };
}

with_attributes!(
    /// Documented.
    #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "made_by_macros:attributes"))]
    #[inline]
    with_attributes
);

struct Counter(usize);

macro_rules! method {
    ($self:ident, $name:ident, $key:literal, $result:expr) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name(&$self) -> Result<usize, LockError> {
            Ok($result)
        }
    };
}

impl Counter {
    method!(self, method, "made_by_macros:method", self.0 + 1);
}

macro_rules! methods {
    ($($t:ident, $key:literal)*) => {
        $(impl Counted for $t {
            #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
            async fn counted(&self, Argument(a): Argument) -> Result<usize, LockError> {
                let $t(count) = self;
                Ok(a.length() + count)
            }
        })*
    };
}

struct Argument(Tracked);

trait Counted {
    async fn counted(&self, argument: Argument) -> Result<usize, LockError>;
}

methods!(Counter, "made_by_macros:methods");

macro_rules! tokens {
    ($($token:tt)*) => { $($token)* };
}

tokens! {
    #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "made_by_macros:tokens"))]
    async fn tokens(a: Tracked) -> Result<usize, LockError> {
        let local = Tracked("local");
        Ok(Tracked("tail").length() + local.length() + a.length())
    }
}

pub(crate) async fn run() {
    let [a, b] = [|| Tracked("a"), || Tracked("b")];
    show!(whole_item(a()));
    show!(passed_on(a()));
    show!(passed_on_twice((1, b())));
    show!(with_block());
    show!(with_block_of_one_name());
    show!(with_expression());
    show!(with_block_expression());
    show!(with_match_expression());
    show!(with_arguments(a(), &b()));
    show!(with_hidden_argument(a(), b()));
    show!(with_same_names(a(), b()));
    show!(with_pattern((a(), b())));
    show!(with_wild(a()));
    show!(with_name(a()));
    show!(with_mutable(vec![1]));
    show!(without_visibility());
    show!(with_visibility());
    show!(with_lifetime("a"));
    show!(with_attributes(a()));
    show!(method => Counter(1).method());
    show!(methods => Counter(1).counted(Argument(a())));
    show!(tokens(a()));
}
