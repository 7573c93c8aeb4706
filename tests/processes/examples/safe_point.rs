//! The example `safe_point`.

use test_support::fixtures::SOON;
use test_support::{Helper, RedisServer, eventually};

use super::example;

/// A row of 250 ms is much shorter than the 1.5 s that are left when a lease of 3 s is at risk.
fn import(server: &RedisServer) -> Helper {
    let program = example("safe_point").arg("--redis").arg(server.url());
    let program = program.arg("--state").arg(server.directory().join("state"));
    program.arg("--rows").arg("12").arg("--row").arg("250")
}

#[test]
fn job_stops_between_two_rows_in_an_outage_and_continues_behind_them() {
    let server = RedisServer::start();
    let first = import(&server).spawn();
    eventually(SOON, || first.lines().len() >= 2);
    server.stop();
    // The call returns although its release gets no reply.
    eventually(SOON, || {
        first.lines().iter().any(|line| line.starts_with("stopped"))
    });
    server.cont();
    assert!(first.wait(SOON).success(), "{:#?}", first.lines());
    let lines = first.lines();
    let (rows, end) = lines.split_at(lines.len() - 1);
    let done = rows.len() / 2;
    assert!((1..12).contains(&done), "{lines:#?}");
    for (row, begun_and_done) in rows.chunks(2).enumerate() {
        assert_eq!(
            begun_and_done,
            [format!("row {row}: begun"), format!("row {row}: done")]
        );
    }
    assert_eq!(
        end,
        [format!(
            "stopped behind row {done}: the lock is about to be lost"
        )]
    );

    let second = import(&server).spawn();
    assert!(second.wait(SOON).success(), "{:#?}", second.lines());
    let lines = second.lines();
    assert_eq!(lines[0], format!("row {done}: begun"));
    assert_eq!(lines[lines.len() - 1], "copied all 12 rows");
}

#[test]
fn job_copies_all_rows_without_an_outage() {
    let program = example("safe_point").spawn();
    assert!(program.wait(SOON).success());
    assert_eq!(program.lines().last().unwrap(), "copied all 5 rows");
}
