//! A virtual caller that acquires: performs the actions of its acquisition.

use std::time::Duration;

use super::{
    Acquiring, Awaited, Caller, ClientStep, Effect, Ended, Holding, Lapse, MessageLane, Reply,
    Request,
};
use crate::acquisition::{
    AcquireConfig, AcquireOrigin, AcquireResult, Acquisition, Action, DropAction, FailureClass,
    NextAction, RenewOutcome, RenewReason, ReplyTimes, SendContext,
};
use crate::backoff::Jitter;
use crate::cleanup::{AwaitedRelease, AwaitedStep, Cleanup, Validity};
use crate::clock::Moment;
use crate::local_queue::Peers;
use crate::mailbox::{Mailbox, Notification};

impl<P: Peers> ClientStep<'_, P> {
    /// Begins to acquire.
    pub(in crate::tests) fn start(&mut self, config: AcquireConfig, jitter: Jitter) {
        let owner_id = match &config.origin {
            AcquireOrigin::New | AcquireOrigin::Exchange { .. } => (self.next_owner_id)(),
            AcquireOrigin::Downgrade { held, .. } => held.owner_id,
        };
        let mut acquiring = Acquiring {
            acquisition: Acquisition::new(config, owner_id, jitter),
            mailbox: Mailbox::default(),
            awaited: Awaited::Notification { until: self.now },
        };
        let action = acquiring.acquisition.on_start(self.now);
        self.perform(acquiring, action);
    }

    /// Performs actions until the acquisition waits or is done.
    fn perform(&mut self, mut acquiring: Acquiring, mut next: NextAction<Lapse>) {
        let now = self.now;
        loop {
            let action = match next {
                NextAction::Perform(action) => action,
                NextAction::Done(result) => {
                    self.finish(acquiring, result);
                    return;
                }
            };
            next = match action {
                Action::Acquire { limit } => {
                    self.send_acquire(&mut acquiring, limit);
                    break;
                }
                Action::Renew { limit, reason } => {
                    if reason != RenewReason::OutOfMemory {
                        self.effects.push(Effect::Confirms);
                    }
                    let sent = acquiring.acquisition.sent();
                    let (ttl_ms, kind) =
                        (sent.lease_config.ttl.as_millis(), sent.lease_config.kind);
                    self.send(
                        MessageLane::Acquire,
                        sent.owner_id,
                        Request::Renew { ttl_ms, kind },
                    );
                    let until = now.plus(limit);
                    acquiring.awaited = Awaited::Renewal { sent: now, until };
                    break;
                }
                Action::Cancel { limit } => {
                    let request = acquiring.acquisition.sent().release_request();
                    let cleanup = Cleanup::new(request, now, self.manager.command_timeout);
                    let deadline = now.plus(limit);
                    let mut release = AwaitedRelease::new(cleanup, deadline, Validity::Lost);
                    let step = release.on_start(now);
                    match self.perform_cancel(&mut acquiring, release, step) {
                        Some(next) => next,
                        None => break,
                    }
                }
                Action::Wait { until } => match acquiring.mailbox.take() {
                    Some(notification) => {
                        let peers = &mut *self.peers;
                        acquiring
                            .acquisition
                            .on_notification(notification, now, peers)
                    }
                    None if until <= now => acquiring.acquisition.on_timeout(now),
                    None => {
                        acquiring.awaited = Awaited::Notification { until };
                        break;
                    }
                },
                Action::Reconnect { until } => {
                    let Some(notification) = acquiring.mailbox.take() else {
                        acquiring.awaited = Awaited::Connection { until };
                        break;
                    };
                    let peers = &mut *self.peers;
                    acquiring
                        .acquisition
                        .on_notification(notification, now, peers)
                }
                Action::StartOver => {
                    self.effects.push(Effect::StartedOver);
                    self.end(&mut acquiring);
                    acquiring.mailbox = Mailbox::default();
                    let owner_id = (self.next_owner_id)();
                    acquiring.acquisition.on_start_over(owner_id, now)
                }
            };
        }
        *self.caller = Caller::Acquiring(acquiring);
    }

    fn send(&mut self, lane: MessageLane, owner_id: crate::owner_id::OwnerId, request: Request) {
        self.effects.push(Effect::Send {
            lane,
            owner_id,
            request,
        });
    }

    fn send_acquire(&mut self, acquiring: &mut Acquiring, limit: Duration) {
        let now = self.now;
        let timeout = self.manager.command_timeout;
        let not_after = self.manager.clock_sync().not_after(now, timeout);
        let sent = acquiring.acquisition.sent_mut();
        let lease = self.manager.handover_lease(sent.lease_config.ttl);
        let copy = sent.on_send(SendContext {
            origin: self.manager.origin,
            run_id: self.manager.first.run_id,
            mode: self.manager.mode,
            channel: &self.manager.channel,
            lease,
            now,
            not_after,
            command_timeout: timeout,
        });
        let request = Request::Acquire {
            ttl_ms: sent.lease_config.ttl.as_millis(),
            floor_us: self.manager.floor_us,
            not_after_ms: not_after.not_after_ms,
            entry: sent.entry().cloned(),
            kind: sent.lease_config.kind,
            purpose: sent.purpose(),
            earlier: sent.earlier().cloned().collect(),
            max_queue: sent.max_queue.get(),
        };
        let owner_id = sent.owner_id;
        self.send(MessageLane::Acquire, owner_id, request);
        acquiring.awaited = Awaited::Acquire {
            sent: now,
            until: now.plus(limit),
            copy,
        };
    }

    /// Performs a step of the cancel at the end of a wait. Returns the next action once the cancel is
    /// done.
    #[expect(clippy::needless_pass_by_value, reason = "a step is performed once")]
    fn perform_cancel(
        &mut self,
        acquiring: &mut Acquiring,
        release: AwaitedRelease<Lapse>,
        step: AwaitedStep<Lapse>,
    ) -> Option<NextAction<Lapse>> {
        match step {
            AwaitedStep::Send { limit } => {
                let request = Request::release(release.request(), self.manager.floor_us, self.now);
                self.send(MessageLane::Release, release.request().owner_id, request);
                let until = self.now.plus(limit);
                acquiring.awaited = Awaited::Cancel { release, until };
                None
            }
            AwaitedStep::WaitUntil(until) => {
                acquiring.awaited = Awaited::CancelPause { release, until };
                None
            }
            AwaitedStep::Done(result) => {
                let outcome = result.ok();
                let acquisition = &mut acquiring.acquisition;
                Some(acquisition.on_cancel_reply(outcome.as_ref(), self.now))
            }
        }
    }

    /// Ends the use of the owner id.
    fn end(&mut self, acquiring: &mut Acquiring) {
        let owner_id = acquiring.acquisition.sent().owner_id;
        self.effects.push(Effect::StopListening { owner_id });
        match acquiring.acquisition.on_drop(self.peers) {
            DropAction::LeaveToGuard => {}
            DropAction::Forget => self.effects.push(Effect::CleanedUp { owner_id }),
            DropAction::Cancel(request) => self.manager.submit(request, self.now),
        }
    }

    fn finish(&mut self, mut acquiring: Acquiring, result: AcquireResult<Lapse>) {
        self.end(&mut acquiring);
        let ended = match result {
            AcquireResult::Acquired {
                token,
                lease,
                release_request,
            } => {
                let token = token.expect("native locks have tokens");
                *self.caller = Caller::Holding(Holding {
                    lease,
                    request: release_request,
                    token,
                    since: self.now,
                    renewing: None,
                });
                self.effects.push(Effect::Acquired { token });
                return;
            }
            AcquireResult::Contended { .. } => Ended::Contended,
            AcquireResult::QueueFull { .. } => Ended::Refused,
            AcquireResult::TimedOut { .. } => Ended::TimedOut,
            AcquireResult::Failed(_) => Ended::Failed,
        };
        *self.caller = Caller::Done;
        self.effects.push(Effect::NotAcquired(ended));
        self.manager.run_cleanups(self.now, self.effects);
    }

    fn take_acquiring(&mut self) -> Option<Acquiring> {
        self.caller.acquiring()?;
        match std::mem::replace(self.caller, Caller::Idle) {
            Caller::Acquiring(acquiring) => Some(acquiring),
            _ => None,
        }
    }

    /// Handles the reply to the last command of the acquisition.
    pub(in crate::tests) fn on_reply(&mut self, reply: Reply, server_us: u64) {
        let now = self.now;
        let Some(mut acquiring) = self.take_acquiring() else {
            return;
        };
        let awaited = std::mem::replace(&mut acquiring.awaited, Awaited::Connection { until: now });
        let acquisition = &mut acquiring.acquisition;
        let action = match (awaited, reply) {
            (Awaited::Acquire { sent, copy, .. }, Reply::Acquire(reply)) => {
                self.manager.record(sent, server_us);
                let times = ReplyTimes {
                    sent,
                    received: now,
                    server_us,
                    run_id: self.manager.first.run_id,
                };
                let outcome = acquisition.sent_mut().on_reply(&copy, reply, times);
                acquisition.on_reply(outcome, now, self.peers)
            }
            (Awaited::Renewal { sent, .. }, Reply::Renew(reply)) => {
                self.manager.record(sent, server_us);
                let result = Ok(RenewOutcome::from_reply(reply, None, sent));
                let connectivity = self.manager.connectivity;
                acquisition.on_renew_reply(result, connectivity, now, self.peers)
            }
            (Awaited::Cancel { mut release, .. }, reply @ Reply::Release(_)) => {
                let step =
                    release.on_reply(reply.as_released(self.manager.first.run_id, server_us), now);
                let Some(action) = self.perform_cancel(&mut acquiring, release, step) else {
                    *self.caller = Caller::Acquiring(acquiring);
                    return;
                };
                action
            }
            (awaited, reply) => panic!("{reply:?} is not awaited: {awaited:?}"),
        };
        self.perform(acquiring, action);
    }

    /// Handles the last command of the acquisition, which failed.
    pub(in crate::tests) fn on_no_reply(&mut self, class: FailureClass) {
        let now = self.now;
        let Some(mut acquiring) = self.take_acquiring() else {
            return;
        };
        let owner_id = acquiring.acquisition.sent().owner_id;
        let connectivity = self.manager.connectivity;
        let failure = Lapse(class);
        let awaited = std::mem::replace(&mut acquiring.awaited, Awaited::Connection { until: now });
        let acquisition = &mut acquiring.acquisition;
        let mut lane = MessageLane::Acquire;
        let action = match awaited {
            Awaited::Acquire { .. } => Some(acquisition.on_no_reply(failure, connectivity, now)),
            Awaited::Renewal { .. } => {
                Some(acquisition.on_renew_reply(Err(failure), connectivity, now, self.peers))
            }
            Awaited::Cancel { mut release, .. } => {
                lane = MessageLane::Release;
                let step = release.on_failure(failure, now);
                self.perform_cancel(&mut acquiring, release, step)
            }
            awaited => panic!("no command is in flight: {awaited:?}"),
        };
        // Before the next command, whose reply is awaited.
        self.stop_awaiting(lane, owner_id);
        match action {
            Some(action) => self.perform(acquiring, action),
            None => *self.caller = Caller::Acquiring(acquiring),
        }
    }

    /// Handles the error that the server returned for the last command of the acquisition.
    pub(in crate::tests) fn on_error_reply(&mut self, class: FailureClass) {
        if let Caller::Acquiring(acquiring) = &mut *self.caller
            && let Awaited::Acquire { copy, .. } = &acquiring.awaited
        {
            acquiring.acquisition.sent_mut().on_error_reply(copy, class);
        }
        self.on_no_reply(class);
    }

    fn stop_awaiting(&mut self, lane: MessageLane, owner_id: crate::owner_id::OwnerId) {
        let stop = Effect::StopAwaiting { lane, owner_id };
        // A cancel that is sent again at once is already among the effects.
        let at = self.effects.iter().position(|effect| {
            matches!(effect, Effect::Send { lane: sent, owner_id: by, .. } if *sent == lane && *by == owner_id)
        });
        self.effects.insert(at.unwrap_or(self.effects.len()), stop);
    }

    /// Handles a notification.
    pub(in crate::tests) fn on_notification(&mut self, notification: Notification) {
        let Some(mut acquiring) = self.take_acquiring() else {
            return;
        };
        acquiring.mailbox.put(notification);
        let action = match acquiring.awaited {
            Awaited::Notification { until } => Action::Wait { until },
            Awaited::Connection { until } => Action::Reconnect { until },
            _ => {
                *self.caller = Caller::Acquiring(acquiring);
                return;
            }
        };
        self.perform(acquiring, NextAction::Perform(action));
    }

    /// Handles the end of a pause. The caller may come early.
    pub(in crate::tests) fn on_pause_end(&mut self) {
        let now = self.now;
        let Some(mut acquiring) = self.take_acquiring() else {
            return;
        };
        let awaited = std::mem::replace(&mut acquiring.awaited, Awaited::Connection { until: now });
        let action = match awaited {
            Awaited::Notification { .. } => Some(acquiring.acquisition.on_timeout(now)),
            Awaited::Connection { .. } => {
                let failure = Lapse(FailureClass::Unreachable);
                Some(acquiring.acquisition.on_reconnect(Err(failure), now))
            }
            Awaited::CancelPause { mut release, .. } => {
                let step = release.on_timeout(now);
                self.perform_cancel(&mut acquiring, release, step)
            }
            awaited => {
                acquiring.awaited = awaited;
                None
            }
        };
        match action {
            Some(action) => self.perform(acquiring, action),
            None => *self.caller = Caller::Acquiring(acquiring),
        }
    }

    /// Handles a new connection.
    pub(in crate::tests) fn on_connected(&mut self) {
        if let Some(mut acquiring) = self.take_acquiring() {
            if let Awaited::Connection { .. } = acquiring.awaited {
                let action = acquiring.acquisition.on_reconnect(Ok(()), self.now);
                self.perform(acquiring, action);
            } else {
                *self.caller = Caller::Acquiring(acquiring);
            }
        }
    }

    /// Drops the future of the acquisition.
    pub(in crate::tests) fn drop_future(&mut self) {
        let Some(mut acquiring) = self.take_acquiring() else {
            return;
        };
        let owner_id = acquiring.acquisition.sent().owner_id;
        for lane in [MessageLane::Acquire, MessageLane::Release] {
            self.effects.push(Effect::StopAwaiting { lane, owner_id });
        }
        self.end(&mut acquiring);
        *self.caller = Caller::Done;
        self.effects.push(Effect::NotAcquired(Ended::Dropped));
        self.manager.run_cleanups(self.now, self.effects);
    }

    /// Returns the moment until which a command is awaited.
    pub(in crate::tests) fn command_until(&self) -> Option<Moment> {
        let awaited = &self.caller.acquiring()?.awaited;
        awaited.is_reply().then(|| awaited.until())
    }
}
