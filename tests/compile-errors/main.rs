//! The compile errors of the attribute. Each folder of `ui` is about one option or one part
//! of a function, and each file is named after the error that it shows.

#[test]
fn compile_errors_name_the_token_and_the_correction() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/*/*.rs");
}
