//! Client processes are paused and killed.

use super::{Affected, Context, each};
use crate::history::SLOTS;

pub(super) fn client_pause(context: &mut Context<'_>) -> Affected {
    let slots = context.random.some(SLOTS as usize, 2);
    while context.goes_on() {
        each(&slots, |slot| context.environment.crew.stop(slot));
        context.rest(50, 700);
        each(&slots, |slot| context.environment.crew.cont(slot));
        context.rest(20, 200);
    }
    Affected::Slots(slots)
}

pub(super) fn client_pause_long(context: &mut Context<'_>) -> Affected {
    // Only one process: the others have to continue after its handover leases and its lease expire.
    let slots = vec![context.random.below(SLOTS as usize)];
    each(&slots, |slot| context.environment.crew.stop(slot));
    context.rest(1_300, 2_200);
    each(&slots, |slot| context.environment.crew.cont(slot));
    Affected::Slots(slots)
}

pub(super) fn client_kill(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let slot = context.random.below(SLOTS as usize);
        context.environment.crew.kill(slot);
        context.rest(0, 500);
        context.environment.crew.spawn(slot);
        context.rest(300, 800);
    }
    Affected::All
}

/// Killed while its commands and their replies are in flight.
pub(super) fn client_kill_midway(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let slot = context.random.below(SLOTS as usize);
        let delay = context.random.millis(20, 250);
        context.environment.proxies[slot].delay_round_trip(delay);
        context.rest(50, 400);
        context.environment.crew.kill(slot);
        context.rest(0, 300);
        context.environment.proxies[slot].forward();
        context.environment.crew.spawn(slot);
        context.rest(200, 500);
    }
    Affected::All
}
