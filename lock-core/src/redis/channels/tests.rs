use super::*;
use lock_protocol::key::LockName;

const KEY: ChannelKind = ChannelKind::Key;
const HOW: Subscribing = Subscribing::Classic;
const LIMIT: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);

fn channels() -> Channels {
    Channels::new("p:", false, &Arc::default())
}

fn name(number: usize) -> Arc<str> {
    format!("channel-{number}").into()
}

fn refused(until: Moment) -> Phase {
    let why = PollingReason::SubscriptionDenied;
    Phase::Refused { until, why }
}

fn touch(channels: &Channels, number: usize) -> Option<Phase> {
    channels.touch(HOW, KEY, &name(number))
}

fn phase(channels: &Channels, number: usize) -> Option<Phase> {
    channels.phase(HOW, &name(number))
}

async fn up_for(channels: &Channels, number: usize, run_id: u64) -> bool {
    channels
        .up_for(HOW, KEY, &name(number), run_id, || LIMIT)
        .await
}

/// Makes the use of a channel longer ago.
fn age(channels: &Channels, name: &str, by: Duration) {
    let mut state = channels.state.lock();
    let channel = state.of(HOW).get_mut(name).unwrap();
    let since_boot = channel.used_at.since(Moment::from_nanos(0));
    channel.used_at = Moment::from_nanos(0).plus(since_boot.saturating_sub(by));
}

fn key() -> LockKey {
    LockKey::new("", &LockName::new("job").unwrap()).unwrap()
}

#[test]
fn channel_that_was_idle_longest_makes_room() {
    let channels = channels();
    let limits = KEY.limits();
    // The channel of the manager doesn't count, and never makes room.
    let manager = Arc::clone(channels.manager());
    channels.touch(HOW, ChannelKind::Manager, &manager).unwrap();
    let boot = Clock::System.now().since(Moment::from_nanos(0));
    age(&channels, &manager, boot);
    for number in 0..limits.most {
        touch(&channels, number).expect("there is room");
    }
    // All of them may have waiters.
    assert!(touch(&channels, limits.most).is_none());
    age(&channels, &name(1), limits.without_waiters + SECOND);
    age(&channels, &name(2), limits.without_waiters + 2 * SECOND);
    assert!(touch(&channels, limits.most).is_some());
    assert_eq!(
        (phase(&channels, 2), channels.take_leaving()),
        (None, vec![(HOW, name(2))])
    );
    assert!(phase(&channels, 1).is_some());
    assert!(touch(&channels, limits.most + 1).is_some());
    assert!(touch(&channels, limits.most + 2).is_none());
    assert!(channels.phase(HOW, &manager).is_some());
}

#[test]
fn refused_channel_is_tried_again_after_a_pause() {
    let channels = channels();
    touch(&channels, 7).unwrap();
    assert_eq!(channels.take_wanted().len(), 1);
    let now = Clock::System.now();
    let until = now.plus(10 * SECOND);
    channels.set(HOW, &name(7), refused(until));
    assert_eq!(touch(&channels, 7), Some(refused(until)));
    assert!(channels.take_wanted().is_empty());
    channels.set(HOW, &name(7), refused(now));
    assert_eq!(touch(&channels, 7), Some(Phase::Wanted));
    assert_eq!(channels.take_wanted().len(), 1);
}

#[test]
fn channel_without_waiters_ends_and_that_of_the_manager_stays() {
    let channels = channels();
    let manager = Arc::clone(channels.manager());
    channels.touch(HOW, ChannelKind::Manager, &manager).unwrap();
    touch(&channels, 7).unwrap();
    touch(&channels, 8).unwrap();
    let boot = Clock::System.now().since(Moment::from_nanos(0));
    age(&channels, &manager, boot);
    age(&channels, &name(7), KEY.limits().idle + SECOND);
    assert_eq!(channels.take_idle(), [(HOW, name(7))]);
    assert!(phase(&channels, 7).is_none());
    assert!(phase(&channels, 8).is_some());
    assert!(channels.phase(HOW, &manager).is_some());
}

/// A subscription must not end between two commands of a waiter that believes in it.
#[test]
fn channel_that_is_kept_is_not_idle() {
    let (channels, key) = (channels(), key());
    let name: Arc<str> = key.redisson_channel().into();
    channels.touch(HOW, KEY, &name).unwrap();
    let idle = KEY.limits().idle + SECOND;
    age(&channels, &name, idle);
    assert!(!channels.keep_key_if_up(&key, 1), "it is not up");
    channels.set(HOW, &name, Phase::Up(1));
    assert!(!channels.keep_key_if_up(&key, 2));
    assert!(channels.keep_key_if_up(&key, 1));
    assert_eq!(channels.own_subscriptions(&key, 1), 1);
    assert!(channels.take_idle().is_empty());
    age(&channels, &name, idle);
    assert_eq!(channels.take_idle(), [(HOW, name)]);
}

/// Redisson publishes in two ways there, and a waiter needs both.
#[test]
fn key_in_a_cluster_needs_both_channels() {
    let channels = Channels::new("p:", true, &Arc::default());
    let key = key();
    let name: Arc<str> = key.redisson_channel().into();
    for how in [Subscribing::Classic, Subscribing::Sharded] {
        assert!(!channels.keep_key_if_up(&key, 1));
        channels.touch(how, KEY, &name).unwrap();
        channels.set(how, &name, Phase::Up(1));
    }
    assert!(channels.keep_key_if_up(&key, 1));
    assert_eq!(channels.own_subscriptions(&key, 1), 2);
    assert!(channels.forget(Subscribing::Sharded, &name), "it is known");
    assert!(!channels.forget(Subscribing::Sharded, &name));
    assert_eq!(channels.own_subscriptions(&key, 1), 1);
}

#[tokio::test(start_paused = true)]
async fn waiter_waits_for_the_first_reply_to_its_subscription() {
    let channels = channels();
    assert!(!up_for(&channels, 7, 1).await, "no listener has replied");
    let confirm = async {
        channels.wanted().await;
        for (how, name) in channels.take_wanted() {
            let was_missed = channels.set(how, &name, Phase::Up(1));
            assert!(was_missed, "the first call had no reply in time");
        }
    };
    let (is_up, ()) = tokio::join!(up_for(&channels, 7, 1), confirm);
    assert!(is_up && channels.is_any_up());
    assert!(!up_for(&channels, 7, 2).await, "another server process");
    channels.all_down();
    assert!(!up_for(&channels, 7, 1).await, "at once");
    assert!(!channels.is_any_up() && channels.has_any());
    let up = |run_id| channels.set(HOW, &name(7), Phase::Up(run_id));
    assert!(up(3), "a message may have come in the meantime");
    assert!(!up(3), "once");
}

#[tokio::test(start_paused = true)]
async fn channel_of_the_manager_is_subscribed_when_a_native_waiter_needs_it() {
    let channels = channels();
    let key = key();
    assert!(!channels.has_any(), "nobody has needed it");
    let unknown = channels.native_up_for(&key, UNKNOWN_RUN_ID, || LIMIT).await;
    assert!(!unknown.0 && !channels.has_any());
    let confirm = async {
        channels.wanted().await;
        let wanted = channels.take_wanted();
        assert_eq!(wanted, [(HOW, Arc::clone(channels.manager()))]);
        channels.set(HOW, channels.manager(), Phase::Up(1));
    };
    let (found, ()) = tokio::join!(channels.native_up_for(&key, 1, || LIMIT), confirm);
    assert_eq!(found, (true, Arc::clone(channels.manager())));
}

/// A waiter must not wait for a listener that does nothing for some time.
#[tokio::test(start_paused = true)]
async fn waiter_does_not_wait_for_a_listener_that_pauses() {
    let channels = channels();
    let pausing = channels.pause(10 * SECOND);
    let waiting = async {
        let started = tokio::time::Instant::now();
        assert!(!up_for(&channels, 7, 1).await);
        assert_eq!(started.elapsed(), Duration::ZERO);
    };
    tokio::join!(pausing, waiting);
    assert_eq!(channels.take_wanted().len(), 1, "after the pause");
}
