//! What answers in the server's place, and where a name or an address leads.

use std::time::Duration;

use test_support::RedisServer;

use super::{Affected, Context, each};
use crate::environment::{LASTING, Names};
use crate::history::SLOTS;

/// The beginnings of endless replies, and what follows: a line, an array of numbers, and a string.
pub(crate) const ENDLESS: [(&str, &str); 3] = [
    ("+", "without an end"),
    ("*20000\r\n", ":1\r\n"),
    ("$8589934592\r\n", "x"),
];

/// Half of the processes get endless replies. The other half can acquire the locks that these lose.
pub(super) fn replies_endless(context: &mut Context<'_>) -> Affected {
    let slots = context.random.some(SLOTS as usize, 2);
    while context.goes_on() {
        for slot in &slots {
            let (begin, part) = *context.random.pick(&ENDLESS);
            context.environment.proxies[*slot].answer_endlessly(begin, part);
        }
        context.rest(100, 1_500);
        each(&slots, |slot| context.environment.proxies[slot].forward());
        context.rest(50, 300);
    }
    Affected::Slots(slots)
}

/// Replies arrive a byte at a time: some within the time limit of a command, some not.
pub(super) fn replies_dripping(context: &mut Context<'_>) -> Affected {
    let slots = context.some_slots();
    while context.goes_on() {
        for slot in &slots {
            let pause = context.random.millis(0, 30);
            context.environment.proxies[*slot].drip(pause);
        }
        context.rest(300, 900);
    }
    each(&slots, |slot| context.environment.proxies[slot].forward());
    Affected::Slots(slots)
}

/// One process gets more messages than it can read.
pub(super) fn subscribers_flooded(context: &mut Context<'_>) -> Affected {
    let slot = context.random.below(SLOTS as usize);
    let lines = context.random.pick(&[1, 1_000, 60_000]);
    let text = "\n".repeat(*lines);
    let message = format!(">3\r\n+message\r\n+noise\r\n${lines}\r\n{text}\r\n");
    context.environment.proxies[slot].flood_subscribers(&message);
    while context.goes_on() {
        context.rest(500, 1_000);
    }
    context.environment.proxies[slot].forward();
    Affected::Slots(vec![slot])
}

/// Every second connection to the address leads to another primary.
pub(super) fn two_servers(context: &mut Context<'_>) -> Affected {
    let second = RedisServer::start();
    let slots = context.some_slots();
    each(&slots, |slot| {
        context.environment.proxies[slot].alternate_with(&second);
    });
    while context.goes_on() {
        each(&slots, |slot| context.environment.proxies[slot].cut_all());
        context.rest(50, 600);
    }
    each(&slots, |slot| {
        let proxy = &context.environment.proxies[slot];
        proxy.forward();
        proxy.cut_all();
    });
    Affected::All
}

/// The name of the server leads to another of its addresses, and the old one goes.
pub(super) fn name_moves(context: &mut Context<'_>) -> Affected {
    let names = context.environment.names();
    let slots = context.some_slots();
    while context.goes_on() {
        // Both for a while, in some cases.
        if context.random.chance(50) {
            let both = [Names::FIRST, Names::SECOND];
            each(&slots, |slot| names.names[slot].lead_to(&both));
            context.rest(0, 400);
        }
        each(&slots, |slot| names.names[slot].lead_to(&[Names::SECOND]));
        context.rest(0, 400);
        each(&slots, |slot| {
            context.environment.proxies[slot].refuse();
            context.environment.proxies[slot].cut_all();
        });
        context.rest(100, 900);
        each(&slots, |slot| {
            context.environment.proxies[slot].forward();
            names.names[slot].lead_to(&[Names::FIRST]);
        });
        // In some cases it leads nowhere for a while.
        if context.random.chance(30) {
            each(&slots, |slot| names.names[slot].forget());
            each(&slots, |slot| names.seconds[slot].cut_all());
            context.rest(50, 300);
            each(&slots, |slot| names.names[slot].lead_to(&[Names::FIRST]));
        }
        each(&slots, |slot| names.seconds[slot].cut_all());
        context.rest(50, 300);
    }
    Affected::Slots(slots)
}

/// The name leads to another server, as after a failover, while the old one lives. Later it leads back.
pub(super) fn name_moves_away(context: &mut Context<'_>) -> Affected {
    let names = context.environment.names();
    let other = RedisServer::start();
    let slots = context.some_slots();
    each(&slots, |slot| {
        names.seconds[slot].lead_to(&other);
        names.names[slot].lead_to(&[Names::SECOND]);
    });
    while context.goes_on() {
        context.rest(500, 1_500);
    }
    each(&slots, |slot| {
        names.names[slot].lead_to(&[Names::FIRST]);
        names.seconds[slot].lead_to(&context.environment.server);
        names.seconds[slot].cut_all();
    });
    Affected::All
}

/// The certificate of the clients ends within seconds, and connections break before and after that. A new one comes late.
pub(super) fn certificate_ends(context: &mut Context<'_>) -> Affected {
    let certificates = context.environment.certificates();
    let slots = context.every_slot();
    certificates.replace(Duration::from_secs(1));
    while context.goes_on() {
        let slot = *context.random.pick(&slots);
        context.environment.proxies[slot].cut_all();
        context.rest(50, 400);
    }
    certificates.replace(LASTING);
    Affected::All
}
