//! What the demo proves, through the same requests as those of the page.

use crate::demo::Demo;

/// Reads the number behind `before`.
fn number_behind<T: std::str::FromStr>(text: &str, before: &str) -> Option<T> {
    let (_, behind) = text.split_once(before)?;
    let number = behind
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .next()?;
    number.trim_end_matches('.').parse().ok()
}

#[test]
fn lock_off_oversells_and_lock_on_does_not() {
    let demo = Demo::start(&[]);
    demo.press("lock");
    let verdict = demo.sell();
    let oversold = demo.number("oversold");
    assert!(oversold > 0, "{verdict}");
    let sold = 100 + oversold;
    assert_eq!(demo.number("sold"), sold);
    let sentence = format!("Oversold by {oversold}: two requests read the same stock.");
    assert_eq!(verdict, format!("Stock 100 · Sold {sold} · {sentence}"));
    assert_eq!(demo.result(0), sentence);

    demo.press("reset");
    assert_eq!((demo.number("left"), demo.number("sold")), (100, 0));
    demo.press("lock");
    assert_eq!(
        demo.sell(),
        "Stock 100 · Sold 100 · Oversold 0 — the lock held"
    );
    assert_eq!((demo.number("left"), demo.number("failed")), (0, 0));
}

/// In one test, so that the two freezes of 5 s run side by side.
#[test]
fn late_write_is_refused_with_the_token_and_oversells_without() {
    std::thread::scope(|scope| {
        scope.spawn(freeze_with_the_token);
        scope.spawn(freeze_without_the_token);
    });
}

fn freeze_with_the_token() {
    let demo = Demo::start(&[]);
    demo.press("freeze-1");
    demo.await_instance(1, "frozen");
    // The other instance takes over and sells the rest.
    let sentence = demo.result(2);
    let slept: f64 = number_behind(&sentence, "woke up after ").expect("a time");
    let [token, newest]: [u64; 2] =
        ["token ", "older than "].map(|before| number_behind(&sentence, before).expect("a token"));
    assert!((5.0..7.0).contains(&slept), "{sentence}");
    assert!(token < newest, "{sentence}");
    assert_eq!(
        sentence,
        format!(
            "Instance 1 woke up after {slept:.1} s; its late write was refused: token {token} is \
             older than {newest}."
        )
    );
    let verdict = demo.verdict_of_the_sale();
    assert_eq!(
        verdict,
        "Stock 100 · Sold 100 · Oversold 0 — the fencing token held"
    );
    demo.await_instance(1, "serving");
}

fn freeze_without_the_token() {
    let demo = Demo::start(&[]);
    demo.press("fence");
    demo.press("freeze-2");
    let sentence = demo.result(3);
    // The lease lasts 2 s, and the freeze 5 s.
    let late: f64 = number_behind(&sentence, "the lease had ended ").expect("a time");
    assert!((2.5..5.0).contains(&late), "{sentence}");
    let expected = format!("Instance 2 wrote late: the lease had ended {late:.1} s before.");
    assert_eq!(sentence, expected);
    let verdict = demo.verdict_of_the_sale();
    let oversold = demo.number("oversold");
    assert!(oversold > 0, "{verdict}");
    let reason = "instance 2 wrote after its lease had ended.";
    assert!(
        verdict.ends_with(&format!("Oversold by {oversold}: {reason}")),
        "{verdict}"
    );
}

#[test]
fn next_buyer_gets_the_lock_of_a_killed_instance() {
    let demo = Demo::start(&[]);
    let before = demo.pids();
    demo.press("kill-2");
    let sentence = demo.result(4);
    let after: f64 = number_behind(&sentence, "got it after ").expect("a time");
    // At most the ttl of 2 s, and some time on a busy machine.
    assert!((0.1..3.5).contains(&after), "{sentence}");
    let expected =
        format!("Instance 2 died holding the lock; the next buyer got it after {after:.1} s.");
    assert_eq!(sentence, expected);
    let verdict = demo.verdict_of_the_sale();
    assert_eq!(verdict, "Stock 100 · Sold 100 · Oversold 0 — the lock held");

    demo.await_instance(2, "stopped");
    demo.press("start-2");
    demo.await_instance(2, "serving");
    let pids = demo.pids();
    assert_eq!(pids[0], before[0]);
    assert_ne!(pids[1], before[1]);
    assert_eq!(demo.sell(), verdict);
}

#[test]
fn instances_of_one_process_sell_too_but_cannot_be_frozen() {
    let demo = Demo::start(&["--in-process"]);
    assert!(
        demo.line.contains(", locks in memory, SQLite)"),
        "{}",
        demo.line
    );
    assert_eq!(
        demo.sell(),
        "Stock 100 · Sold 100 · Oversold 0 — the lock held"
    );
    demo.press("lock");
    demo.sell();
    assert!(demo.number("oversold") > 0);
    for action in ["freeze-1", "kill-2", "start-1"] {
        let sent = demo.send("POST", "/control", "", &format!("action={action}"));
        assert_eq!(sent.status, 400, "{action}");
    }
    let state = demo.state();
    for instance in state["instances"].as_array().expect("a list") {
        assert_eq!(instance["state"], "serving");
        assert_eq!([&instance["freeze"], &instance["kill"]], [false, false]);
    }
    let note = "Freeze and kill need processes; they are off with --in-process.";
    assert_eq!(demo.text("note"), note);
}
