//! The formats of locks on the server, for keys that are shared with services in other languages.
//!
//! The guide [`dialects`](crate::guide::dialects) says which library uses which dialect, and what each can do.

#[doc(inline)]
pub use lock_protocol::dialect::{Capabilities, Dialect, RedissonLock, ReleaseMethod};
