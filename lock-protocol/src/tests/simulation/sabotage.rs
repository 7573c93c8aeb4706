//! Faults of the library itself, injected at the boundary of the simulation. Each of them shows that a
//! check can fail.

use super::verdict::SimulatedCheck;

/// A fault of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// A lease is counted from the arrival of the reply.
    LeaseFromArrival,
    /// A handover lease is counted from the arrival of its notification.
    GrantFromArrival,
    /// The server executes an acquire after its `not_after`.
    NotAfterIgnored,
    /// A release deletes the key of any owner.
    ReleaseByAnyOwner,
    /// A cancel is final although the acquire may still arrive.
    CancelFinalAtOnce,
    /// Waiters do not poll after a new subscription.
    SilentResubscription,
    /// The clocks run more than 1 % faster or slower.
    WildClocks,
    /// The server gives tokens below the floor of the connection.
    FloorIgnored,
    /// The resource accepts lower tokens.
    UnfencedResource,
    /// A renewal creates the key again.
    RenewalRecreates,
    /// A waiter wakes up late.
    LateTimers,
    /// A holder is not notified of its loss.
    SilentLoss,
    /// A key gets no expiry.
    EndlessKeys,
    /// A waiter neither polls nor receives notifications.
    DeafWaiters,
}

impl Sabotage {
    pub(super) const ALL: &[(Self, &[SimulatedCheck])] = &[
        (Self::LeaseFromArrival, &[SimulatedCheck::Exclusion]),
        (Self::GrantFromArrival, &[SimulatedCheck::Exclusion]),
        (Self::NotAfterIgnored, &[SimulatedCheck::Finality]),
        (Self::ReleaseByAnyOwner, &[SimulatedCheck::Exclusion]),
        (Self::CancelFinalAtOnce, &[SimulatedCheck::Finality]),
        (Self::SilentResubscription, &[SimulatedCheck::Handover]),
        (Self::WildClocks, &[SimulatedCheck::Exclusion]),
        (Self::FloorIgnored, &[SimulatedCheck::Tokens]),
        (Self::UnfencedResource, &[SimulatedCheck::StaleAccess]),
        (
            Self::RenewalRecreates,
            &[SimulatedCheck::Exclusion, SimulatedCheck::Finality],
        ),
        (Self::LateTimers, &[SimulatedCheck::Wait]),
        (Self::SilentLoss, &[SimulatedCheck::Loss]),
        (Self::EndlessKeys, &[SimulatedCheck::Survivor]),
        (Self::DeafWaiters, &[SimulatedCheck::Idle]),
    ];
}
