//! The call check: each process writes what it is about to run where the others compare it, so ranks that call different
//! operators are named at once and do not wait for each other until a deadline.

use super::World;
use super::board::{CALLS, OfCall, OfGroup, OfProcess};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use veriep_core::sync::join::{announce, come, has_announced, has_come};

/// The operator of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Called {
    /// Joins another group of the same ranks.
    Join,
    /// Sends tokens.
    Dispatch,
    /// Returns results.
    Combine,
    /// Sends tokens, and does not yet take what has come.
    DispatchSend,
    /// Takes what has come.
    DispatchFinish,
    /// Returns results, and does not yet sum what has come.
    CombineSend,
    /// Sums what has come.
    CombineFinish,
}

impl Called {
    const ALL: [Self; 7] = [
        Self::Join,
        Self::Dispatch,
        Self::Combine,
        Self::DispatchSend,
        Self::DispatchFinish,
        Self::CombineSend,
        Self::CombineFinish,
    ];
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::Dispatch => "dispatch",
            Self::Combine => "combine",
            Self::DispatchSend => "the sending half of dispatch",
            Self::DispatchFinish => "the receiving half of dispatch",
            Self::CombineSend => "the sending half of combine",
            Self::CombineFinish => "the receiving half of combine",
        })
    }
}

/// What all ranks must call alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What runs.
    pub operator: Called,
    /// A number of the group's configuration.
    pub group: u64,
    /// The layer of the group.
    pub layer: u64,
    /// The batch, by the number of its dispatch.
    pub batch: u64,
    /// Elements of a row.
    pub h: u64,
    /// Experts of a token.
    pub k: u64,
    /// The most tokens of a rank.
    pub bs: u64,
    /// A number of the tensors that must be the same on all ranks; [`ANY_TENSORS`] of a rank that has none, since it has no token.
    pub common: u64,
}

/// The number of tensors that agree with those of any rank.
pub const ANY_TENSORS: u64 = u64::MAX;

impl Call {
    /// Returns whether two ranks may make these calls together.
    fn agrees(&self, other: &Self) -> bool {
        let has_any = [self.common, other.common].contains(&ANY_TENSORS);
        (has_any || self.common == other.common) && *self == Self { common: self.common, ..*other }
    }

    fn words(&self) -> [(OfCall, u64); 8] {
        [
            (OfCall::Operator, self.operator as u64),
            (OfCall::Group, self.group),
            (OfCall::Layer, self.layer),
            (OfCall::Batch, self.batch),
            (OfCall::H, self.h),
            (OfCall::K, self.k),
            (OfCall::Bs, self.bs),
            (OfCall::Common, self.common),
        ]
    }

    /// What differs from the call of another rank, in both ranks' words; a rank is named by its number.
    fn against(&self, own_rank: usize, other_rank: usize, other: &Self) -> String {
        let (own, others) = (self.operator, other.operator);
        let both = |seen: String, rule: &str| format!("rank {other_rank} called {seen}: {rule}");
        let same_order = "every rank must call the same operators in the same order";
        if own != others {
            return both(format!("{others}, rank {own_rank} {own}"), same_order);
        }
        if (self.h, self.k, self.bs) != (other.h, other.k, other.bs) {
            let shape = |call: &Self| format!("h = {}, k = {}, bs = {}", call.h, call.k, call.bs);
            let seen = format!("{others} with {}, rank {own_rank} with {}", shape(other), shape(self));
            return both(seen, same_order);
        }
        if self.layer != other.layer {
            let seen = format!("{others} of layer {}, rank {own_rank} of layer {}", other.layer, self.layer);
            return both(seen, same_order);
        }
        if self.group != other.group {
            let seen = format!("{others} with another configuration than rank {own_rank}");
            return both(seen, "all ranks must be given the same");
        }
        if self.batch != other.batch {
            let seen = format!("{others} of batch {}, rank {own_rank} of batch {}", other.batch, self.batch);
            return both(seen, same_order);
        }
        let tensors = match own {
            Called::Combine | Called::CombineSend => "const experts, or shared_expert_x on one of them alone",
            _ => "scales",
        };
        both(
            format!("{others} with other {tensors} than rank {own_rank}"),
            "these must be alike on all ranks",
        )
    }
}

/// The calls of the ranks of one communicator, over all groups that they have made for it.
#[derive(Clone, Debug)]
pub struct Calls {
    world: Arc<World>,
    /// Calls of this process until now.
    next: Arc<AtomicU64>,
}

impl Calls {
    /// Before the first call.
    #[must_use]
    pub fn new(world: Arc<World>) -> Self {
        Self { world, next: Arc::new(AtomicU64::new(0)) }
    }

    /// Whether the next call can be announced.
    #[must_use]
    pub fn have_room(&self) -> bool {
        self.behind().is_empty()
    }

    /// The ranks that have not left the call whose words the next one takes.
    #[must_use]
    pub fn behind(&self) -> Vec<usize> {
        let next = self.next.load(Ordering::Relaxed) + 1;
        let is_there = |process| {
            let called = self.world.board.of(process, OfProcess::Called);
            !has_come(called, (next + 1).saturating_sub(CALLS as u64))
        };
        (0..self.world.processes()).filter(|&process| process != self.world.me && is_there(process)).collect()
    }

    /// Says what this process is about to run, once there [is room](Self::have_room).
    #[must_use]
    pub fn announce(&self, call: Call) -> Announced {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let own = |word| self.world.board.call(self.world.me, number, word);
        for (word, value) in call.words() {
            own(word).store(value, Ordering::Relaxed);
        }
        announce(own(OfCall::Number), self.world.board.group(OfGroup::Calls), number);
        come(self.world.own(OfProcess::Called), number);
        Announced { world: self.world.clone(), number, call }
    }
}

impl Calls {
    /// Takes back the last call, which has not come about: the next one has its number again.
    pub fn take_back(&self) {
        self.next.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that others can see.
#[derive(Debug)]
pub struct Announced {
    world: Arc<World>,
    number: u64,
    call: Call,
}

impl Announced {
    /// How another rank's call of the same number differs, once it has been announced; or that those of two other ranks do,
    /// which ends this one's call, too.
    #[must_use]
    pub fn mismatch(&self) -> Option<String> {
        let World { board, me, .. } = &*self.world;
        let others = (0..self.world.processes()).filter(|process| process != me);
        let mut read = others.filter_map(|process| Some((process, self.read(process)?)));
        if let Some((process, other)) = read.find(|(_, other)| !other.agrees(&self.call)) {
            let pair = 1 + ((*me as u64) << 32 | process as u64);
            board.group(OfGroup::Differ).store(pair, Ordering::Relaxed);
            return Some(self.call.against(*me, process, &other));
        }
        let pair = board.group(OfGroup::Differ).load(Ordering::Relaxed).checked_sub(1)?;
        let (one, other) = (pair >> 32, pair & u64::from(u32::MAX));
        Some(format!("ranks {one} and {other} have called different operators, and the group has ended"))
    }

    /// The call of that number of another process.
    fn read(&self, process: usize) -> Option<Call> {
        let word = |word| self.world.board.call(process, self.number, word);
        if !has_announced(word(OfCall::Number), self.number) {
            return None;
        }
        let value = |of| word(of).load(Ordering::Relaxed);
        Some(Call {
            operator: *Called::ALL.get(value(OfCall::Operator) as usize)?,
            group: value(OfCall::Group),
            layer: value(OfCall::Layer),
            batch: value(OfCall::Batch),
            h: value(OfCall::H),
            k: value(OfCall::K),
            bs: value(OfCall::Bs),
            common: value(OfCall::Common),
        })
    }
}
