//! Starts a Redis server, a service in Java with Redisson, and a service in Rust. Both count what they sell out of
//! one stock, under one lock: `RFencedLock` in Java, `Dialect::Redisson` in Rust.
//!
//! Needs `redis-server`, and Java 17 or later with Maven: `cargo run -p examples --example beside_redisson`.
//! Without Java or Maven, it says which of them is missing, and ends.

mod java;
mod process;
mod service;

use std::error::Error;
use std::process::ExitCode;

use examples::server::Server;
use tokio::process::Command;

use process::{Report, Service};

type BoxError = Box<dyn Error + Send + Sync>;

/// How long both services sell, in seconds, unless `--seconds` has another number.
const SECONDS: u64 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let result = match examples::option::<String>("--service") {
        // This process is the service in Rust, and another one has started it.
        Ok(Some(url)) => service::run(&url).await,
        Ok(None) => start_both().await,
        Err(error) => Err(error.into()),
    };
    examples::end(result.map_err(|error| error as Box<dyn Error>))
}

fn seconds() -> Result<u64, String> {
    Ok(examples::option("--seconds")?.unwrap_or(SECONDS))
}

async fn start_both() -> Result<(), BoxError> {
    if let Some(missing) = java::missing().await {
        println!("left out the service in Java, and with it this example: {missing}");
        return Ok(());
    }
    let seconds = seconds()?.to_string();
    let program = java::build().await?;
    let server = Server::start().await?;
    let url = server.url();

    let mut in_java = Command::new("java");
    in_java.arg("-XX:+UseSerialGC").arg("-jar").arg(program);
    let mut in_java = Service::start("Java with Redisson", in_java.args([&url, &seconds]))?;
    let mut in_rust = Command::new(std::env::current_exe()?);
    in_rust.args(["--service", &url, "--seconds", &seconds]);
    let mut in_rust = Service::start("Rust with lock-core", &mut in_rust)?;

    in_java.ready().await?;
    in_rust.ready().await?;
    println!("one lock, `{}`, for two services:", service::LOCK);
    in_java.go().await?;
    in_rust.go().await?;
    let reports = [in_java.report().await?, in_rust.report().await?];

    let mut connection = server.connect().await?;
    let sold = service::Record::read(&mut connection).await?.sold;
    verdict(&reports, sold)
}

/// Prints what both services did, and compares it with what the stock says.
fn verdict(reports: &[Report], sold: u64) -> Result<(), BoxError> {
    for report in reports {
        println!("{report}");
        if report.sections == 0 {
            return Err(format!("{} never had the lock", report.name).into());
        }
    }
    let sections: u64 = reports.iter().map(|report| report.sections).sum();
    let changes: u64 = reports.iter().map(|report| report.changes).sum();
    let lost = sections.abs_diff(sold);
    println!("=> {sections} sections, and the stock counts {sold}: {lost} lost updates");
    println!("=> {changes} times, the lock went from one service to the other");
    println!("=> in each section, the token was greater than in the section before");
    if lost > 0 {
        return Err("two services were in a section at one time".into());
    }
    Ok(())
}
