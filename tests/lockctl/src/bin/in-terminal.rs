//! Runs a program in a session of its own, whose terminal is the first argument.
//!
//! ```text
//! in-terminal /dev/pts/7 lockctl run ..
//! ```

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let terminal = arguments.next().expect("the path of a terminal");
    let program = arguments.next().expect("a program");
    rustix::process::setsid().expect("this process leads no group");
    let terminal = File::options()
        .read(true)
        .write(true)
        .open(terminal)
        .expect("the terminal exists");
    rustix::process::ioctl_tiocsctty(&terminal).expect("the session has no terminal yet");
    rustix::stdio::dup2_stdin(&terminal).expect("stdin can be replaced");
    rustix::stdio::dup2_stdout(&terminal).expect("stdout can be replaced");
    rustix::stdio::dup2_stderr(&terminal).expect("stderr can be replaced");
    drop(terminal);
    let error = Command::new(program).args(arguments).exec();
    panic!("cannot run the program: {error}");
}
