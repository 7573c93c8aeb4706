use super::*;

const LIMITS: ChannelLimits = ChannelLimits {
    idle: Duration::from_secs(100),
    most: 4,
    without_waiters: Duration::from_secs(60),
};

fn channels() -> Channels<usize> {
    Channels::new(LIMITS, &Arc::default(), &Arc::default())
}

fn touch(channels: &Channels<usize>, id: usize) -> Option<(Arc<str>, ChannelPhase)> {
    channels.touch(&id, || format!("channel-{id}").into())
}

#[test]
fn channel_that_was_idle_longest_makes_room() {
    let channels = channels();
    for id in 0..4 {
        channels.insert(id, format!("channel-{id}").into());
    }
    // All of them may have waiters.
    assert!(touch(&channels, 4).is_none());
    let minute = LIMITS.without_waiters + Duration::from_secs(1);
    channels.age(&1, minute);
    channels.age(&2, minute * 3 / 2);
    assert!(touch(&channels, 4).is_some());
    assert_eq!(
        (channels.phase(&2), channels.take_leaving()),
        (None, vec!["channel-2".into()])
    );
    assert!(channels.phase(&1).is_some());
    assert!(touch(&channels, 5).is_some());
    assert!(touch(&channels, 6).is_none());
}

#[test]
fn refused_channel_is_tried_again_after_a_pause() {
    let channels = channels();
    let (name, _) = touch(&channels, 7).unwrap();
    assert_eq!(channels.take_wanted().len(), 1);
    let now = Clock::System.now();
    let refused = ChannelPhase::Refused {
        until: now.plus(Duration::from_secs(10)),
    };
    channels.set_phases(&[&name], refused);
    assert_eq!(touch(&channels, 7), Some((Arc::clone(&name), refused)));
    assert!(channels.take_wanted().is_empty());
    channels.set_phases(&[&name], ChannelPhase::Refused { until: now });
    assert_eq!(touch(&channels, 7), Some((name, ChannelPhase::Wanted)));
    assert_eq!(channels.take_wanted().len(), 1);
}

#[test]
fn channel_without_waiters_ends() {
    let channels = channels();
    let (name, _) = touch(&channels, 7).unwrap();
    touch(&channels, 8).unwrap();
    channels.age(&7, LIMITS.idle + Duration::from_secs(1));
    assert_eq!(channels.take_idle(), [name]);
    assert!(channels.phase(&7).is_none());
    assert!(channels.phase(&8).is_some());
}

/// A subscription must not end between two commands of a waiter that believes in it.
#[test]
fn channel_that_is_kept_is_not_idle() {
    let channels = channels();
    let (name, _) = touch(&channels, 7).unwrap();
    let idle = LIMITS.idle + Duration::from_secs(1);
    channels.age(&7, idle);
    assert!(!channels.keep_if_up(&7, 1), "it is not up");
    channels.set_phases(&[&name], ChannelPhase::Up(1));
    assert!(!channels.keep_if_up(&7, 2) && !channels.keep_if_up(&8, 1));
    assert!(channels.keep_if_up(&7, 1));
    assert!(channels.take_idle().is_empty());
    channels.age(&7, idle);
    assert_eq!(channels.take_idle(), [name]);
}

#[tokio::test(start_paused = true)]
async fn waiter_waits_for_the_first_reply_to_its_subscription() {
    let channels = channels();
    let limit = Duration::from_secs(1);
    let up_for = |run_id| channels.up_for(&7, || "seven".into(), run_id, limit);
    assert_eq!(up_for(1).await, None, "no listener has replied");
    let confirm = async {
        channels.listener.wanted().await;
        for name in channels.take_wanted() {
            let missed = channels.set_phases(&[&name], ChannelPhase::Up(1));
            assert_eq!(missed, [7], "the first call had no reply in time");
        }
    };
    let (found, ()) = tokio::join!(up_for(1), confirm);
    assert_eq!(found.as_deref(), Some("seven"));
    assert!(channels.is_up(&7, 1) && !channels.is_up(&7, 2));
    assert_eq!(up_for(2).await, None, "another server process");
    channels.all_down();
    assert_eq!(up_for(1).await, None, "at once");
    assert!(!channels.is_any_up() && channels.has_any());
    let up = |run_id| channels.set_phases(&["seven"], ChannelPhase::Up(run_id));
    assert_eq!(up(3), [7], "a message may have come meanwhile");
    assert!(up(3).is_empty(), "once");
}

/// A waiter must not wait for a listener that does nothing for some time.
#[tokio::test(start_paused = true)]
async fn waiter_does_not_wait_for_a_listener_that_pauses() {
    let channels = channels();
    let limit = Duration::from_secs(1);
    let pausing = channels.listener.pause(Duration::from_secs(10));
    let waiting = async {
        let started = tokio::time::Instant::now();
        assert_eq!(channels.up_for(&7, || "seven".into(), 1, limit).await, None);
        assert_eq!(started.elapsed(), Duration::ZERO);
    };
    tokio::join!(pausing, waiting);
    assert_eq!(channels.take_wanted().len(), 1, "after the pause");
}
