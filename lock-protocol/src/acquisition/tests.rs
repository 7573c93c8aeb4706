//! The acquisition on virtual time, over a store whose replies the tests write.

use std::sync::Arc;

use super::*;
use crate::cleanup::{ReleaseOutcome, ReleaseRequest};
use crate::clock::ServerMs;
use crate::clock_sync::NotAfter;
use crate::fencing_token::FencingToken;
use crate::key::{LockKey, LockName};
use crate::kind::Kind;
use crate::lease::{Lease, LeaseConfig};
use crate::local_queue::{LocalPosition, ObservedExpiry};
use crate::lock_state::{AcquireReply, RawHolder};
use crate::loss::LossReason;
use crate::mailbox::Grant;
use crate::poll_schedule::HolderExpiry;
use crate::renew::Renew;
use crate::ttl::{Ttl, whole_millis};
use crate::unconfirmed::Unconfirmed;
use crate::wire::{Mode, OwnerValue};

mod actions;
mod attempts;
mod downgrades;
mod drops;
mod ends;
mod grants;
mod no_expiry;
mod outages;
mod waits;

use self::actions::*;

const TIMEOUT: u64 = 500;
const WAIT: u64 = 2_000;
const TTL: u64 = 3_000;
const HANDOVER_MS: u64 = 1_000;
/// The local time at the start, which is also the server's time.
const START: u64 = 10_000;
const ORIGIN: Origin = 7;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The moment so many milliseconds after the start.
fn at(ms: u64) -> Moment {
    Moment::from_millis(START + ms)
}

fn server(ms: u64) -> ServerMs {
    ServerMs::new(START + ms)
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FailedCommand(FailureClass);

impl Failure for FailedCommand {
    fn class(&self) -> FailureClass {
        self.0
    }
}

/// The other waiters of the manager, as the test wants them.
#[derive(Debug, Default)]
struct ScriptedPeers {
    is_behind: bool,
    last_observed: Option<ObservedExpiry>,
    last_token: Option<FencingToken>,
    entered: Vec<(Option<ObservedExpiry>, Option<FencingToken>)>,
    left: Vec<(Option<ObservedExpiry>, Option<FencingToken>)>,
}

impl Peers for ScriptedPeers {
    fn enter(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition {
        self.entered.push((observed_expiry, token));
        if self.is_behind {
            LocalPosition::Behind
        } else {
            LocalPosition::First
        }
    }

    fn leave(&mut self, observed_expiry: Option<ObservedExpiry>, token: Option<FencingToken>) {
        self.left.push((observed_expiry, token));
    }

    fn last_observed(&self) -> Option<ObservedExpiry> {
        self.last_observed
    }

    fn last_token(&self) -> Option<FencingToken> {
        self.last_token
    }
}

/// An acquisition, its peers, and the store that sends its commands.
struct Bench {
    acquisition: Acquisition<FailedCommand>,
    peers: ScriptedPeers,
    now: Moment,
    now_ms: u64,
    /// The last copy, and when it was sent.
    copy: Option<(SentCopy, Moment)>,
}

impl Bench {
    /// A caller that makes one attempt.
    fn attempt() -> Self {
        Self::new(|config| config)
    }

    /// A caller that waits for two seconds.
    fn waiter() -> Self {
        Self::waiter_for(WAIT)
    }

    fn waiter_for(wait: u64) -> Self {
        Self::new(|config| AcquireConfig {
            patience: Patience::Wait {
                started: at(0),
                deadline: at(wait),
                max_queue: QueueLimit::NONE,
            },
            ..config
        })
    }

    /// The settings of an attempt.
    fn config() -> AcquireConfig {
        AcquireConfig {
            key: LockKey::new("", &LockName::from("k")).unwrap(),
            lease_config: lease_config(),
            label: Arc::from(""),
            patience: Patience::OneAttempt {
                started: at(0),
                until: at(TIMEOUT),
            },
            outage_wait: None,
            origin: AcquireOrigin::New,
            lease_kind: LeaseKind::Renewed,
            command_timeout: ms(TIMEOUT),
            retry_interval: ms(100),
        }
    }

    fn new(change: impl FnOnce(AcquireConfig) -> AcquireConfig) -> Self {
        let config = Self::config();
        let owner_id = OwnerId::from_number(1);
        Self {
            acquisition: Acquisition::new(change(config), owner_id, Jitter::zero()),
            peers: ScriptedPeers::default(),
            now: at(0),
            now_ms: 0,
            copy: None,
        }
    }

    /// A waiter that the server has queued behind a holder whose lease ends in two seconds.
    fn queued() -> Self {
        let mut bench = Self::waiter();
        bench.start();
        bench.reply(queued(0, Some(2_000)));
        bench
    }

    fn pass(&mut self, ms: u64) -> &mut Self {
        self.to(self.now_ms + ms)
    }

    fn to(&mut self, ms: u64) -> &mut Self {
        assert!(ms >= self.now_ms, "time does not go back");
        self.now_ms = ms;
        self.now = at(ms);
        self
    }

    fn start(&mut self) -> NextAction<FailedCommand> {
        let action = self.acquisition.on_start(self.now);
        self.send(action)
    }

    /// Sends the acquire, if the action is one.
    fn send(&mut self, action: NextAction<FailedCommand>) -> NextAction<FailedCommand> {
        if let NextAction::Perform(Action::Acquire { .. }) = action {
            let copy = self.acquisition.sent_mut().on_send(SendContext {
                run_id: 0,
                origin: ORIGIN,
                mode: Mode::Subscribed,
                channel: &Arc::from("c"),
                lease: ms(HANDOVER_MS),
                now: self.now,
                not_after: NotAfter {
                    server_ms: server(self.now_ms),
                    not_after_ms: server(self.now_ms + TIMEOUT),
                },
                command_timeout: ms(TIMEOUT),
            });
            self.copy = Some((copy, self.now));
        }
        action
    }

    /// The server replies to the last copy.
    fn reply(&mut self, reply: AcquireReply) -> NextAction<FailedCommand> {
        let (copy, sent) = self.copy.take().expect("an acquire was sent");
        let times = ReplyTimes {
            sent,
            received: self.now,
            server_us: (START + self.now_ms) * 1_000,
            run_id: 0,
        };
        let outcome = self.acquisition.sent_mut().on_reply(&copy, reply, times);
        let action = self
            .acquisition
            .on_reply(outcome, self.now, &mut self.peers);
        self.send(action)
    }

    /// The lock is busy, and its release is announced to all waiters.
    fn busy_until_announced(&mut self, ends_ms: u64) -> NextAction<FailedCommand> {
        let (copy, _) = self.copy.take().expect("an acquire was sent");
        self.acquisition.sent_mut().on_any_reply(&copy);
        self.acquisition.sent_mut().on_busy();
        let outcome = AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::Notified { ends: at(ends_ms) },
            holder: None,
        };
        let action = self
            .acquisition
            .on_reply(outcome, self.now, &mut self.peers);
        self.send(action)
    }

    /// The last acquire fails, and the connection is up.
    fn fail(&mut self, class: FailureClass) -> NextAction<FailedCommand> {
        self.fail_with(class, Connectivity::Up)
    }

    fn fail_with(
        &mut self,
        class: FailureClass,
        connectivity: Connectivity,
    ) -> NextAction<FailedCommand> {
        let (copy, _) = self.copy.take().expect("an acquire was sent");
        let has_reply = !matches!(class, FailureClass::Unreachable | FailureClass::TimedOut);
        if has_reply {
            self.acquisition.sent_mut().on_error_reply(&copy, class);
        }
        let action = self
            .acquisition
            .on_no_reply(FailedCommand(class), connectivity, self.now);
        self.send(action)
    }

    fn renewed(&mut self, outcome: Option<RenewOutcome>) -> NextAction<FailedCommand> {
        let up = Connectivity::Up;
        let action = self.acquisition.on_renew_reply(
            outcome.ok_or(FailedCommand(FailureClass::TimedOut)),
            up,
            self.now,
            &mut self.peers,
        );
        self.send(action)
    }

    fn notify(&mut self, notification: Notification) -> NextAction<FailedCommand> {
        let action = self
            .acquisition
            .on_notification(notification, self.now, &mut self.peers);
        self.send(action)
    }

    fn timeout(&mut self) -> NextAction<FailedCommand> {
        let action = self.acquisition.on_timeout(self.now);
        self.send(action)
    }

    fn reconnect(&mut self, result: Result<(), FailureClass>) -> NextAction<FailedCommand> {
        let result = result.map_err(FailedCommand);
        let action = self.acquisition.on_reconnect(result, self.now);
        self.send(action)
    }

    fn cancelled(&mut self, outcome: Option<ReleaseOutcome>) -> NextAction<FailedCommand> {
        let action = self.acquisition.on_cancel_reply(outcome.as_ref(), self.now);
        self.send(action)
    }

    fn start_over(&mut self, number: u128) -> NextAction<FailedCommand> {
        let owner_id = OwnerId::from_number(number);
        let action = self.acquisition.on_start_over(owner_id, self.now);
        self.send(action)
    }

    fn drop_it(&mut self) -> DropAction {
        self.acquisition.on_drop(&mut self.peers)
    }

    /// Drops the acquisition, whose lock or entry may be on the server.
    #[track_caller]
    fn cancel_on_drop(&mut self) -> ReleaseRequest {
        match self.drop_it() {
            DropAction::Cancel(request) => request,
            other => panic!("no cancel: {other:?}"),
        }
    }
}

fn lease_config() -> LeaseConfig {
    LeaseConfig {
        ttl: Ttl::new(ms(TTL)).unwrap(),
        renew: Renew::Auto,
        max_hold: None,
        margin: Duration::ZERO,
        kind: Kind::Exclusive,
    }
}

// Replies and notifications.

/// A holder with token 5.
fn holder(remaining_ms: Option<u64>) -> RawHolder {
    let value = OwnerValue {
        owner_id: OwnerId::from_number(99),
        token: token(5),
        since_ms: server(0),
        label: "other".to_owned(),
    };
    RawHolder {
        remaining_ms,
        value: value.to_string(),
    }
}

fn queued(rank: u64, remaining_ms: Option<u64>) -> AcquireReply {
    AcquireReply::Queued {
        rank,
        holder: holder(remaining_ms),
    }
}

fn busy(remaining_ms: Option<u64>) -> AcquireReply {
    AcquireReply::Busy {
        holder: holder(remaining_ms),
    }
}

fn held(remaining_ms: u64) -> AcquireReply {
    AcquireReply::Held {
        token: token(6),
        remaining_ms,
    }
}

/// A renewal that was sent at this time found the lock.
fn renewal(sent_ms: u64) -> RenewOutcome {
    RenewOutcome::Held {
        token: Some(token(6)),
        sent: at(sent_ms),
        remaining: ms(TTL),
    }
}

/// A grant that arrives at once, and whose lease ends for certain at this time.
fn grant(received_ms: u64, until_ms: Option<u64>) -> Grant {
    Grant {
        token: token(6),
        received: at(received_ms),
        lease: ms(HANDOVER_MS),
        until: until_ms.map(at),
    }
}

/// Until when a copy of the acquire may take effect, in the time of the server.
fn until_ms(request: &ReleaseRequest) -> Option<ServerMs> {
    request.unconfirmed.map(Unconfirmed::until_ms)
}

fn not_owner(server_ms: u64) -> ReleaseOutcome {
    ReleaseOutcome::without_waiters(false, server(server_ms))
}
