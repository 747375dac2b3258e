//! The kinds of order between effects on which the protocol relies. The explorer lets an effect land only for one of them, and
//! each is a litmus test of loom's, in every execution (`verify/tests/loom/orders.rs`). So the searches of the explorer, whose
//! memory is a contract, and C11's atomics meet here: together they say of two ranks with two cores what a run of loom with
//! four threads would.

use veriep_core::fabric::order::Kind;

/// A reason for which an effect has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// A core puts and publishes; who observes the word sees the row.
    PutPublish,
    /// A core puts or publishes and is quiet, and a word of it tells another core or the experts, whose publish covers that, too.
    QuietBarrierPublish,
    /// A core clears and is quiet; who observes a word that comes behind may publish to the cleared one.
    ClearQuietPublish,
    /// A core has observed a word; then it has landed for all who hear of that, over whichever rank.
    Hearsay,
    /// A core writes for a transfer and rings; the agent that observes the doorbell posts what was written. In A2's
    /// explorer it cannot fail to land: there an access to what has perhaps not landed is an error.
    TransferDoorbell,
    /// The words of a transfer land in their order, and so do the messages of a core to one rank: who observes a later one sees
    /// the earlier. loom's test is of a transfer over atomics; of a network it is assumed.
    TransferInOrder,
}

impl Order {
    pub const ALL: [Self; 6] = [
        Self::PutPublish,
        Self::QuietBarrierPublish,
        Self::ClearQuietPublish,
        Self::Hearsay,
        Self::TransferDoorbell,
        Self::TransferInOrder,
    ];

    /// Returns the reason for which an effect of this kind has landed once its core is quiet.
    pub(crate) const fn by_quiet(kind: Kind) -> Self {
        match kind {
            Kind::Store => Self::ClearQuietPublish,
            _ => Self::QuietBarrierPublish,
        }
    }
}
