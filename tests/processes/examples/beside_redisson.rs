//! The example `beside_redisson`. `./scripts/interop` runs it with Java.

use test_support::Scratch;
use test_support::fixtures::SOON;

use super::example;

#[test]
fn without_java_the_example_names_what_is_missing() {
    let nothing = Scratch::new();
    let program = example("beside_redisson").env("PATH", nothing.path());
    let shown = program.spawn();
    assert!(shown.wait(SOON).success(), "{:#?}", shown.lines());
    let expected = "left out the service in Java, and with it this example: `javac` is not installed; install \
                    Java 17 or later, and Maven";
    assert_eq!(shown.lines(), [expected]);
}
