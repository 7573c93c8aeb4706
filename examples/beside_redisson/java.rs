//! Builds the service in Java.

use std::path::PathBuf;

use tokio::process::Command;

use crate::BoxError;

/// The oldest Java for which the service is compiled.
const OLDEST: u32 = 17;

/// Returns what keeps the service from being built.
pub async fn missing() -> Option<String> {
    for (program, version) in [("javac", "-version"), ("java", "-version"), ("mvn", "-v")] {
        let Some(text) = output_of(program, version).await else {
            return Some(format!(
                "`{program}` is not installed; install Java {OLDEST} or later, and Maven"
            ));
        };
        // As in `javac 17.0.15`.
        let found = text
            .split(|c: char| !c.is_ascii_digit())
            .find_map(|word| word.parse::<u32>().ok());
        if program == "javac" && found.is_none_or(|found| found < OLDEST) {
            return Some(format!(
                "it needs Java {OLDEST} or later, and finds: {text}"
            ));
        }
    }
    None
}

/// Builds the service with Maven beside this program, and returns the path of the archive.
pub async fn build() -> Result<PathBuf, BoxError> {
    let this = std::env::current_exe()?;
    let output = this.with_file_name("beside_redisson-java");
    let pom = concat!(env!("CARGO_MANIFEST_DIR"), "/beside_redisson/java/pom.xml");
    println!("Maven builds the service in Java; the first time, it downloads Redisson");
    let maven = Command::new("mvn")
        .args(["--batch-mode", "--quiet", "-f", pom])
        .arg(format!("-Doutput={}", output.display()))
        .arg("package")
        .output()
        .await?;
    if !maven.status.success() {
        let text = String::from_utf8_lossy(&maven.stdout);
        return Err(format!("Maven cannot build the service in Java:\n{text}").into());
    }
    Ok(output.join("beside-redisson.jar"))
}

/// Returns what a program prints, or nothing if it cannot run.
async fn output_of(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().await.ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    output.status.success().then_some(text)
}
