//! The page as a browser without scripts sees it, its headers, and its events.

use crate::demo::Demo;

#[test]
fn page_works_without_a_script() {
    let demo = Demo::start(&["--in-process", "--items", "20"]);
    let page = demo.get("/");
    assert_eq!(page.status, 200);
    assert!(!page.body.contains("{{"), "a place was not filled");
    for part in [
        "<html lang=\"en\">",
        "<noscript>",
        "Stock 20 · Ready: press “Start sale”",
        "aria-checked=\"true\" data-switch=\"lock\"",
        "#[distributed_lock(",
        "<h3>Instance 2</h3>",
    ] {
        assert!(page.body.contains(part), "{part}");
    }
    // The form of a browser without scripts.
    let sent = demo.send("POST", "/control", "accept: text/html\r\n", "action=lock");
    assert_eq!(sent.status, 303);
    assert!(sent.head.contains("location: /\r\n"), "{}", sent.head);
    let page = demo.get("/").body;
    assert!(page.contains("aria-checked=\"false\" data-switch=\"lock\""));
    assert!(page.contains("Lock: off."), "the log has the switch");
    demo.send("POST", "/control", "", "rate=9999");
    assert_eq!(demo.state()["rate"], 500);
}

#[test]
fn unknown_action_is_refused_with_the_known_ones() {
    let demo = Demo::start(&["--in-process"]);
    for action in ["stop", "", "freeze-3", "freeze-x", "thaw-1", "-"] {
        let sent = demo.send("POST", "/control", "", &format!("action={action}"));
        assert_eq!(sent.status, 400, "{action}");
        let text = format!(
            "unknown action `{action}`; use start, reset, lock, fence, slow, or freeze-N, kill-N or \
             start-N with the number of an instance\n"
        );
        assert_eq!(sent.body, text);
    }
    let sent = demo.send("POST", "/control", "", "action=freeze-1");
    assert_eq!(sent.status, 400);
    assert_eq!(
        sent.body,
        "`freeze-1` needs instances that are processes; start the demo without --in-process\n"
    );
}

#[test]
fn nothing_comes_from_or_goes_to_other_hosts() {
    let demo = Demo::start(&["--in-process"]);
    for path in ["/", "/style.css", "/app.js", "/icon.svg"] {
        let file = demo.get(path);
        assert_eq!(file.status, 200, "{path}");
        assert!(
            file.head
                .contains("content-security-policy: default-src 'self'"),
            "{}",
            file.head
        );
        assert!(
            file.head.contains("x-content-type-options: nosniff"),
            "{}",
            file.head
        );
        let own = file.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains("://"), "{path} names another host");
        assert!(
            !own.contains("<style") && !own.contains(" style="),
            "{path}"
        );
    }
    // A page of another host cannot press the buttons.
    let origin = "origin: http://example.org\r\n";
    assert_eq!(
        demo.send("POST", "/control", origin, "action=start").status,
        403
    );
    assert_eq!(
        demo.send("GET", "/state", "host: example.org\r\n", "")
            .status,
        403
    );
    let own = format!("origin: http://{}\r\n", demo.address);
    assert_eq!(
        demo.send("POST", "/control", &own, "action=reset").status,
        303
    );
}

#[test]
fn events_are_whole_states_and_each_notice_once() {
    let demo = Demo::start(&["--in-process"]);
    demo.press("lock");
    demo.press("fence");
    let mut events = demo.events("");
    let mut notices = Vec::new();
    let state = loop {
        let (kind, id, data) = events.next().expect("the stream goes on");
        match kind.as_str() {
            "notice" => notices.push((id.expect("notices have ids"), data)),
            _ => break data,
        }
    };
    assert_eq!(notices[0].1["text"], "Lock: off.");
    assert_eq!(notices[1].1["text"], "Fencing token: off.");
    for key in [
        "texts",
        "switches",
        "instances",
        "plot",
        "rows",
        "experiments",
    ] {
        assert!(!state[key].is_null(), "{key}");
    }
    // A browser that connects again gets the newer notices only.
    let seen = format!("last-event-id: {}\r\n", notices[0].0);
    let mut again = demo.events(&seen);
    let (kind, id, data) = again.next().expect("the stream goes on");
    assert_eq!((kind.as_str(), id), ("notice", Some(notices[1].0)));
    assert_eq!(data["text"], "Fencing token: off.");
    let (kind, id, _) = again.next().expect("the stream goes on");
    assert_eq!((kind.as_str(), id), ("state", None));
}
