use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn model() -> Model {
    let settings = Settings {
        lock: true,
        fence: true,
        slow: false,
        rate: 200,
    };
    let mut model = Model::new(settings, 100, 2);
    model.open_sale(1, Phase::Selling);
    model
}

#[track_caller]
fn last_notice(model: &Model) -> &str {
    &model.notices.back().unwrap().text
}

/// Gives the lock to an instance, and freezes that instance for five seconds.
fn freeze(model: &mut Model, number: usize, token: u64) {
    let now = Instant::now();
    model.on_event(number, Event::Granted { sale: 1, token }, now);
    let token = Some(token);
    model.on_event(number, Event::Paused { token }, now);
    model.on_frozen(number, token);
    assert!(model.sends(), "requests go on while an instance is frozen");
}

#[test]
fn refused_late_write_says_how_long_the_instance_slept() {
    let mut model = model();
    let now = Instant::now();
    model.on_event(
        2,
        Event::Granted {
            sale: 1,
            token: 1001,
        },
        now,
    );
    model.on_event(2, Event::Ended { token: Some(1001) }, now);
    freeze(&mut model, 1, 1017);
    let frozen = "Instance 1 is frozen while it holds the lock with token 17.";
    assert_eq!(last_notice(&model), frozen);
    model.on_woken(1, 5 * SECOND);
    let (token, newest) = (1017, 1023);
    model.on_event(
        1,
        Event::Refused {
            sale: 1,
            token,
            newest,
        },
        now,
    );
    model.on_event(1, Event::Ended { token: Some(token) }, now);
    let refused = "Instance 1 woke up after 5.0 s; its late write was refused: token 17 is older \
        than 23.";
    assert_eq!(last_notice(&model), refused);
    assert_eq!(model.notices.len(), 2);
}

#[test]
fn late_write_of_an_earlier_sale_does_not_change_the_next_one() {
    let mut model = model();
    let now = Instant::now();
    freeze(&mut model, 1, 1000);
    model.open_sale(2, Phase::Selling);
    let (sale, token) = (2, 5000);
    model.on_event(2, Event::Granted { sale, token }, now);
    model.on_woken(1, 5 * SECOND);
    let (sale, token, newest) = (1, 1000, 1006);
    model.on_event(
        1,
        Event::Refused {
            sale,
            token,
            newest,
        },
        now,
    );
    assert!(last_notice(&model).ends_with("token 1 is older than 7."));
    assert_eq!(model.sale.refused, 0);
}

#[test]
fn late_write_says_how_late_it_was() {
    let mut model = model();
    freeze(&mut model, 1, 1000);
    model.on_woken(1, 5 * SECOND);
    let (token, late_ms) = (1000, 3_140);
    model.on_event(
        1,
        Event::WroteLate {
            sale: 1,
            token,
            late_ms,
        },
        Instant::now(),
    );
    model.on_event(1, Event::Ended { token: Some(token) }, Instant::now());
    let late = "Instance 1 wrote late: the lease had ended 3.1 s before.";
    assert_eq!(last_notice(&model), late);
    assert_eq!(model.sale.late_writer, Some(1));
    assert_eq!(model.notices.len(), 2);
}

#[test]
fn takeover_is_measured_to_the_next_grant_of_another_instance() {
    let mut model = model();
    let killed = Instant::now();
    model.on_event(
        2,
        Event::Granted {
            sale: 1,
            token: 1000,
        },
        killed,
    );
    model.on_killed(2, Some(1000), killed);
    model.on_stopped(2);
    assert_eq!(model.serving(), 0, "no instance is ready yet");
    let granted = killed + Duration::from_millis(1_940);
    model.on_event(
        1,
        Event::Granted {
            sale: 1,
            token: 1001,
        },
        granted,
    );
    let taken_over = "Instance 2 died holding the lock; the next buyer got it after 1.9 s.";
    assert_eq!(last_notice(&model), taken_over);
    model.on_event(
        1,
        Event::Granted {
            sale: 1,
            token: 1002,
        },
        granted,
    );
    assert_eq!(model.notices.len(), 1);
}

#[test]
fn replies_of_an_earlier_sale_are_not_counted() {
    let mut model = model();
    model.on_request();
    model.open_sale(2, Phase::Selling);
    model.on_request();
    model.on_reply(1, None);
    assert_eq!((model.in_flight, model.counters.failed), (1, 0));
    model.on_reply(2, None);
    assert_eq!((model.in_flight, model.counters.failed), (0, 1));
}

#[test]
fn log_keeps_the_newest_notices() {
    let mut model = model();
    for number in 0..60 {
        model.notice(Tone::Info, number.to_string());
    }
    assert_eq!(model.notices.len(), NOTICES);
    assert_eq!(model.notices.front().unwrap().text, "10");
    assert_eq!(model.notices.back().unwrap().id, 60);
}
