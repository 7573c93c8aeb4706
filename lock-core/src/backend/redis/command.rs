//! Writes commands in the protocol of Redis into a buffer that is used again.

use std::fmt::Display;
use std::io::Write;

/// Writes one command. Its arguments go straight into the buffer, without a value for each.
pub(crate) struct CommandWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Where the command begins.
    start: usize,
    args: usize,
}

/// The place of a number with two digits, which most counts and lengths have.
const PLACE: &[u8] = b"00\r\n";

impl<'a> CommandWriter<'a> {
    /// Appends a command to `out`. [`finish`](Self::finish) has to follow the last argument.
    pub(crate) fn new(out: &'a mut Vec<u8>, name: &str) -> Self {
        let start = out.len();
        out.push(b'*');
        out.extend_from_slice(PLACE);
        let mut command = Self {
            out,
            start,
            args: 0,
        };
        command.text(name);
        command
    }

    /// Appends an argument.
    pub(crate) fn arg(&mut self, arg: impl Display) -> &mut Self {
        self.write(|out| {
            // Writing to a vector does not fail.
            let _written = write!(out, "{arg}");
        })
    }

    /// Appends an argument that is text already. [`arg`](Self::arg) would format it.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.write(|out| out.extend_from_slice(text.as_bytes()))
    }

    fn write(&mut self, arg: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        self.args += 1;
        let start = self.out.len();
        self.out.push(b'$');
        self.out.extend_from_slice(PLACE);
        let text = self.out.len();
        arg(self.out);
        let len = self.out.len() - text;
        self.out.extend_from_slice(b"\r\n");
        fill_in(self.out, start + 1, len);
        self
    }

    /// Writes the number of arguments.
    pub(crate) fn finish(self) {
        fill_in(self.out, self.start + 1, self.args);
    }
}

/// Writes a number at its [`PLACE`]. A number without two digits moves the bytes behind it.
fn fill_in(out: &mut Vec<u8>, at: usize, number: usize) {
    const DIGITS: [u8; 10] = *b"0123456789";
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
            out.splice(at..at + 2, number.to_string().into_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(name: &str, args: &[&str]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        let mut command = CommandWriter::new(&mut out, name);
        for arg in args {
            command.text(arg);
        }
        command.finish();
        out.split_off("before".len())
    }

    #[test]
    fn command_is_encoded_as_the_client_library_does() {
        let [nine, ten, long] = [9, 10, 1_234].map(|len| "x".repeat(len));
        let many = vec!["a"; 120];
        let cases: [&[&str]; 7] = [
            &[],
            &["", &nine, &ten],
            &[&long, "ü€"],
            &["1"; 8],
            &["2"; 9],
            &["3"; 98],
            &many,
        ];
        for args in cases {
            let expected = redis::cmd("EVALSHA").arg(args).get_packed_command();
            assert_eq!(
                encoded("EVALSHA", args),
                expected,
                "{} arguments",
                args.len()
            );
        }
    }

    #[test]
    fn numbers_are_written_as_text() {
        let mut out = Vec::new();
        let mut command = CommandWriter::new(&mut out, "SET");
        command.text("k").arg(u64::MAX).arg(-1);
        command.finish();
        let mut expected = redis::cmd("SET");
        expected.arg("k").arg(u64::MAX).arg(-1);
        assert_eq!(out, expected.get_packed_command());
    }
}
