//! The protocol of Redis as bytes: commands are encoded straight into a buffer, and replies are read where they lie.
//!
//! This is our own and not the client library's for three reasons. The library allocates for each argument and each
//! value, it has no bound for a reply, and it may take the confirmation of a subscription for the reply to a command.
//!
//! # What a server may send
//!
//! Nothing that arrives is trusted. A frame that breaks one of these bounds ends its connection, because nobody can
//! tell where the next frame would begin:
//!
//! | Bound | Why |
//! |---|---|
//! | the bytes of one frame: [`LOCK_REPLY`], [`OPERATOR_REPLY`] | a reply without an end would fill the memory |
//! | the bytes of one line: [`MAX_LINE`] | the same, for a number or a status without a line end |
//! | the depth: [`MAX_DEPTH`] | no command of this library has a deeper reply |
//! | the values that a frame announces | each takes three bytes at least, so a bound of bytes is one of values too |
//!
//! [`FrameScan`] looks at each byte once, however small the pieces are in which a frame arrives.
//!
//! Source: the specification of RESP at <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

mod command;
mod frame;
mod reply;

pub use self::command::{ASKING, Command, CommandBuf, ScriptsBy};
pub use self::frame::{FrameScan, LOCK_REPLY, MAX_DEPTH, MAX_LINE, Malformed, OPERATOR_REPLY};
pub use self::reply::{Replies, Reply, ServerError};

/// Reads a decimal number without a sign.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    let add = |number: u64, byte: &u8| {
        let digit = byte.wrapping_sub(b'0');
        let larger = number.checked_mul(10)?.checked_add(digit.into())?;
        (digit < 10).then_some(larger)
    };
    let (first, rest) = digits.split_first()?;
    rest.iter().try_fold(add(0, first)?, add)
}
