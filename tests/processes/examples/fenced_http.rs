//! The example `fenced_http`.

use test_support::RedisServer;
use test_support::fixtures::SOON;

use super::example;

#[test]
fn api_refuses_a_late_writer_and_a_writer_without_a_token() {
    let server = RedisServer::start();
    let program = example("fenced_http").arg("--redis").arg(server.url());
    let shown = program.spawn();
    assert!(shown.wait(SOON).success(), "{:#?}", shown.lines());
    let expected = [
        "in time: 204 No Content",
        "late: 409 Conflict",
        "without a token: 428 Precondition Required",
        "=> 70 left",
    ];
    assert_eq!(shown.lines(), expected);
}
