//! `#[derive(Lock)]`, the option `lock` and lists of names compile with whatever names the user defines, and where
//! macros make them.

use lock_core::{Kind, LockManager};

/// Without the prelude not even `Ok` or `Some` is in scope.
mod without_a_prelude {
    #![no_implicit_prelude]

    use ::lock_core::typed::Read;
    use ::lock_core::{Held, LockError, LockManager, LockSet, distributed_lock};

    #[derive(::lock_core::Lock)]
    #[lock(name = "bare:{id}:{type}", hash_tag = "{id}", ttl = "9s", wait = "1s")]
    struct Bare<'a, T>
    where
        T: ::core::fmt::Display + ::core::marker::Copy,
    {
        id: T,
        r#type: &'a str,
    }

    #[derive(::lock_core::Lock)]
    #[lock(name = "shared:{0}", mode = read_write)]
    struct Shared(u8);

    #[distributed_lock(lock = Shared(id), mode = read, manager = locks, bind = held)]
    async fn read(locks: &LockManager, id: u8) -> ::core::result::Result<u8, LockError> {
        let held: &Held<Shared, Read> = held;
        ::core::result::Result::Ok(held.0)
    }

    #[distributed_lock(name = ["a:{id}", "b"], permits = 2, manager = locks, bind = set)]
    async fn list(locks: &LockManager, id: u8) -> ::core::result::Result<usize, LockError> {
        let set: &LockSet = set;
        ::core::result::Result::Ok(
            set.guards().len() + <usize as ::core::convert::From<u8>>::from(id),
        )
    }

    pub(super) async fn run(locks: &LockManager) -> (u8, usize) {
        let read = read(locks, 3).await;
        let list = list(locks, 3).await;
        ::core::assert!(read.is_ok() && list.is_ok());
        let bare = locks.hold(Bare { id: 1, r#type: "t" }).try_acquire().await;
        ::core::assert!(::core::matches!(
            bare,
            ::core::result::Result::Ok(::core::option::Option::Some(_))
        ));
        (read.unwrap_or_default(), list.unwrap_or_default())
    }
}

/// Items whose names the expansion of the derive could use.
mod shadows {
    use lock_core::distributed_lock;

    /// Modules that a path without leading colons would find.
    mod core {
        pub(super) const HERE: u8 = 1;
    }

    mod lock_core_ {
        pub(super) const HERE: u8 = 2;
    }

    pub(super) struct Declaration;
    pub(super) struct Option;
    pub(super) struct Some;
    pub(super) struct Held(pub(super) u8);

    trait Lock {
        fn declaration(&self) -> Declaration {
            Declaration
        }

        fn name(&self) -> Option {
            Option
        }

        fn guard(&self) -> Some {
            Some
        }
    }

    impl<T> Lock for T {}

    /// Its fields have the names of the options, and of methods of a held lock.
    #[derive(lock_core::Lock, Clone, Copy)]
    #[lock(name = "{name}:{ttl}:{options}:{guard}:{lock}", mode = read_write, ttl = "9s")]
    pub(super) struct Names<'lock> {
        pub(super) name: u8,
        pub(super) ttl: &'lock str,
        pub(super) options: char,
        pub(super) guard: u16,
        pub(super) lock: i8,
    }

    impl Names<'_> {
        /// The trait has a method of this name, too.
        pub(super) const fn declaration(&self) -> u8 {
            self.name
        }
    }

    #[distributed_lock(lock = names, mode = write, manager = manager, bind = held)]
    pub(super) async fn locked(
        manager: &lock_core::LockManager,
        names: Names<'_>,
        declaration: u8,
    ) -> ::core::result::Result<(String, u8), lock_core::LockError> {
        let here = core::HERE + lock_core_::HERE + Held(declaration).0;
        let (_, _, _) = (Lock::declaration(&here), here.name(), here.guard());
        Ok((
            lock_core::Held::guard(held).key().to_owned(),
            here + Names::declaration(held),
        ))
    }
}

/// Keywords as names, in the name of the lock without `r#`.
mod raw_identifiers {
    use lock_core::{Lock, LockError, LockManager, distributed_lock};

    #[derive(Lock)]
    #[lock(name = "raw:{type}:{match.0}:{loop.fn}")]
    pub(super) struct r#Struct {
        pub(super) r#type: u8,
        pub(super) r#match: (u8,),
        pub(super) r#loop: r#Loop,
    }

    pub(super) struct r#Loop {
        pub(super) r#fn: &'static str,
    }

    #[distributed_lock(
        lock = r#Struct { r#type, r#match: (2,), r#loop: r#Loop { r#fn: "three" } },
        manager = r#use,
        bind = r#in,
    )]
    pub(super) async fn r#async(r#use: &LockManager, r#type: u8) -> Result<String, LockError> {
        assert_eq!(r#in.r#type, r#type);
        Ok(r#in.guard().key().to_owned())
    }

    #[distributed_lock(name = ["list:{type}", r#const.clone(), "x:{move.0}"], manager = r#use, bind = r#in)]
    pub(super) async fn r#for(
        r#use: &LockManager,
        r#type: u8,
        r#const: String,
        r#move: (u8, u8),
    ) -> Result<Vec<String>, LockError> {
        let mut keys: Vec<_> = r#in.guards().iter().map(|held| held.key().into()).collect();
        keys.push(format!("{}{}", r#const, r#move.1));
        Ok(keys)
    }
}

/// Declarations and functions that macros make, as a whole or in parts.
mod made_by_macros {
    use lock_core::{Held, Lock, LockError, LockManager, distributed_lock};

    macro_rules! declared {
        ($(#[$attribute:meta])* $name:ident, $key:literal, $ttl:literal, $($field:ident: $t:ty),+) => {
            $(#[$attribute])*
            #[derive(Lock)]
            #[lock(name = $key, ttl = $ttl)]
            pub(super) struct $name {
                $(pub(super) $field: $t,)+
            }
        };
    }

    declared!(
        /// Guards one page.
        #[derive(Clone, Copy)]
        Page,
        "page:{id}:{r}",
        "9s",
        id: u8,
        r: u8
    );

    macro_rules! semaphore {
        ($name:ident, $key:literal, $permits:expr, $weight:literal) => {
            #[derive(Lock)]
            #[lock(name = $key, permits = $permits, weight = $weight)]
            pub(super) struct $name;
        };
    }

    semaphore!(Mailer, "mailer", 2 + 2, 2);

    macro_rules! wrapped {
        ($item:item) => {
            $item
        };
    }

    wrapped! {
        #[derive(Lock)]
        #[lock(name = format!("wrapped:{}", self.0), mode = read_write)]
        pub(super) struct Wrapped(pub(super) u8);
    }

    macro_rules! locked {
        ($name:ident, $lock:expr, $held:ident => $body:expr, $($parameter:ident: $t:ty),*) => {
            #[distributed_lock(lock = $lock, manager = locks, bind = $held)]
            pub(super) async fn $name(locks: &LockManager $(, $parameter: $t)*) -> Result<u8, LockError> {
                Ok($body)
            }
        };
    }

    locked!(render, Page { id, r: 1 }, page => page.id + page.r, id: u8);
    locked!(mail, Mailer, mailer => u8::from(mailer.is_lost()),);
    locked!(wrap, { let twice = id * 2; Wrapped(twice) }, held => held.0, id: u8);

    macro_rules! listed {
        ($name:ident, [$($key:literal),+], $id:ident) => {
            #[distributed_lock(name = [$($key),+], manager = locks, bind = set)]
            pub(super) async fn $name(locks: &LockManager, $id: u8) -> Result<usize, LockError> {
                Ok(set.guards().len())
            }
        };
        ($name:ident, $($key:expr),+) => {
            #[distributed_lock(name = [$($key,)+ "last"], manager = locks, bind = set)]
            pub(super) async fn $name(locks: &LockManager) -> Result<usize, LockError> {
                Ok(set.guards().len())
            }
        };
    }

    listed!(of_literals, ["a:{id}", "b:{id}"], id);
    listed!(of_expressions, "a", String::from("b"), ["c", "d"][1]);

    macro_rules! named {
        ($name:ident, $names:expr, $id:ident) => {
            #[distributed_lock(name = $names, manager = locks, bind = set)]
            pub(super) async fn $name(locks: &LockManager, $id: u8) -> Result<String, LockError> {
                Ok(set.guards()[0].key().to_owned())
            }
        };
    }

    // The fragment is a list of templates, and no array.
    named!(of_a_list, ["a:{id}", "b"], id);

    pub(super) fn id_of(page: &Held<Page>) -> u8 {
        page.id
    }
}

/// Fields and parameters that exist in some builds only.
mod configured {
    use lock_core::{Lock, LockError, LockManager, distributed_lock};

    #[derive(Lock)]
    #[cfg_attr(test, lock(name = "configured:{0}:{1}", permits = 3))]
    #[cfg_attr(not(test), lock(name = "never:{gone}"))]
    pub(super) struct Tuple(
        #[cfg(not(test))] pub(super) Missing,
        pub(super) u8,
        #[cfg(test)] pub(super) u8,
    );

    #[derive(Lock)]
    #[lock(name = "configured:{id}")]
    pub(super) struct Named {
        #[cfg(not(test))]
        pub(super) gone: Missing,
        #[cfg(test)]
        pub(super) id: u8,
        #[cfg(not(test))]
        pub(super) id: Missing,
    }

    #[distributed_lock(lock = Named { id }, manager = locks, bind = named)]
    pub(super) async fn named(
        locks: &LockManager,
        #[cfg(not(test))] id: Missing,
        #[cfg(test)] id: u8,
    ) -> Result<u8, LockError> {
        Ok(named.id)
    }

    #[distributed_lock(name = ["a:{id}", "b:{id}"], manager = locks, bind = set)]
    pub(super) async fn list(
        locks: &LockManager,
        #[cfg(not(test))] gone: Missing,
        #[cfg(test)] id: u8,
    ) -> Result<usize, LockError> {
        Ok(set.guards().len())
    }
}

/// Type, lifetime and const parameters with the names that an expansion could use.
mod generics {
    use std::fmt::Display;
    use std::marker::PhantomData;

    use lock_core::{Lock, LockError, LockManager, distributed_lock};

    #[derive(Lock)]
    #[lock(name = "many:{l}:{m}", permits = SIZE, weight = Self::HALF)]
    pub(super) struct Many<'a, L, M = u8, const SIZE: u32 = 4, const UNUSED: bool = true>
    where
        L: ?Sized + Display,
        M: Display,
    {
        pub(super) l: &'a L,
        pub(super) m: M,
    }

    impl<L, M, const SIZE: u32, const UNUSED: bool> Many<'_, L, M, SIZE, UNUSED>
    where
        L: ?Sized + Display,
        M: Display,
    {
        const HALF: u32 = SIZE / 2;
    }

    #[derive(Lock)]
    #[lock(name = "array:{0}", mode = read_write)]
    pub(super) struct Array<T, const N: usize>(
        pub(super) u8,
        #[lock(not_in_name)] pub(super) [T; N],
        pub(super) PhantomData<T>,
    );

    #[distributed_lock(lock = Many::<_, M, 6, false> { l, m }, manager = locks, bind = held)]
    pub(super) async fn many<L: ?Sized + Display + Sync, M: Display + Send + Sync>(
        locks: &LockManager,
        l: &L,
        m: M,
    ) -> Result<String, LockError> {
        Ok(format!("{} {}", held.guard().key(), held.guard().kind()))
    }

    #[distributed_lock(lock = Array(N, [at; 3], PhantomData), mode = read, manager = locks, bind = held)]
    pub(super) async fn array<T: Copy + Send + Sync, const N: u8>(
        locks: &LockManager,
        at: T,
    ) -> Result<(T, u8), LockError> {
        Ok((held.1[2], held.0))
    }

    pub(super) trait Service: Sync {
        const NAME: &'static str;

        fn locks(&self) -> &LockManager;

        #[distributed_lock(name = [Self::NAME, "service:{id}"], manager = self.locks(), bind = set)]
        async fn provided(&self, id: u8) -> Result<usize, LockError> {
            Ok(set.guards().len())
        }

        #[distributed_lock(lock = Array(id, [0], PhantomData), mode = write, manager = self.locks())]
        async fn declared(&self, id: u8) -> Result<(), LockError> {
            Ok(())
        }
    }

    pub(super) struct Shop(pub(super) LockManager);

    impl Service for Shop {
        const NAME: &'static str = "shop";

        fn locks(&self) -> &LockManager {
            &self.0
        }
    }
}

#[tokio::test]
async fn expansion_compiles_without_the_prelude() {
    let locks = LockManager::in_memory();
    assert_eq!(without_a_prelude::run(&locks).await, (3, 5));
}

#[tokio::test]
async fn expansion_compiles_with_shadowed_names() {
    let locks = LockManager::in_memory();
    let names = shadows::Names {
        name: 1,
        ttl: "t",
        options: 'o',
        guard: 2,
        lock: -3,
    };
    let locked = shadows::locked(&locks, names, 7).await.expect("free");
    assert_eq!(locked, ("lock:1:t:o:2:-3".to_owned(), 1 + 2 + 7 + 1));
}

#[tokio::test]
async fn keywords_are_names_of_fields_and_parameters() {
    let locks = LockManager::in_memory();
    let key = raw_identifiers::r#async(&locks, 1).await.expect("free");
    assert_eq!(key, "lock:raw:1:2:three");
    let keys = raw_identifiers::r#for(&locks, 1, "c".into(), (2, 3)).await;
    let expected = ["lock:c", "lock:list:1", "lock:x:2", "c3"];
    assert_eq!(keys.expect("free"), expected);
}

#[tokio::test]
async fn macros_declare_and_hold_locks() {
    use made_by_macros as made;

    let locks = LockManager::in_memory();
    assert_eq!(made::render(&locks, 3).await.expect("free"), 4);
    let page = locks.hold(made::Page { id: 3, r: 4 }).await.expect("free");
    assert_eq!(page.guard().key(), "lock:page:3:4");
    assert_eq!(made::id_of(&page), 3);
    assert_eq!(made::mail(&locks).await.expect("free"), 0);
    let mailer = locks.hold_permit(made::Mailer).await.expect("free");
    assert_eq!(mailer.guard().kind(), Kind::Permits { of: 4, weight: 2 });
    assert_eq!(made::wrap(&locks, 3).await.expect("free"), 6);
    assert_eq!(made::of_literals(&locks, 1).await.expect("free"), 2);
    assert_eq!(made::of_expressions(&locks).await.expect("free"), 4);
    assert_eq!(made::of_a_list(&locks, 1).await.expect("free"), "lock:a:1");
}

#[tokio::test]
async fn configured_fields_and_parameters_are_used() {
    use configured::{Named, Tuple};

    let locks = LockManager::in_memory();
    let tuple = locks.hold_permit(Tuple(1, 2)).await.expect("free");
    assert_eq!(tuple.guard().key(), "lock:configured:1:2");
    let held = locks.hold(Named { id: 3 }).await.expect("free");
    assert_eq!(held.guard().key(), "lock:configured:3");
    assert_eq!(configured::named(&locks, 4).await.expect("free"), 4);
    assert_eq!(configured::list(&locks, 4).await.expect("free"), 2);
}

#[tokio::test]
async fn generic_types_declare_locks() {
    use generics::{Many, Service, Shop};

    let locks = LockManager::in_memory();
    let many = generics::many(&locks, "l", 'm').await.expect("free");
    assert_eq!(many, "lock:many:l:m 3 of 6 permits");
    let many: Many<'_, str> = Many { l: "l", m: 1 };
    let many = locks.hold_permit(many).await.expect("free");
    assert_eq!(many.guard().kind(), Kind::Permits { of: 4, weight: 2 });
    let array = generics::array::<_, 5>(&locks, 'a').await.expect("free");
    assert_eq!(array, ('a', 5));
    let shop = Shop(locks);
    assert_eq!(shop.provided(1).await.expect("free"), 2);
    shop.declared(1).await.expect("free");
}
