use super::*;

fn at(seconds: u64) -> Moment {
    Moment::from_millis(1_000 * seconds)
}

fn says(epoch: u64, address: &'static str) -> Announcement<&'static str> {
    Announcement { epoch, address }
}

fn reply(address: &'static str, seconds: u64) -> SentinelReply<&'static str> {
    SentinelReply {
        announcement: says(1, address),
        asked: at(seconds),
    }
}

fn listed(address: &'static str, run_id: &str) -> ListedSentinel<&'static str> {
    ListedSentinel {
        address,
        run_id: Some(run_id.to_owned()),
    }
}

#[test]
fn learned_sentinel_is_forgotten_a_minute_after_its_last_sign_of_life() {
    let mut known = KnownSentinels::of_url(["a"], Introduction::ByAll);
    known.listed(&"a", vec![listed("b", "2"), listed("c", "3")], at(0));
    // One is listed again, and the other one replies.
    known.listed(&"a", vec![listed("b", "2")], at(30));
    known.replied(&"c", Some(reply("p", 50)));
    known.forget_gone(at(90));
    assert_eq!(known.addresses(), ["a", "b", "c"]);
    known.forget_gone(at(91));
    assert_eq!(known.addresses(), ["a", "c"]);
    // What its task still reports does not bring it back.
    known.replied(&"b", None);
    known.replied(&"b", Some(reply("p", 91)));
    known.identified(&"b", "2".into());
    assert_eq!(known.addresses(), ["a", "c"]);
    known.replied(&"c", None);
    known.forget_gone(at(111));
    assert_eq!(known.addresses(), ["a"]);
}

#[test]
fn sentinel_that_lists_thousands_makes_few_known() {
    let listed = |numbers: std::ops::Range<u32>| {
        let listed = |address: u32| ListedSentinel {
            address,
            run_id: Some(address.to_string()),
        };
        numbers.map(listed).collect()
    };
    let mut known = KnownSentinels::of_url([0], Introduction::ByAll);
    known.listed(&0, listed(5_000..5_001), at(0));
    known.listed(&0, listed(1..3_000), at(1));
    assert_eq!(known.addresses().len(), 1 + MOST_LEARNED);
    // Those that are known stay so.
    known.listed(&0, listed(5_000..5_001), at(60));
    known.forget_gone(at(90));
    assert_eq!(known.addresses(), [0, 5_000]);
}

/// Without TLS, a learned Sentinel could send the password on to hosts of its choice.
#[test]
fn learned_sentinel_introduces_nobody_where_only_the_url_may() {
    for (introduction, addresses) in [
        (Introduction::ByAll, &["a", "b", "c"][..]),
        (Introduction::ByUrl, &["a", "b"]),
    ] {
        let mut known = KnownSentinels::of_url(["a"], introduction);
        known.listed(&"a", vec![listed("b", "2")], at(0));
        known.listed(&"b", vec![listed("c", "3")], at(0));
        assert_eq!(known.addresses(), addresses, "{introduction:?}");
    }
}

#[test]
fn sentinel_of_the_url_is_never_forgotten() {
    let mut known = KnownSentinels::of_url(["a"], Introduction::ByAll);
    known.listed(&"a", vec![listed("a", "1")], at(0));
    known.forget_gone(at(100_000));
    assert_eq!(known.addresses(), ["a"]);
    assert_eq!(known.replies(at(100_000)), [None]);
}

/// Without it, those that are gone would count against each majority.
#[test]
fn forgotten_sentinel_does_not_count() {
    let mut known = KnownSentinels::of_url(["a"], Introduction::ByAll);
    known.listed(&"a", vec![listed("b", "2"), listed("c", "3")], at(0));
    known.replied(&"a", Some(reply("p", 60)));
    assert_eq!(known.replies(at(60)).len(), 3);
    known.forget_gone(at(61));
    assert_eq!(known.replies(at(61)), [Some(says(1, "p"))]);
}

#[test]
fn sentinel_with_two_addresses_counts_once_with_its_latest_reply() {
    let mut known = KnownSentinels::of_url(["name-1", "name-2"], Introduction::ByAll);
    known.identified(&"name-1", "1".into());
    known.identified(&"name-2", "2".into());
    known.listed(
        &"a",
        vec![listed("number-1", "1"), listed("number-2", "2")],
        at(0),
    );
    known.replied(&"name-1", Some(reply("old", 1)));
    known.replied(&"number-1", Some(reply("new", 2)));
    assert_eq!(known.replies(at(2)), [Some(says(1, "new")), None]);
    known.replied(&"name-1", Some(reply("newest", 3)));
    assert_eq!(known.replies(at(3)), [Some(says(1, "newest")), None]);
}

/// A user may lack the right to ask for the run id.
#[test]
fn sentinels_without_run_ids_count_by_their_addresses() {
    let mut known = KnownSentinels::of_url(["a", "b"], Introduction::ByAll);
    known.replied(&"a", Some(reply("p", 1)));
    assert_eq!(known.replies(at(1)), [Some(says(1, "p")), None]);
    known.listed(
        &"a",
        vec![ListedSentinel {
            address: "c",
            run_id: None,
        }],
        at(1),
    );
    assert_eq!(known.replies(at(1)).len(), 3);
}

#[test]
fn sentinel_is_asked_at_one_address_while_that_of_the_url_replies() {
    let mut known = KnownSentinels::of_url(["name"], Introduction::ByAll);
    known.listed(
        &"a",
        vec![listed("number", "1"), listed("other", "2")],
        at(0),
    );
    assert_eq!(known.followed(at(0)), ["name", "number", "other"]);
    known.identified(&"name", "1".into());
    assert_eq!(known.followed(at(0)), ["name", "number", "other"]);
    known.replied(&"name", Some(reply("p", 1)));
    assert_eq!(known.followed(at(1)), ["name", "other"]);
    // The name leads nowhere any more.
    known.replied(&"name", None);
    assert_eq!(known.followed(at(1)), ["name", "number", "other"]);
}

#[test]
fn reply_counts_for_three_seconds() {
    let mut known = KnownSentinels::of_url(["a"], Introduction::ByAll);
    known.replied(&"a", Some(reply("p", 1)));
    assert_eq!(known.replies(at(4)), [Some(says(1, "p"))]);
    assert_eq!(known.replies(at(5)), [None]);
}

#[test]
fn only_a_later_question_with_the_epoch_confirms_a_primary() {
    let mut known = KnownSentinels::of_url(["a"], Introduction::ByAll);
    known.replied(&"a", Some(reply("p", 5)));
    assert!(known.know_since(at(4), 1));
    assert!(!known.know_since(at(5), 1), "it was asked before");
    assert!(!known.know_since(at(4), 2), "it was cut off");
}
