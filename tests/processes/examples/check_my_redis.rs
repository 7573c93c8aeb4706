//! The example `check_my_redis`.

use std::time::Duration;

use test_support::fixtures::SOON;
use test_support::{RedisServer, Scratch};

use super::example;

const KEPT: &str = "=> all promises were kept";

#[test]
fn load_of_two_processes_keeps_all_promises() {
    let server = RedisServer::start();
    let scratch = Scratch::new();
    let files: Vec<String> = (1..=2)
        .map(|number| format!("{}/{number}.jsonl", scratch.path().display()))
        .collect();
    let start = |file: &String| {
        let program = example("check_my_redis").arg("--redis").arg(server.url());
        program
            .arg("--seconds")
            .arg("3")
            .arg("--record")
            .arg(file)
            .spawn()
    };
    let processes: Vec<_> = files.iter().map(start).collect();
    // The holders learn of this loss, and the checker excuses the process that was stopped.
    std::thread::sleep(Duration::from_millis(700));
    processes[0].stop();
    std::thread::sleep(Duration::from_millis(1_400));
    processes[0].cont();
    for process in &processes {
        assert!(process.wait(SOON).success(), "{:#?}", process.lines());
        assert!(process.lines().contains(&KEPT.to_owned()));
    }
    let check = |files: String| example("check_my_redis").arg("--check").arg(files).spawn();
    let checked = check(files.join(","));
    assert!(checked.wait(SOON).success(), "{:#?}", checked.lines());
    let lines = checked.lines();
    assert!(lines.contains(&KEPT.to_owned()), "{lines:#?}");
    assert!(lines.iter().filter(|line| line.starts_with("pass")).count() >= 6);

    // The same record twice, as if two processes had the same locks at once.
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let process = format!("\"process\":{}", processes[0].pid());
    assert!(text.contains(&process), "the record names its process");
    std::fs::write(&files[1], text.replace(&process, "\"process\":1")).unwrap();
    let checked = check(files.join(","));
    assert!(!checked.wait(SOON).success());
    let lines = checked.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("FAIL  only holders of one group")),
        "{lines:#?}"
    );
}
