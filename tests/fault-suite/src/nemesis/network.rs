//! The network between clients and server is cut, slow, or loses bytes.

use test_support::{Direction, Lost};

use super::{Affected, Context, each};
use crate::dialects;
use crate::history::SLOTS;

pub(super) fn net_cut(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        for slot in context.some_slots() {
            context.environment.proxies[slot].cut_all();
        }
        context.rest(10, 250);
    }
    Affected::All
}

/// How many of the processes a network fault can reach.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// The other half can then acquire the locks that this half loses.
    Half,
}

/// A network fault between some of the processes and the server, undone at the end.
fn between(
    context: &mut Context<'_>,
    reach: Reach,
    mut act: impl FnMut(&mut Context<'_>, &[usize]) -> (u64, u64),
) -> Affected {
    let slots = match reach {
        Reach::All => context.some_slots(),
        Reach::Half => context.random.some(SLOTS as usize, 2),
    };
    while context.goes_on() {
        let (from, to) = act(context, &slots);
        context.rest(from, to);
    }
    for slot in &slots {
        context.environment.proxies[*slot].forward();
    }
    Affected::Slots(slots)
}

pub(super) fn net_delay(context: &mut Context<'_>) -> Affected {
    between(context, Reach::All, |context, slots| {
        for slot in slots {
            let delay = context.random.millis(2, 250);
            context.environment.proxies[*slot].delay_round_trip(delay);
        }
        (100, 600)
    })
}

/// Replies that arrive when the granted lease has expired or nearly expired.
pub(super) fn net_delay_long(context: &mut Context<'_>) -> Affected {
    between(context, Reach::Half, |context, slots| {
        for slot in slots {
            let delay = context.random.millis(600, 1_500);
            context.environment.proxies[*slot].delay(Direction::ToClient, delay);
        }
        (500, 1_500)
    })
}

pub(super) fn net_black_hole(context: &mut Context<'_>) -> Affected {
    between(context, Reach::Half, |context, slots| {
        each(slots, |slot| context.environment.proxies[slot].black_hole());
        context.rest(300, 1_800);
        each(slots, |slot| context.environment.proxies[slot].forward());
        (30, 300)
    })
}

fn lose(context: &mut Context<'_>, what: Lost) -> Affected {
    let requests = dialects::requests(context.environment.crew.dialect);
    between(context, Reach::All, |context, slots| {
        for slot in slots {
            let request = context.random.pick(requests);
            context.environment.proxies[*slot].lose_next(what, request);
        }
        (5, 80)
    })
}

pub(super) fn net_lost_reply(context: &mut Context<'_>) -> Affected {
    lose(context, Lost::Reply)
}

pub(super) fn net_lost_request(context: &mut Context<'_>) -> Affected {
    lose(context, Lost::Request)
}

/// One connection of each process goes silent in one direction, and stays open.
pub(super) fn net_mute(context: &mut Context<'_>) -> Affected {
    between(context, Reach::All, |context, slots| {
        for slot in slots {
            let proxy = &context.environment.proxies[*slot];
            let direction = *context
                .random
                .pick(&[Direction::ToServer, Direction::ToClient]);
            // The three youngest connections are open, if any are.
            let accepted = proxy.accepted();
            if accepted > 0 {
                let back = context.random.below(accepted.min(3)) + 1;
                proxy.mute(accepted - back, direction);
            }
        }
        (400, 1_500)
    })
}

pub(super) fn net_refused(context: &mut Context<'_>) -> Affected {
    between(context, Reach::All, |context, slots| {
        for slot in slots {
            context.environment.proxies[*slot].refuse();
            context.environment.proxies[*slot].cut_all();
        }
        context.rest(100, 1_500);
        each(slots, |slot| context.environment.proxies[slot].forward());
        (50, 300)
    })
}
