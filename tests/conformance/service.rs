//! Runs the contracts against a server of yours, for a service that these tests cannot start:
//!
//! ```text
//! cargo test -p tests --test service -- --url rediss://user:password@host:6380
//! ```
//!
//! Each contract has a prefix of its own, so the server may be in use. Without `--url` the contracts run
//! on a server that the test starts. A further argument selects the contracts whose names contain it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::ExitCode;

use lock_core::LockManagerBuilder;
use test_support::RedisServer;

#[allow(
    unused_imports,
    dead_code,
    reason = "the other test programs need the rest"
)]
mod suite;

use suite::contracts;
use suite::subject::Subject;

type Contract = fn(&Subject) -> Pin<Box<dyn Future<Output = ()> + '_>>;

macro_rules! contracts {
    ($($contract:ident)+) => {
        [$((stringify!($contract), (|subject| Box::pin(contracts::$contract(subject))) as Contract)),+]
    };
}

struct Arguments {
    url: Option<String>,
    filter: String,
}

fn main() -> ExitCode {
    let arguments = match read_arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let all = suite::all_contracts!(contracts);
    let server = arguments.url.is_none().then(RedisServer::start);
    let url = match (&arguments.url, &server) {
        (Some(url), _) => url.clone(),
        (None, Some(server)) => server.url(),
        (None, None) => return ExitCode::FAILURE,
    };
    let runtime = tokio::runtime::Runtime::new().expect("the system has threads");
    let (mut passed, mut failed) = (0, 0);
    for (name, contract) in all {
        if !name.contains(&arguments.filter) {
            continue;
        }
        let prefix = format!("test:{}:{name}:", std::process::id());
        let run = async {
            let change = |builder: LockManagerBuilder| builder.prefix(&prefix);
            let mut subject = Subject::at((), &url, change).await;
            subject.prefix.clone_from(&prefix);
            contract(&subject).await;
        };
        // The panic of a failed contract has been printed.
        let is_ok = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run))).is_ok();
        println!("test {name} ... {}", if is_ok { "ok" } else { "FAILED" });
        if is_ok {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Takes the options that cargo passes to each test program, and ignores them.
fn read_arguments(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        url: None,
        filter: String::new(),
    };
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--url" => {
                let url = given.next().ok_or("--url needs the URL of a server")?;
                arguments.url = Some(url);
            }
            option if option.starts_with("--") => {}
            filter => filter.clone_into(&mut arguments.filter),
        }
    }
    Ok(arguments)
}
