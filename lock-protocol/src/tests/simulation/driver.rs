//! Performs the steps of the virtual clients: turns effects into packets, and packets, failures and
//! timers into events.

use super::link::{Addressee, Heading, Packet, Purpose, SentCommand};
use super::process::CleanupCall;
use super::sabotage::Sabotage;
use super::task::{AwaitedCall, CallLane, Work};
use super::{MS, Simulation, Timed};
use crate::acquisition::FailureClass;
use crate::fencing_token::FencingToken;
use crate::local_queue::{LocalPosition, LocalQueue, ObservedExpiry, Peers, QueuePlace};
use crate::mailbox::Notification;
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{
    Awaited, Caller, ClientStep, Effect, MessageLane, Reply, Request,
};

/// A waiter's place among the waiters of its process, as in `runtime::notifications`.
pub(super) struct Seat<'a> {
    queue: &'a mut LocalQueue<usize>,
    place: &'a mut Option<QueuePlace>,
    task: usize,
    is_waiter: bool,
    /// The task that is the first waiter now.
    first: &'a mut Option<usize>,
}

impl Peers for Seat<'_> {
    fn enter(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition {
        if !self.is_waiter {
            return LocalPosition::First;
        }
        let (queue, task) = (&mut *self.queue, self.task);
        let place = *self.place.get_or_insert_with(|| queue.enter(task));
        queue.observe(observed_expiry, token);
        queue.local_position(place)
    }

    fn leave(&mut self, observed_expiry: Option<ObservedExpiry>, token: Option<FencingToken>) {
        let Some(place) = self.place.take() else {
            return;
        };
        self.queue.observe(observed_expiry, token);
        let (_, next) = self.queue.leave(place);
        if let Some(next) = next {
            *self.first = Some(*next);
        }
        if self.queue.is_empty() {
            *self.queue = LocalQueue::default();
        }
    }

    fn last_observed(&self) -> Option<ObservedExpiry> {
        self.queue.last_observed()
    }

    fn last_token(&self) -> Option<FencingToken> {
        self.queue.last_token()
    }
}

impl Simulation {
    pub(super) fn step(
        &mut self,
        index: usize,
        task: usize,
        act: impl FnOnce(&mut ClientStep<'_, Seat<'_>>),
    ) {
        self.use_link(index, Purpose::Callers);
        self.step_with(index, task, act);
    }

    pub(super) fn step_with(
        &mut self,
        index: usize,
        task: usize,
        act: impl FnOnce(&mut ClientStep<'_, Seat<'_>>),
    ) {
        let process = &mut self.processes[index];
        let now = process.clock.at(self.now);
        let of = &mut process.tasks[task];
        let mut first = None;
        let mut effects = std::mem::take(&mut self.effects);
        let random = &mut self.random;
        let mut step = ClientStep {
            now,
            caller: &mut of.caller,
            manager: &mut process.manager,
            peers: &mut Seat {
                queue: &mut process.queues[of.key],
                place: &mut of.place,
                task,
                is_waiter: of.is_waiter,
                first: &mut first,
            },
            effects: &mut effects,
            next_owner_id: &mut || Self::new_owner_id(random),
        };
        act(&mut step);
        for effect in effects.drain(..) {
            self.apply(index, Some(task), effect);
        }
        self.effects = effects;
        self.end_reconnect(index, task);
        self.check_loss(index, task);
        self.plan(index, task);
        self.plan_worker(index);
        if let Some(first) = first {
            self.notify_first(index, first);
        }
    }

    /// Continues a task that waits for a connection which is there.
    fn end_reconnect(&mut self, index: usize, task: usize) {
        let link = self.processes[index].link(Purpose::Callers);
        let is_up = link.is_some_and(|id| self.links[id].first().is_some());
        let acquiring = self.processes[index].tasks[task].caller.acquiring();
        let waits = acquiring
            .is_some_and(|acquiring| matches!(acquiring.awaited, Awaited::Connection { .. }));
        if is_up && waits {
            self.step(index, task, |step| step.on_connected());
        }
    }

    fn notify_first(&mut self, index: usize, task: usize) {
        self.step(index, task, |step| {
            step.on_notification(Notification::First);
        });
    }

    pub(super) fn apply(&mut self, index: usize, task: Option<usize>, effect: Effect) {
        match (effect, task) {
            (
                Effect::Send {
                    lane,
                    owner_id,
                    request,
                },
                task,
            ) => self.send_command(index, task, lane, owner_id, request),
            (Effect::StopAwaiting { lane, owner_id }, task) => {
                let process = &mut self.processes[index];
                let calls = &mut process.cleanup_calls;
                let before = calls.len();
                if lane == MessageLane::Release {
                    calls.retain(|call| call.owner_id != owner_id);
                }
                if let (Some(task), true) = (task, calls.len() == before) {
                    process.tasks[task].calls[CallLane::of(lane) as usize] = None;
                }
            }
            (Effect::Acquired { token }, Some(task)) => self.on_acquired(index, task, token),
            (Effect::NotAcquired(ended), Some(task)) => self.on_not_acquired(index, task, ended),
            (Effect::Extended, Some(task)) => self.record_extension(index, task),
            (Effect::CleanedUp { owner_id }, _) => self.on_cleaned_up(owner_id),
            (Effect::StartedOver, _) => self.figures.late_grants += 1,
            (Effect::Confirms, _) => self.figures.confirmations += 1,
            (Effect::CancelRepeated, _) => self.figures.repeated_cancels += 1,
            (
                Effect::StopListening { .. }
                | Effect::Acquired { .. }
                | Effect::NotAcquired(_)
                | Effect::Extended,
                _,
            ) => {}
        }
    }

    pub(super) fn send_command(
        &mut self,
        index: usize,
        task: Option<usize>,
        lane: MessageLane,
        owner_id: OwnerId,
        mut request: Request,
    ) {
        self.next_call += 1;
        let call = self.next_call;
        let process = &self.processes[index];
        let sent = process.clock.at(self.now);
        let in_background = (lane == MessageLane::Release)
            .then(|| {
                let cleanups = &process.manager.cleanups;
                cleanups.iter().find(|running| {
                    running.until.is_some() && running.cleanup.request().owner_id == owner_id
                })
            })
            .flatten();
        let (addressee, key, link) = if let Some(running) = in_background {
            let release = running.cleanup.request();
            // A cancel follows its acquire.
            let origin = release.origin.and_then(|origin| origin.checked_sub(1));
            let same = origin.and_then(|id| usize::try_from(id).ok());
            let same = same.filter(|id| self.links[*id].first().is_some());
            let link = same.or(process.link(Purpose::Worker));
            let keys = self.keys.iter();
            let key = keys.clone().position(|key| *key == release.key);
            let key = key.expect("the key is one of the episode");
            (Addressee::Cleanup(owner_id), key, link)
        } else {
            let task = task.expect("only releases run in the background");
            let purpose = match lane {
                MessageLane::Renew => Purpose::Worker,
                MessageLane::Acquire | MessageLane::Release => Purpose::Callers,
            };
            let key = process.tasks[task].key;
            (Addressee::Task(task, lane), key, process.link(purpose))
        };
        let link = link.filter(|id| self.links[*id].first().is_some());
        self.tell_about(key, || {
            let (owner, what) = (owner_id.short(), super::story::named(&request));
            format!("process {index}, {addressee:?} on {link:?}: {owner} {what}")
        });
        let process = &mut self.processes[index];
        match addressee {
            Addressee::Cleanup(_) => process.cleanup_calls.push(CleanupCall {
                owner_id,
                call,
                link,
                sent,
            }),
            Addressee::Task(task, lane) => {
                let calls = &mut process.tasks[task].calls;
                calls[CallLane::of(lane) as usize] = Some(AwaitedCall { call, link, sent });
            }
        }
        let Some(id) = link else {
            let at = self.now + MS / 2 + self.random.number() % MS;
            let process = index;
            self.push(
                at,
                Timed::Unsent {
                    process,
                    addressee,
                    call,
                },
            );
            return;
        };
        if let (Request::Release { floor_us, .. }, Some(first)) =
            (&mut request, self.links[id].first())
        {
            *floor_us = first.server_us;
        }
        let command = Box::new(SentCommand {
            call,
            addressee,
            key,
            owner_id,
            request,
        });
        self.send(id, Heading::ToServer, Packet::Command(command));
    }

    /// Handles a reply, unless it is awaited no more.
    pub(super) fn on_reply(
        &mut self,
        index: usize,
        link: usize,
        addressee: Addressee,
        call: u64,
        reply: &Reply,
        server_us: u64,
    ) {
        match addressee {
            Addressee::Task(task, lane) => {
                if !self.takes(index, task, lane, call) {
                    return;
                }
                self.use_link(index, self.links[link].purpose);
                if self.sabotage == Some(Sabotage::LeaseFromArrival) {
                    self.forget_send_time(index, task);
                }
                let of = &self.processes[index].tasks[task];
                match (lane, &of.work) {
                    (MessageLane::Release, Work::Releasing(_)) => {
                        self.on_release_reply(index, task, reply, server_us);
                    }
                    (MessageLane::Renew, _) => {
                        self.step_with(index, task, |step| step.on_renewal_reply(reply, server_us));
                        self.on_renewed(index, task);
                    }
                    _ => self.step_with(index, task, |step| {
                        step.on_reply(reply.clone(), server_us);
                    }),
                }
            }
            Addressee::Cleanup(owner_id) => {
                let Some(known) = self.take_cleanup_call(index, call) else {
                    return;
                };
                self.use_link(index, self.links[link].purpose);
                let final_us = match self.sabotage {
                    Some(Sabotage::CancelFinalAtOnce) => u64::MAX,
                    _ => server_us,
                };
                let process = &mut self.processes[index];
                let now = process.clock.at(self.now);
                process.manager.record(known.sent, server_us);
                let mut effects = Vec::new();
                let manager = &mut process.manager;
                manager.on_release_reply(owner_id, reply, final_us, now, &mut effects);
                self.apply_worker(index, effects);
            }
        }
    }

    fn forget_send_time(&mut self, index: usize, task: usize) {
        let process = &mut self.processes[index];
        let now = process.clock.at(self.now);
        match &mut process.tasks[task].caller {
            Caller::Acquiring(acquiring) => match &mut acquiring.awaited {
                Awaited::Acquire { sent, .. } | Awaited::Renewal { sent, .. } => *sent = now,
                _ => {}
            },
            Caller::Holding(holding) => {
                if let Some((sent, _)) = &mut holding.renewing {
                    *sent = now;
                }
            }
            _ => {}
        }
    }

    fn takes(&mut self, index: usize, task: usize, lane: MessageLane, call: u64) -> bool {
        let Some(of) = self.processes[index].tasks.get_mut(task) else {
            return false;
        };
        let known = &mut of.calls[CallLane::of(lane) as usize];
        known.take_if(|known| known.call == call).is_some()
    }

    fn take_cleanup_call(&mut self, index: usize, call: u64) -> Option<CleanupCall> {
        let calls = &mut self.processes[index].cleanup_calls;
        let at = calls.iter().position(|known| known.call == call)?;
        Some(calls.swap_remove(at))
    }

    /// Handles a command that failed: its connection broke, or the server refused it.
    pub(super) fn on_failure(
        &mut self,
        index: usize,
        addressee: Addressee,
        call: u64,
        class: FailureClass,
    ) {
        match addressee {
            Addressee::Task(task, lane) => {
                if !self.takes(index, task, lane, call) {
                    return;
                }
                let of = &self.processes[index].tasks[task];
                match (lane, &of.work) {
                    (MessageLane::Release, Work::Releasing(_)) => {
                        self.on_release_failure(index, task, class);
                    }
                    (MessageLane::Renew, _) => {
                        self.step(index, task, |step| step.on_no_renewal_reply());
                        self.on_renewal_failed(index, task);
                    }
                    _ => self.step(index, task, |step| match class {
                        FailureClass::Unreachable | FailureClass::TimedOut => {
                            step.on_no_reply(class);
                        }
                        _ => step.on_error_reply(class),
                    }),
                }
            }
            Addressee::Cleanup(owner_id) => {
                if self.take_cleanup_call(index, call).is_some() {
                    self.on_cleanup_failure(index, owner_id, class);
                }
            }
        }
    }
}
