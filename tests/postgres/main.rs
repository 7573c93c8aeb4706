//! The examples that need PostgreSQL. `./scripts/postgres` installs it, and runs this test.

use test_support::fixtures::SOON;
use test_support::{PostgresServer, RedisServer};
use tests::example;

#[test]
fn database_refuses_the_late_write_of_a_paused_holder() {
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let run = || {
        let program = example("fenced_postgres").arg("--redis").arg(redis.url());
        let shown = program.arg("--database").arg(postgres.url()).spawn();
        assert!(shown.wait(SOON).success(), "{:#?}", shown.lines());
        shown.lines()
    };
    assert_eq!(run(), ["in time: accepted", "late: refused", "=> 70 left"]);
    // The table keeps its token, and tokens grow.
    assert_eq!(run(), ["in time: accepted", "late: refused", "=> 40 left"]);
}
