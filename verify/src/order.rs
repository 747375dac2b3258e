//! The kinds of order between effects on which the protocol relies. The explorer lets an effect land only for one of them, and
//! each is a litmus test of loom's, in every execution (`verify/tests/loom/orders.rs`). So the searches of the explorer, whose
//! memory is a contract, and C11's atomics meet here: together they say of two ranks with two cores what a run of loom with
//! four threads would.

/// A reason for which an effect has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// A core puts and publishes; who observes the word sees the row.
    PutPublish,
    /// A core puts or publishes and is quiet, and a word of it tells another core or the experts, whose publish covers that, too.
    QuietBarrierPublish,
    /// A core clears and is quiet; who observes a word that comes behind may publish to the cleared one.
    ClearQuietPublish,
    /// Somebody has observed a word; then it has landed for all who hear of that, over whichever rank.
    Hearsay,
    /// A core writes for a transfer and rings; the agent that observes the doorbell posts what was written. A2's explorer has no
    /// weaker memory in which it could fail to land: there an access to what has perhaps not landed is an error.
    TransferDoorbell,
}

impl Order {
    pub const ALL: [Self; 5] = [
        Self::PutPublish,
        Self::QuietBarrierPublish,
        Self::ClearQuietPublish,
        Self::Hearsay,
        Self::TransferDoorbell,
    ];
}
