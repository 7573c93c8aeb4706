//! What the compiler says about a wrong attribute.

#[test]
fn faults() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/*.rs");
}
