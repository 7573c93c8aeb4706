//! The recipes for jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use test_support::fixtures::{SOON, exists, time_to_expiry};
use test_support::{Helper, Process, RedisServer, eventually};

use crate::examples::example;

fn on(server: &RedisServer, name: &str) -> Helper {
    example(name).arg("--redis").arg(server.url())
}

/// Waits for processes that succeed, and returns the lines of each.
#[track_caller]
fn lines_of(processes: &[Process]) -> Vec<Vec<String>> {
    let ended = processes.iter().map(|process| {
        assert!(process.wait(SOON).success(), "{:#?}", process.lines());
        process.lines()
    });
    ended.collect()
}

#[test]
fn job_runs_until_it_succeeds_once_for_instances_that_start_one_after_another() {
    let server = RedisServer::start();
    let start = |job: Helper| lines_of(&[job.spawn()]).remove(0);
    let run = || start(on(&server, "cron_once"));
    let fail = || start(on(&server, "cron_once").arg("--fails").arg("true"));
    assert_eq!(fail(), ["failed: the mail server is away"]);
    assert!(!exists(&server, "lock:digest"));
    assert_eq!(run(), ["ran: sent 12 mails"]);
    // The instance has ended, and the name stays taken for the rest of the period.
    let left = time_to_expiry(&server, "lock:digest");
    assert!(left > Duration::from_secs(22 * 3600), "{left:?}");
    assert!(left <= Duration::from_secs(23 * 3600), "{left:?}");
    for skipped in [run(), fail()] {
        assert_eq!(
            skipped,
            ["skipped: another instance runs this job, or has run it today"]
        );
    }
}

#[test]
fn job_of_a_request_works_under_its_lock_after_the_answer() {
    let server = RedisServer::start();
    let order = |number: &str| on(&server, "background_job").arg("--order").arg(number);
    let first = order("7").arg("--work").arg("3000").spawn();
    // The job has the output of the request's process, and works on when that process has ended.
    eventually(SOON, || first.lines() == ["202 Accepted"]);
    let second = order("7").spawn();
    assert!(second.wait(SOON).success(), "{:#?}", second.lines());
    assert_eq!(second.lines(), ["409 Conflict: order 7 is being shipped"]);
    eventually(SOON, || {
        first.lines() == ["202 Accepted", "shipped order:7"]
    });
    eventually(SOON, || !exists(&server, "lock:order:7"));
    let third = order("7").spawn();
    assert!(third.wait(SOON).success(), "{:#?}", third.lines());
    eventually(SOON, || {
        third.lines() == ["202 Accepted", "shipped order:7"]
    });
}

#[test]
fn two_jobs_of_a_tenant_run_at_the_same_time_and_no_third() {
    let server = RedisServer::start();
    let log = server.directory().join("jobs.log");
    let start = || on(&server, "per_tenant_limit").arg("--log").arg(&log);
    let processes = [start().spawn(), start().spawn()];
    lines_of(&processes);
    let (mut running, mut most, mut done) = (0_u32, 0, 0);
    // A job writes each line while it holds its slot.
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        if line == "begin" {
            running += 1;
        } else {
            running -= 1;
            done += 1;
        }
        most = most.max(running);
    }
    assert_eq!((running, most, done), (0, 2, 12));
}

/// Starts a consumer that first adds this many jobs of each of three customers.
fn consumer(server: &RedisServer, jobs: &str) -> Process {
    let program = on(server, "queue_consumer").arg("--add").arg(jobs);
    let program = program.arg("--queue").arg(server.directory().join("queue"));
    let program = program
        .arg("--log")
        .arg(server.directory().join("shipped.log"));
    program.arg("--work").arg("100").spawn()
}

/// Returns the jobs of each customer in the order in which they were done.
fn shipped(server: &RedisServer) -> BTreeMap<String, Vec<u32>> {
    let log = std::fs::read_to_string(server.directory().join("shipped.log")).unwrap();
    let mut shipped: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for line in log.lines() {
        let (customer, number) = line.split_once('/').unwrap();
        let jobs = shipped.entry(customer.to_owned()).or_default();
        jobs.push(number.parse().unwrap());
    }
    shipped
}

#[test]
fn two_consumers_share_the_queue_and_keep_each_customers_order() {
    let server = RedisServer::start();
    let first = consumer(&server, "8");
    eventually(SOON, || !first.lines().is_empty());
    let second = consumer(&server, "0");
    let lines = lines_of(&[first, second]);
    assert!(lines.iter().all(|lines| !lines.is_empty()), "{lines:#?}");
    let shipped = shipped(&server);
    assert_eq!(shipped.len(), 3);
    for (customer, jobs) in shipped {
        assert_eq!(jobs, (0..8).collect::<Vec<_>>(), "{customer}");
    }
}

#[test]
fn consumer_continues_the_jobs_of_a_killed_one_in_order() {
    let server = RedisServer::start();
    let killed = consumer(&server, "5");
    eventually(SOON, || !killed.lines().is_empty());
    killed.kill9();
    let second = consumer(&server, "0");
    lines_of(&[second]);
    for (customer, mut jobs) in shipped(&server) {
        // The job that was done, and not yet removed from the queue, is repeated.
        jobs.dedup();
        assert_eq!(jobs, (0..5).collect::<Vec<_>>(), "{customer}");
    }
}

#[test]
fn two_instances_with_forty_callers_query_once() {
    let server = RedisServer::start();
    let cache = server.directory().join("cache");
    let start = || {
        let program = on(&server, "cache_stampede").arg("--cache").arg(&cache);
        program.arg("--query").arg("700").spawn()
    };
    let mut lines = lines_of(&[start(), start()]).concat();
    lines.sort();
    assert_eq!(lines, ["20 answers, 0 queries", "20 answers, 1 queries"]);
}

#[test]
fn three_instances_migrate_once_and_all_become_ready() {
    let server = RedisServer::start();
    let database = server.directory().join("shop.sqlite");
    let processes = [(); 3].map(|()| {
        let program = on(&server, "migrations_at_startup");
        let program = program.arg("--database").arg(&database);
        program.arg("--step").arg("200").spawn()
    });
    let mut lines = lines_of(&processes);
    lines.sort_by_key(Vec::len);
    let ready = "ready at version 3";
    assert_eq!(lines[..2], [[ready], [ready]]);
    let steps = ["applied step 0", "applied step 1", "applied step 2", ready];
    assert_eq!(lines[2], steps);
}

#[test]
fn callers_behind_a_short_queue_are_told_to_come_back() {
    let server = RedisServer::start();
    let program = on(&server, "short_queue").arg("--report").arg("700");
    let lines = lines_of(&[program.spawn()]).remove(0);
    assert_eq!(lines, ["4 reports, 16 callers told to come back"]);
}

/// Each recipe also runs without a server.
#[test]
fn recipes_run_in_memory() {
    for (name, last) in [
        ("cron_once", "ran: sent 12 mails"),
        ("queue_consumer", "cargo/0003"),
        ("cache_stampede", "20 answers, 1 queries"),
        ("short_queue", "4 reports, 16 callers told to come back"),
        ("migrations_at_startup", "ready at version 3"),
    ] {
        let lines = lines_of(&[example(name).spawn()]).remove(0);
        assert_eq!(lines.last().map(String::as_str), Some(last), "{name}");
    }
    let lines = lines_of(&[example("per_tenant_limit").spawn()]).remove(0);
    assert_eq!(lines.len(), 12, "{lines:#?}");
}
