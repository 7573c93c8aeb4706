//! Measures what the attribute adds to a program: `cargo bench -p benches --bench expansion`
//!
//! - `size_*`: the bytes that the attribute adds to the future of a function. A second copy of the
//!   by-value arguments is not counted, nor the return value if the release is confirmed.
//! - `check_to_instrument`, `build_to_instrument`: the time to check and to build a crate of 200
//!   annotated functions, divided by the time for the same functions with `#[tracing::instrument]`.
//! - `check_to_by_hand`, `build_to_by_hand`: the same, divided by the time for functions that use the
//!   guard interface. They acquire, run the body and release; they do not end the body when the lock is
//!   lost.
//! - `check_*`, `build_*` in ms: the time for one function, compared with a plain function.
//!
//! - `check_long_to_plain`, `check_long_to_instrument`: the time to check a crate of one annotated function whose
//!   body has 10,000 statements, divided by the time for the same function without the attribute, or with
//!   `#[tracing::instrument]`.
//!
//! Dependencies are compiled before the measurement. The time is processor time if the system reports
//! it, so that other work on the machine is not counted. The short form has no times.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use benches::figures::{median, number, report, report_at_most};
use benches::is_short;
use lock_core::{LockError, LockManager, distributed_lock};

/// The target; `tests/attribute/future_size.rs` fails above it.
const MOST_BYTES: f64 = 512.0;
const FUNCTIONS: u32 = 200;
/// The statements of the long body.
const STATEMENTS: u32 = 10_000;
/// A round takes seconds. The medians of two runs differ by a few percent.
const ROUNDS: usize = 5;

fn main() {
    sizes();
    if !is_short() {
        compile_times();
    }
}

/// Declares a function with arguments, locals and results of some bytes.
macro_rules! function {
    ($name:ident $(, #[$attribute:ident($($option:tt)*)])?) => {
        $(#[$attribute($($option)*, manager = locks)])?
        async fn $name<const A: usize, const B: usize, const R: usize>(
            locks: &LockManager,
            argument: [u8; A],
        ) -> Result<[u8; R], LockError> {
            let local = [argument[0]; B];
            tokio::task::yield_now().await;
            let _ = locks;
            Ok([argument[A - 1] + local[B - 1]; R])
        }
    };
}

function!(plain);
function!(confirmed, #[distributed_lock(name = "size", ttl = "1s", wait = "1s")]);
function!(in_background, #[distributed_lock(name = "size", release = background, on_lost = continue)]);

fn sizes() {
    let locks = LockManager::in_memory();
    size::<1, 1, 1>("small", &locks);
    size::<1, 10_000, 1>("of_locals", &locks);
    size::<5_000, 1, 1>("of_arguments", &locks);
    size::<1, 1, 3_000>("of_results", &locks);
    size::<5_000, 10_000, 3_000>("of_all", &locks);
}

fn size<const A: usize, const B: usize, const R: usize>(shape: &str, locks: &LockManager) {
    let bare = size_of_val(&plain::<A, B, R>(locks, [0; A]));
    let held = size_of_val(&confirmed::<A, B, R>(locks, [0; A]));
    let added = held.saturating_sub(bare + A + R);
    let background = size_of_val(&in_background::<A, B, R>(locks, [0; A]));
    let added_in_background = background.saturating_sub(bare + A);
    for (figure, bytes) in [
        (format!("expansion.size_{shape}"), added),
        (
            format!("expansion.size_{shape}_background"),
            added_in_background,
        ),
    ] {
        report_at_most(&figure, number(bytes as u64), "bytes", MOST_BYTES);
    }
}

/// How the functions of a crate lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    ByHand,
    Instrumented,
    Annotated,
}

const FORMS: [(Form, &str); 4] = [
    (Form::Plain, "plain"),
    (Form::ByHand, "by_hand"),
    (Form::Instrumented, "instrument"),
    (Form::Annotated, "annotated"),
];

fn compile_times() {
    let folder = Folder::new();
    let packages = FORMS.map(|(form, name)| folder.add(name, &source(form)));
    for command in ["check", "build"] {
        let mut times = FORMS.map(|_| Vec::new());
        // The first round compiles the dependencies.
        for round in 0..=ROUNDS {
            for (package, times) in packages.iter().zip(&mut times) {
                let time = folder.cargo(command, package);
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let [plain, by_hand, instrumented, annotated] = times.map(median);
        let each = |time: f64| (time - plain) * 1e3 / f64::from(FUNCTIONS);
        for ((_, name), time) in FORMS[1..].iter().zip([by_hand, instrumented, annotated]) {
            report(&format!("expansion.{command}_{name}"), each(time), "ms");
        }
        for (other, time, target) in [("instrument", instrumented, 1.0), ("by_hand", by_hand, 1.5)]
        {
            let figure = format!("expansion.{command}_to_{other}");
            report_at_most(&figure, annotated / time, "x", target);
        }
    }
    long_body(&folder);
}

/// A step of the expansion that is quadratic in the length of the body would multiply this time.
fn long_body(folder: &Folder) {
    let forms = [Form::Plain, Form::Instrumented, Form::Annotated];
    let packages =
        forms.map(|form| folder.add(&format!("long_{}", form as u8), &long_source(form)));
    let mut times = forms.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (package, times) in packages.iter().zip(&mut times) {
            times.push(folder.cargo("check", package));
        }
    }
    let [plain, instrumented, annotated] = times.map(median);
    for (other, time, target) in [("plain", plain, 1.5), ("instrument", instrumented, 1.25)] {
        let figure = format!("expansion.check_long_to_{other}");
        report_at_most(&figure, annotated / time, "x", target);
    }
}

/// A temporary folder with one crate for each form.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = format!("lock-core-expansion-{}", std::process::id());
        Self(std::env::temp_dir().join(folder))
    }

    fn add(&self, name: &str, source: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the workspace");
        let package = self.0.join(name);
        fs::create_dir_all(package.join("src")).expect("a folder");
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\nlock-core = {{ path = '{}', default-features = false, \
             features = [\"macros\"] }}\ntracing = {{ version = \"0.1\", default-features = false, \
             features = [\"attributes\", \"std\"] }}\n\n[workspace]\n",
            root.join("lock-core").display()
        );
        fs::write(package.join("Cargo.toml"), manifest).expect("written");
        fs::write(package.join("src/lib.rs"), source).expect("written");
        fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).expect("copied");
        package
    }

    /// Runs a cargo command for one package, and returns the seconds that it takes.
    fn cargo(&self, command: &str, package: &Path) -> f64 {
        let lib = package.join("src/lib.rs");
        let text = fs::read_to_string(&lib).expect("the file was written");
        fs::write(&lib, text).expect("a new time makes cargo compile it again");
        let (begun, used) = (Instant::now(), processor_time_of_children());
        let output = Command::new(env!("CARGO"))
            .args([command, "--offline", "--quiet", "--target-dir"])
            .arg(self.0.join("target"))
            .current_dir(package)
            // Incremental builds would reuse parts of the last build.
            .env("CARGO_INCREMENTAL", "0")
            .output()
            .expect("cargo runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let elapsed = begun.elapsed().as_secs_f64();
        processor_time_of_children()
            .zip(used)
            .map_or(elapsed, |(now, before)| now - before)
    }
}

/// Returns the processor time of all ended child processes, in seconds.
fn processor_time_of_children() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain any character.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(13).take(2);
    let ticks: Option<f64> = ticks.map(|field| field.parse::<f64>().ok()).sum();
    // A tick is a hundredth of a second on all Linux systems that Rust supports.
    ticks.map(|ticks| ticks / 100.0)
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that remain in a temporary folder do no harm.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Writes the source of a crate. A function calls all others, so that the compiler keeps them all.
fn source(form: Form) -> String {
    let mut text = String::from(
        "#![allow(unused_imports)]\nuse std::time::Duration;\n\
         use lock_core::{LockError, LockManager, distributed_lock};\n\
         async fn load(id: u64) -> Result<u64, LockError> { Ok(id) }\n\
         async fn write(id: u64, text: &str) -> Result<u64, LockError> { load(id).await?; \
         Ok(text.len() as u64) }\n",
    );
    let mut calls = String::new();
    for number in 0..FUNCTIONS {
        let body = format!(
            "let seen = load(id).await?; if seen > {number} {{ return Ok(seen); }} \
             let text = format!(\"{{id}} {{seen}}\"); let done = write(id, &text).await?; \
             Ok(done + seen)"
        );
        let signature =
            format!("async fn f{number}(locks: &LockManager, id: u64) -> Result<u64, LockError>");
        let function = match form {
            Form::Plain => format!("{signature} {{ let _ = locks; {body} }}\n"),
            Form::Instrumented => format!(
                "#[tracing::instrument(skip(locks))]\n{signature} {{ let _ = locks; {body} }}\n"
            ),
            Form::Annotated => format!(
                "#[distributed_lock(name = \"order:{number}:{{id}}\", ttl = \"30s\", \
                 wait = \"5s\", manager = locks)]\n{signature} {{ {body} }}\n"
            ),
            Form::ByHand => format!(
                "{signature} {{ let guard = locks.lock(format!(\"order:{number}:{{id}}\"))\
                 .ttl(Duration::from_secs(30)).wait(Duration::from_secs(5)).acquire().await?; \
                 let done = async {{ {body} }}.await; \
                 if done.is_ok() {{ guard.release().await?; }} done }}\n"
            ),
        };
        text += &function;
        writeln!(calls, "    sum += f{number}(locks, sum).await?;").expect("a string grows");
    }
    text + &format!(
        "/// Calls all.\npub async fn all(locks: &LockManager) -> Result<u64, LockError> \
         {{\n    let mut sum = 0;\n{calls}    Ok(sum)\n}}\n\
         /// Makes the compiler finish the futures.\npub fn boxed(locks: LockManager) -> \
         std::pin::Pin<Box<dyn Future<Output = Result<u64, LockError>> + Send>> \
         {{ Box::pin(async move {{ all(&locks).await }}) }}\n"
    )
}

/// Writes one function with many statements, each with a name of its own.
fn long_source(form: Form) -> String {
    let attribute = match form {
        Form::Instrumented => "#[tracing::instrument]\n",
        Form::Annotated => "#[distributed_lock(name = \"order:{id}\")]\n",
        Form::Plain | Form::ByHand => "",
    };
    let mut text = format!(
        "#![allow(unused_imports)]\nuse lock_core::{{LockError, distributed_lock}};\n/// Long.\n{attribute}\
         pub async fn long(id: u64) -> Result<u64, LockError> {{\n    let mut sum = id;\n"
    );
    for number in 0..STATEMENTS / 2 {
        writeln!(
            text,
            "    let v{number} = sum.rotate_left({});",
            number % 64
        )
        .expect("a string grows");
        writeln!(text, "    sum ^= v{number};").expect("a string grows");
    }
    text + "    Ok(sum)\n}\n"
}
