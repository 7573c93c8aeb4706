//! Encodes commands.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use self::sealed::Arg;
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::WireKind;
use crate::owner_id::OwnerId;
use crate::scripts::{Script, ScriptForm};
use crate::wire::{OwnerText, QueueEntry};

/// The place of a number with two digits, which most numbers of arguments have.
const PLACE: &[u8] = b"00\r\n";

const DIGITS: [u8; 10] = *b"0123456789";

/// Appends commands to a buffer.
#[derive(Debug)]
pub struct CommandBuf<'a> {
    out: &'a mut Vec<u8>,
    form: ScriptForm,
    scripts: ScriptsBy,
    is_asking: bool,
}

/// Makes a node of a cluster take the next command, although the slot is still on its way to it.
pub const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How commands name a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptsBy {
    /// By its hash. The server has to know it.
    Hash,
    /// By its text, for a server that doesn't know it. It knows it then.
    Text,
}

impl<'a> CommandBuf<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self::with_scripts(out, ScriptForm::Flagged, ScriptsBy::Hash)
    }

    pub fn with_scripts(out: &'a mut Vec<u8>, form: ScriptForm, scripts: ScriptsBy) -> Self {
        Self {
            out,
            form,
            scripts,
            is_asking: false,
        }
    }

    /// Puts `ASKING` in front of each command.
    pub fn asking(self, is_asking: bool) -> Self {
        Self { is_asking, ..self }
    }

    /// Begins a command that runs a script. Its arguments follow.
    pub fn script(&mut self, script: &Script, keys: &[&str]) -> Command<'_> {
        let (verb, script) = match self.scripts {
            ScriptsBy::Hash => ("EVALSHA", script.hash(self.form)),
            ScriptsBy::Text => ("EVAL", script.text(self.form)),
        };
        let mut command = self.command(verb);
        command.arg(script).arg(keys.len());
        for key in keys {
            command.arg(*key);
        }
        command
    }

    /// Begins a command. Dropping it ends the command.
    pub fn command(&mut self, name: &str) -> Command<'_> {
        if self.is_asking {
            self.out.extend_from_slice(ASKING);
        }
        let start = self.out.len();
        self.out.push(b'*');
        self.out.extend_from_slice(PLACE);
        let mut command = Command {
            out: self.out,
            start,
            args: 0,
        };
        command.arg(name);
        command
    }
}

/// One command, to which arguments are appended. Its drop writes their number.
#[derive(Debug)]
pub struct Command<'a> {
    out: &'a mut Vec<u8>,
    /// Where the command begins.
    start: usize,
    args: usize,
}

impl Command<'_> {
    /// Appends an argument.
    pub fn arg(&mut self, arg: impl Arg) -> &mut Self {
        self.args += 1;
        arg.append(self.out);
        self
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        fill_in(self.out, self.start + 1, self.args);
    }
}

/// Writes a number at its [`PLACE`]. A number without two digits moves the bytes behind it.
fn fill_in(out: &mut Vec<u8>, at: usize, number: usize) {
    match number {
        0..10 => {
            out[at] = DIGITS[number];
            out.remove(at + 1);
        }
        10..100 => {
            out[at] = DIGITS[number / 10];
            out[at + 1] = DIGITS[number % 10];
        }
        100.. => {
            let mut digits = itoa::Buffer::new();
            out.splice(at..at + 2, digits.format(number).bytes());
        }
    }
}

mod sealed {
    /// What a command may have as an argument.
    ///
    /// No other crate can name it: commands are encoded under the mutex of a connection, where no code of users may run,
    /// and a `Display` of theirs could.
    pub trait Arg {
        /// Appends the argument with its length.
        fn append(&self, out: &mut Vec<u8>);
    }
}

impl<T: Arg + ?Sized> Arg for &T {
    fn append(&self, out: &mut Vec<u8>) {
        (**self).append(out);
    }
}

macro_rules! args {
    ($($name:ty => $append:expr),+ $(,)?) => {$(
        impl Arg for $name {
            fn append(&self, out: &mut Vec<u8>) {
                let append: fn(&Self, &mut Vec<u8>) = $append;
                append(self, out);
            }
        }
    )+};
}

args! {
    str => |text, out| append_bytes(text.as_bytes(), out),
    String => |text, out| append_bytes(text.as_bytes(), out),
    Arc<str> => |text, out| append_bytes(text.as_bytes(), out),
    Vec<u8> => |bytes, out| append_bytes(bytes, out),
    [u8] => |bytes, out| append_bytes(bytes, out),
    u32 => |number, out| append_number(*number, out),
    u64 => |number, out| append_number(*number, out),
    u128 => |number, out| append_number(*number, out),
    usize => |number, out| append_number(*number, out),
    i64 => |number, out| append_number(*number, out),
    FencingToken => |token, out| append_number(token.as_u64(), out),
    ServerMs => |moment, out| append_number(moment.as_u64(), out),
    OwnerId => |owner_id, out| append_bytes(owner_id.encode(&mut [0; OwnerId::LENGTH]), out),
    QueueEntry => append_text,
    WireKind => append_text,
    OwnerText<'_> => append_text,
}

fn append_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes.len() {
        len @ 0..10 => out.extend_from_slice(&[b'$', DIGITS[len], b'\r', b'\n']),
        len @ 10..100 => {
            let (tens, ones) = (DIGITS[len / 10], DIGITS[len % 10]);
            out.extend_from_slice(&[b'$', tens, ones, b'\r', b'\n']);
        }
        len => {
            out.push(b'$');
            out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn append_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    append_bytes(itoa::Buffer::new().format(number).as_bytes(), out);
}

/// Appends what has to be written before its length is known.
fn append_text(arg: &impl Display, out: &mut Vec<u8>) {
    let start = out.len();
    out.push(b'$');
    out.extend_from_slice(PLACE);
    let text = out.len();
    // Writing to a vector doesn't fail.
    let _written = write!(Text(out), "{arg}");
    let len = out.len() - text;
    out.extend_from_slice(b"\r\n");
    fill_in(out, start + 1, len);
}

/// Takes text as bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(name: &str, args: &[&str]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        let mut buffer = CommandBuf::new(&mut out);
        let mut command = buffer.command(name);
        for arg in args {
            command.arg(*arg);
        }
        drop(command);
        out.split_off("before".len())
    }

    /// The same, in the words of the specification.
    fn expected(name: &str, args: &[&str]) -> Vec<u8> {
        let mut out = format!("*{}\r\n", args.len() + 1).into_bytes();
        for arg in std::iter::once(&name).chain(args) {
            out.extend(format!("${}\r\n{arg}\r\n", arg.len()).into_bytes());
        }
        out
    }

    #[test]
    fn command_has_its_counts_and_lengths() {
        let [nine, ten, long] = [9, 10, 1_234].map(|len| "x".repeat(len));
        let many = vec!["a"; 120];
        let cases: [&[&str]; 8] = [
            &[],
            &["", &nine, &ten],
            &[&long, "ü€"],
            &["1"; 8],
            &["2"; 9],
            &["3"; 98],
            &["4"; 99],
            &many,
        ];
        for args in cases {
            let count = args.len();
            assert_eq!(
                encoded("EVALSHA", args),
                expected("EVALSHA", args),
                "{count}"
            );
        }
    }

    #[test]
    fn numbers_and_bytes_are_written_as_text() {
        let mut out = Vec::new();
        CommandBuf::new(&mut out)
            .command("SET")
            .arg("k")
            .arg(u64::MAX)
            .arg(-1_i64)
            .arg(&b"\xff\r\n"[..]);
        let mut expected = expected("SET", &["k", &u64::MAX.to_string(), "-1"]);
        expected[1] = b'5';
        expected.extend_from_slice(b"$3\r\n\xff\r\n\r\n");
        assert_eq!(out, expected);
    }

    #[test]
    fn commands_follow_each_other() {
        let mut out = Vec::new();
        let mut buffer = CommandBuf::new(&mut out);
        buffer.command("PING");
        buffer.command("ECHO").arg("x");
        assert_eq!(
            out,
            [expected("PING", &[]), expected("ECHO", &["x"])].concat()
        );
    }

    /// A slot that is still on its way to a node is served for the next command alone.
    #[test]
    fn each_command_is_behind_its_own_asking() {
        let mut out = Vec::new();
        let mut buffer = CommandBuf::new(&mut out).asking(true);
        buffer.command("SET").arg("k").arg("v");
        buffer.command("TIME");
        let parts = [
            ASKING,
            &expected("SET", &["k", "v"]),
            ASKING,
            &expected("TIME", &[]),
        ];
        assert_eq!(out, parts.concat());
    }
}
