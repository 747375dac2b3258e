//! Deliberate defects of the protocol, of its driver or of the memory, for negative tests: each with what is left out or bent, what
//! must break, and which tool sees it. The tools apply them in layers of their own: `bent.rs` beside each view of the explorer,
//! [`explorer`](crate::explorer)'s `defects.rs` for those of a model itself, and `bent.rs` of [`loom`](crate::loom).

/// How loom's models end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loom {
    /// There is none with the defect.
    No,
    /// At least one fails.
    Fails,
    /// All hold: the contract allows it.
    Holds,
}

/// A defect, and who sees it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub defect: Defect,
    name: &'static str,
    /// What is left out or bent.
    pub what: &'static str,
    /// The violations of [`explorer`](crate::explorer) that it ends in; none if no model of the explorer has it.
    pub explorer: &'static [&'static str],
    pub loom: Loom,
    /// The duties of `veriep_core::sim::Duty` that are left out in samples.
    pub sim: &'static [&'static str],
}

/// Declares the defects, a row each.
macro_rules! defects {
    ($(
        $(#[doc = $what:literal])*
        $name:ident: explorer [$($violation:ident),*], loom $loom:ident, sim [$($duty:expr),*];
    )*) => {
        /// One deliberate defect.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Defect {
            /// Nothing is broken.
            #[default]
            None,
            $($(#[doc = $what])* $name,)*
        }

        /// All defects.
        pub const DEFECTS: &[Row] = &[$(Row {
            defect: Defect::$name,
            name: stringify!($name),
            what: concat!($($what),*),
            explorer: &[$(stringify!($violation)),*],
            loom: Loom::$loom,
            sim: &[$(stringify!($duty)),*],
        }),*];
    };
}

impl Row {
    /// The name of the defect.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl Defect {
    /// Its row; none if nothing is broken.
    pub fn row(self) -> Option<&'static Row> {
        DEFECTS.iter().find(|row| row.defect == self)
    }
}

defects! {
    /// A publish may overtake its core's puts.
    RelaxedPublish: explorer [Diverged, NotLanded, Refused, Unrefined], loom Fails, sim [FlagBehindRows];
    /// Quiet answers before anything has landed.
    NoQuiet: explorer [LostFlag, NotLanded, Refused, Unrefined], loom No, sim [Quiet];
    /// No core but the first of its rank is quiet (hierarchy).
    QuietOfFirstCore: explorer [NotLanded], loom No, sim [];
    /// Only a core that has put something since its last quiet asks for quiet.
    QuietOnlyIfSent: explorer [LostFlag], loom No, sim [];
    /// The core barrier does not wait.
    NoBarrier: explorer [Diverged, NotLanded, Refused, WrongPartition], loom Fails, sim [Barrier];
    /// The core barrier waits for lower cores only.
    BarrierOfLowerCores: explorer [Diverged, NotLanded, OwnNotLanded, Refused, WrongPartition], loom Fails, sim [];
    /// Each core has one barrier word instead of two.
    OneBarrierWord: explorer [LostFlag, Refused], loom Fails, sim [];
    /// A status word is never cleared.
    NoClear: explorer [Diverged, LostFlag, Refused, Unrefined], loom Fails, sim [Clear];
    /// A count is never cleared; needs separate flags.
    NoCountClear: explorer [LostFlag, Unrefined], loom No, sim [];
    /// A token flag is never cleared; needs separate flags.
    NoTokenClear: explorer [LostFlag, Unrefined], loom No, sim [];
    /// A block's flag is never cleared; needs fullmesh_v2.
    NoBlockClear: explorer [LostFlag, Unrefined], loom No, sim [];
    /// A slot with a count of 0 has no token flag; needs separate flags. In the hierarchy: no count.
    NoFlagOfNothing: explorer [Deadlock, LostFlag], loom No, sim [];
    /// A clear may land after the next quiet.
    LateClear: explorer [LostFlag, Unrefined], loom Fails, sim [InTime];
    /// A rank that begins a combine clears the flags of the partition that comes next; needs strong memory.
    CleansNext: explorer [LostFlag], loom No, sim [];
    /// The driver lets a core start before the other cores of its rank have ended.
    NoJoin: explorer [Diverged, OwnNotLanded, Refused, Unrefined], loom Fails, sim [];
    /// A core that goes on with an operator takes its barrier to be where it left it; needs halves and two cores.
    StaleEpoch: explorer [Diverged], loom No, sim [];
    /// A grant is never cleared; needs direct placement.
    NoGrantClear: explorer [LostFlag, Unrefined], loom No, sim [];
    /// The word that results lie ready is never cleared; needs direct placement.
    NoReadyClear: explorer [LostFlag, Unrefined], loom No, sim [];
    /// All batches leave their results in one area; needs direct placement with two.
    OneResultArea: explorer [Overwritten], loom No, sim [];
    /// A rank grants rows, and sends, when it has the counts of the slots before its own: later ranks that have not begun are
    /// taken for idle, and then are; needs direct placement.
    EarlyGrants: explorer [Overwritten], loom No, sim [];
    /// A result is written before its row has been read; needs experts that overwrite.
    ResultAheadOfRead: explorer [Overwritten], loom No, sim [];
    /// A rank says that its results lie ready while they are on their way; needs experts that overwrite.
    ReadyAheadOfResults: explorer [Diverged, NotLanded], loom No, sim [];
    /// One message slot in place of two (A2, and the hierarchy's stage 2).
    OneMessageSlot: explorer [Refused, TaskInUse], loom Fails, sim [Second(MessageSlot)];
    /// Only the flags that were waited for are cleared (A2 design).
    SeedClears: explorer [SourceInUse, Unrefined], loom Fails, sim [];
    /// Combine waits for no window without rows (A2), or for no server without experts of its own tokens (hierarchy).
    PartialWait: explorer [SourceInUse, Unheard, Unrefined], loom No, sim [];
    /// The words of a transfer come last one first (A2, and the hierarchy's stage 2).
    LastWordFirst: explorer [Diverged, NotLanded, Unrefined], loom Fails, sim [LastWordLast];
    /// Core 0 flips `bufferChosen` ahead of the barrier (A2).
    EarlyFlip: explorer [WrongPartition], loom Fails, sim [];
    /// A relay takes a record for complete when it sees that record's own front flag (hierarchy).
    OwnFront: explorer [NotLanded, Unrefined], loom No, sim [NextFlag];
    /// A record has its flag at its end, and is taken for complete when that is seen (hierarchy).
    FlagAtEnd: explorer [NotLanded], loom No, sim [];
    /// No rank waits for near ranks to enter (hierarchy).
    NoEntered: explorer [Unheard, Unrefined], loom No, sim [Wait(Entered)];
    /// Messages of one core to one rank overtake each other (hierarchy).
    UnorderedMessages: explorer [NotLanded], loom No, sim [MessageOrder];
    /// Flags of every second operator of a kind are lost on their way to rank 1, and a core that waits steps all the same.
    PollsByStepping: explorer [Livelock], loom No, sim [];
    /// A core that waits takes its rank's dispatch flags back and sets them again, alternately.
    TakesBack: explorer [Circles], loom No, sim [];
    /// The theorem's model is not told of a clear that lands ahead of an earlier effect of its core.
    UntoldClear: explorer [TwoAbstractions], loom No, sim [];
    /// The driver need not step a core that can move, even if it can for good.
    UnfairDriver: explorer [Circles], loom No, sim [];
    /// An agent need not post what was rung for (A2).
    UnfairAgent: explorer [Circles], loom No, sim [];
    /// What was issued need not land.
    UnfairMemory: explorer [Circles], loom No, sim [];
    /// The core barrier of a combine does not wait; needs direct placement.
    NoPullBarrier: explorer [Deadlock], loom No, sim [];
    /// A record is refused when a block is there and the one before it is not; needs two blocks.
    RefusesGaps: explorer [Refused], loom No, sim [];
    /// Words of near ranks that have come pass for not there while they differ from each other (hierarchy).
    InStep: explorer [Deadlock], loom No, sim [];
    /// Combine does not wait for the last active expert of a token that has a masked one; needs masks of pairs.
    MaskedWait: explorer [Diverged], loom No, sim [];
    /// On a rank of shared experts the flag of the last slot is never cleared; needs shared experts.
    NoSharedClear: explorer [LostFlag], loom No, sim [];
    /// Survivors of an elastic domain call each other's memory by new ids; needs a rank that is gone.
    NewIds: explorer [Refused], loom No, sim [];
    /// The flag of a record's last block is never cleared; needs fullmesh_v2.
    NoLastBlockClear: explorer [LostFlag], loom No, sim [];
    /// No rank waits for the third near rank to enter (hierarchy).
    NoThirdEntered: explorer [Unheard], loom No, sim [];
    /// A slot that tells a TP peer of no rows is never cleared; needs a TP domain.
    NoTpClear: explorer [LostFlag, Refused], loom No, sim [Clear(EmptyTpSlots)];
    /// A word of a near rank that is an operator ahead passes for one that has not come: `==` in place of `>=` (hierarchy).
    Equal: explorer [Deadlock], loom No, sim [];
    /// No rank waits for near ranks to return their rows (hierarchy).
    NoRowsDone: explorer [Unawaited, Unrefined], loom No, sim [];
    /// A relay waits in dispatch for no record and no end flag (hierarchy).
    NoStreams: explorer [Diverged, Unawaited, Unrefined], loom No, sim [];
    /// A memory that answers busy to a put has taken it all the same.
    BusyAfterPut: explorer [Overwritten], loom No, sim [];
    /// The word that results of experts lie ready is not after the results.
    RelaxedReady: explorer [], loom Fails, sim [];
    /// What follows an observe may have come before it.
    RelaxedObserve: explorer [], loom Fails, sim [];
    /// What an agent observes may come after what follows.
    RelaxedAgent: explorer [], loom Fails, sim [];
    /// A transfer is not after the memory that its agent has seen.
    RelaxedTransfer: explorer [], loom Fails, sim [];
    /// The doorbell is not after what was written for the transfer.
    RelaxedDoorbell: explorer [], loom Fails, sim [];
    /// An arrival at a join that is counted says nothing of what was done before.
    RelaxedArrival: explorer [], loom Fails, sim [];
    /// A word that is stored says nothing of what was done before: the one that opens a join, or by which a process comes to a
    /// meeting.
    RelaxedOpen: explorer [], loom Fails, sim [];
    /// What follows a look at the word of a join or a meeting may have come before it.
    RelaxedLook: explorer [], loom Fails, sim [];
    /// Rows go past the caches. Not broken.
    PastCaches: explorer [], loom Holds, sim [];
    /// Rows go past the caches, and there is no fence before a publish.
    NoFenceBeforePublish: explorer [], loom Fails, sim [];
    /// Rows go past the caches, and there is no fence in quiet.
    NoFenceInQuiet: explorer [], loom Fails, sim [];
    /// Rows go past the caches, and there is neither of these fences.
    NoFence: explorer [], loom Fails, sim [];
    /// Rows go past the caches, and there is no fence before the fabric is dropped.
    NoFenceAtTheEnd: explorer [], loom Fails, sim [];
    /// Puts to a rank come after the next publish to it, or after the word that tells the other cores that they have landed.
    FlagFirst: explorer [], loom Fails, sim [RowsFirst];
    /// Puts never land.
    NoPut: explorer [], loom Fails, sim [];
    /// Dispatches have one partition: its selectors never change.
    OneDispatchPartition: explorer [], loom Fails, sim [Second(Partition)];
    /// Combines have one partition: its selectors never change.
    OneCombinePartition: explorer [], loom Fails, sim [Second(Partition)];
    /// Clears land as late as the contract allows, at the next quiet. Not broken.
    ClearsAtQuiet: explorer [], loom Holds, sim [];
    /// Combine waits for the dispatch flag of slot 2 of the first partition, too.
    CombineWaitsForDispatch: explorer [], loom Fails, sim [];
    /// Combine does not wait for its flag of slot 1 of the first partition.
    CombineIgnoresFlag: explorer [], loom Fails, sim [];
    /// What a core wrote for a transfer lands after the doorbell.
    LateWrites: explorer [], loom Fails, sim [InTime(WindowsOut)];
    /// Task records land after the doorbell.
    LateTasks: explorer [], loom Fails, sim [];
    /// Both halves of A2's windows are one.
    OneHalf: explorer [], loom Fails, sim [Second(Half)];
    /// Both partitions of the TP domain are one.
    OneTpPartition: explorer [], loom No, sim [Second(TpPartition)];
    /// Both areas of a hierarchy's windows are one.
    OneRelayArea: explorer [], loom No, sim [Second(Relay)];
    /// Status words pass for what is waited for.
    NoWait: explorer [], loom No, sim [Wait(Status)];
    /// A flag is published first with a count of no rows; the count follows a step later.
    CountBehindFlag: explorer [], loom No, sim [WholeCount];
    /// Senders take dispatch's status slots to be in the order of the records.
    StatusByRank: explorer [], loom No, sim [StatusOrder];
}
