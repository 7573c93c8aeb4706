//! Routing in a Redis Cluster: the slot of a key, the owner of a slot, and what a call does after a
//! node refused it.

mod attempt;
mod redirect;
mod slot;
mod slot_map;

pub(crate) use attempt::{RouteAttempt, RouteFailure, RouteGiveUpReason, RouteStep};
pub(crate) use redirect::{Redirect, RedirectText};
pub(crate) use slot::{HashSlot, channel_tag, slot_of};
pub(crate) use slot_map::SlotMap;
