//! The example `fenced`.

use test_support::RedisServer;
use test_support::fixtures::SOON;

use super::example;

#[test]
fn late_write_of_a_paused_holder_is_rejected() {
    let server = RedisServer::start();
    let shown = example("fenced").arg("--redis").arg(server.url()).spawn();
    assert!(shown.wait(SOON).success());
    let lines = shown.lines();
    let verdicts: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("=> "))
        .collect();
    assert_eq!(
        verdicts,
        [
            "without a token: 50 left, the parent's write is lost",
            "with a token: 70 left, the late write was rejected",
        ]
    );
}
