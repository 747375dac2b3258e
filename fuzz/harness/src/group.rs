//! A group whose steps and landings the tape decides, taken through a schedule of operators. A rank goes on to its next
//! operator when its own cores have ended the one before; it waits for no other core.

use crate::domain::{Domain, Tensors};
use crate::guard::Guard;
use crate::memory::Taped;
use crate::spec::{Impossible, When};
use crate::tape::{Tape, mixed};
use crate::view::Guarded;
use core::cell::{Cell, RefMut};
use veriep_core::fabric::nic::Nic;
use veriep_core::fabric::rank_remap::RankRemap;
use veriep_core::fabric::{Fabric, ProtocolError};
use veriep_core::inputs::Inputs;
use veriep_core::place::{Place, Tensor};
use veriep_core::protocol::Operator;
use veriep_core::reference::numerics;
use veriep_core::shape::Shape;
use veriep_core::sim::chooser::Chooser;
use veriep_core::sim::cluster::{AgentStep, Answer, CoreStep, Failure, Planned, World, schedule};
use veriep_core::sim::storage::{Spot, region_sizes};
use veriep_core::sim::{self, Actor, Dense, Memory};
use veriep_core::units::RankId;

pub use veriep_core::sim::cluster::Returned;

/// The most steps and landings of a run. Bounds time, not behaviour: honest runs need far fewer.
const TICKS_MAX: usize = 400_000;
/// Transfers that an agent can have in flight.
const TRANSFERS_MAX: u32 = 5;

/// Cores, agents and memory of a group.
pub type Cluster<'c, 't> = sim::Cluster<'c, Dense, Taped<'t>>;

/// Someone who tells others what is not so: what it sends is changed now and then, never where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Liar {
    pub member: usize,
    /// Of 256, how many of its effects are changed.
    pub rate: u8,
}

/// What stands around the machines of a group.
#[derive(Debug)]
pub struct Scene<'t> {
    pub domain: &'t Domain,
    /// By round, then member number.
    pub rounds: Vec<Vec<Tensors>>,
    /// By member number; who is gone has none.
    guards: Vec<Option<Guard>>,
    /// What the machine that takes a step has seen and must refuse.
    pub(crate) impossible: Cell<Option<Impossible>>,
    /// In which operator each member is.
    pub(crate) when: Vec<When>,
    /// Whose effects are changed.
    pub byzantine: Option<Liar>,
    /// Whether the words in which cores count their operators are as they wrote them.
    pub epochs_known: bool,
    tape: std::rc::Rc<core::cell::RefCell<Tape<'t>>>,
}

impl<'t> Scene<'t> {
    /// The group of a domain with live memory and the tensors of all rounds, and what stands around it.
    pub fn new(domain: &'t Domain, mut tape: Tape<'t>) -> (Self, Cluster<'t, 't>) {
        let (numbers, shape) = (domain.numbers, &domain.shape);
        let physical = (domain.whole.ep_world_size() * domain.whole.tp_world_size()) as usize;
        let mut round = |_| {
            let mut all = vec![Tensors::default(); physical];
            for (number, ep, _) in domain.members() {
                all[number] = Tensors::new(domain, ep, &mut tape);
            }
            all
        };
        let rounds: Vec<_> = (0..numbers.rounds()).map(&mut round).collect();
        let mut guards: Vec<Option<Guard>> = vec![None; physical];
        for (number, ep, _) in domain.members() {
            guards[number] = Some(Guard::new(shape, ep, domain.choices));
        }
        // Two batches in flight, and one more round by itself if their number is odd.
        let in_flight = numbers.in_flight();
        let (letters, times) = (["DC", "DDCC"][in_flight - 1], rounds.len() / in_flight);
        let mut operators = schedule(letters, times);
        if times * in_flight < rounds.len() {
            let round = rounds.len() - 1;
            operators.extend(
                [Operator::Dispatch, Operator::Combine].map(|operator| Planned::whole(operator, round)),
            );
        }
        let sizes = guards.iter().map(|guard| region_sizes(shape, guard.as_ref().map(|guard| guard.rank), 1));
        let mut memory = Memory::new(shape, Dense::new(sizes), Taped::new(tape));
        memory.room = TRANSFERS_MAX;
        let tape = memory.chooser.tape.clone();
        let members = domain.members().map(|(number, ep, tp)| (RankId(number as u32), ep, tp));
        let mut cluster = Cluster::with_members(shape, domain.choices, memory, operators, members);
        // Both kinds of steps in a group.
        cluster.one_by_one = |member| !member.0.is_multiple_of(2);
        let (impossible, when) = (Cell::default(), vec![When { dispatch: true, epoch: None }; physical]);
        (
            Self { domain, rounds, guards, impossible, when, byzantine: None, epochs_known: true, tape },
            cluster,
        )
    }

    /// The guard of a member.
    pub fn guard(&self, member: usize) -> &Guard {
        self.guards[member].as_ref().unwrap_or_else(|| panic!("no memory of {member}"))
    }

    pub fn tape(&self) -> RefMut<'_, Tape<'t>> {
        self.tape.borrow_mut()
    }

    /// Changes what a Byzantine rank sends.
    pub(crate) fn lie_of(&self, member: usize, bytes: &mut [u8]) {
        let Some(byzantine) = self.byzantine.filter(|byzantine| byzantine.member == member) else { return };
        let tape = &mut *self.tape();
        if tape.byte() >= byzantine.rate || bytes.is_empty() {
            return;
        }
        // The end of a record says whose it is.
        let i = if tape.byte() & 1 == 0 {
            tape.below(bytes.len())
        } else {
            bytes.len() - 1 - tape.below(bytes.len().min(12))
        };
        // Mostly small numbers, so that some lies could be true.
        match tape.below(4) {
            0 => bytes[i] = tape.byte(),
            1 => bytes[i] = bytes[i].wrapping_sub(1),
            2 => bytes.iter_mut().for_each(|byte| *byte = 0xFF),
            _ => {
                let word = tape.word();
                bytes.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, other)| *byte = other);
            }
        }
    }
}

/// A group and what stands around it.
#[derive(Debug)]
pub struct Group<'g, 'c, 't> {
    pub scene: &'g mut Scene<'t>,
    pub cluster: &'g mut Cluster<'c, 't>,
}

pub trait Watch {
    /// A member has ended an operator; `member` is its place among the members. What combine will be given is filled
    /// in here.
    fn ended(&mut self, group: &mut Group<'_, '_, '_>, member: usize, planned: Planned);

    /// A member is about to begin a combine: its experts have just ended.
    fn combines(&mut self, _group: &Group<'_, '_, '_>, _member: usize, _round: usize) {}

    /// Something may be done to memory before the next step.
    fn meddle(&mut self, _group: &mut Group<'_, '_, '_>) {}

    /// Whether an error is a defect.
    fn refused(&mut self, group: &Group<'_, '_, '_>, member: usize, error: ProtocolError);
}

struct Watched<'w, 't, W> {
    scene: &'w mut Scene<'t>,
    watch: &'w mut W,
}

impl<'t, W: Watch> World<Dense, Taped<'t>> for Watched<'_, 't, W> {
    fn inputs(&self, member: RankId, round: usize) -> Inputs<'_> {
        self.scene.rounds[round][member.index()].inputs()
    }

    fn begins(&mut self, cluster: &mut Cluster<'_, 't>, i: usize, planned: Planned) -> Result<(), Failure> {
        let member = cluster.members[i].number.index();
        let dispatch = planned.operator == Operator::Dispatch;
        // A Byzantine rank lies to itself, too.
        let is_byzantine = self.scene.byzantine.is_some_and(|byzantine| byzantine.member == member);
        let epoch = (!is_byzantine).then_some(cluster.members[i].ended as u64 + 1);
        self.scene.when[member] = When { dispatch, epoch };
        if !dispatch {
            // Experts are as slow as they may be.
            self.watch.combines(&Group { scene: self.scene, cluster }, i, planned.round);
        }
        Ok(())
    }

    fn ended(&mut self, cluster: &mut Cluster<'_, 't>, i: usize, planned: Planned) -> Result<(), Failure> {
        self.watch.ended(&mut Group { scene: self.scene, cluster }, i, planned);
        Ok(())
    }

    fn through(&self, actor: Actor, fabric: &mut dyn Fabric, step: CoreStep<'_>) -> Answer {
        let scene: &Scene<'t> = self.scene;
        let left = scene.domain.elastic.as_ref().map(|(_, left)| left);
        let answer = step(&mut RankRemap { inner: Guarded { inner: fabric, scene, actor }, left });
        if let Some(impossible) = scene.impossible.take() {
            // What a machine saw cannot be: the step that saw it must be the last, and its error must name who wrote there.
            let Err(error) = answer else { panic!("{actor:?} takes {impossible:?}: {answer:?}") };
            let named = error.source();
            assert!(
                named.is_none() || impossible.source.is_none() || named == impossible.source,
                "{impossible:?}: {error}"
            );
        }
        answer
    }

    fn through_nic(&self, actor: Actor, nic: &mut dyn Nic, step: AgentStep<'_>) -> Answer {
        step(&mut Guarded { inner: nic, scene: &*self.scene, actor })
    }

    /// The rank is dead; the others do not know.
    fn refused(&mut self, cluster: &mut Cluster<'_, 't>, i: usize, failure: Failure) -> Result<(), Failure> {
        let (Failure::Core(_, _, error) | Failure::Agent(_, error)) = failure else { return Err(failure) };
        self.watch.refused(&Group { scene: self.scene, cluster }, i, error);
        Ok(())
    }
}

impl Group<'_, '_, '_> {
    /// Runs until all have ended, failed or wait without progress. How many steps and landings there were, if all have ended.
    ///
    /// # Panics
    /// There is no end; or the watch panics.
    pub fn run(&mut self, watch: &mut impl Watch) -> Option<usize> {
        let mut fails = |failure: Failure| -> bool { panic!("{failure:?}") };
        let Self { scene, cluster } = self;
        cluster.begin(&mut Watched { scene, watch }).unwrap_or_else(|failure| _ = fails(failure));
        for ticks in 0..TICKS_MAX {
            watch.meddle(&mut Group { scene, cluster });
            if !scene.epochs_known {
                scene.when.iter_mut().for_each(|when| when.epoch = None);
            }
            let Some(choice) = cluster.memory.chooser.next() else {
                let ended = |member: &sim::cluster::Member| member.ended == cluster.operators.len();
                return cluster.members.iter().all(ended).then_some(ticks);
            };
            cluster.take(choice, &mut Watched { scene, watch }).unwrap_or_else(&mut fails);
        }
        panic!("no end after {TICKS_MAX} steps");
    }

    /// An output of the operator that a member has just ended, with its spare capacity.
    pub fn output(&self, member: usize, tensor: Tensor) -> &[u8] {
        self.cluster.output(member, 0, tensor)
    }

    /// Bytes of a member, by its number, past the guard.
    pub fn bytes(&self, number: usize, at: Place, len: u64) -> &[u8] {
        let spot = Spot { member: RankId(number as u32), batch: 0, at };
        self.cluster.memory.read(spot, len).unwrap_or(&[])
    }
}

/// The row that an expert returns on a member with TP rank `tp`, for `(token, k)` of a member whose EP name is `owner`
/// and whose TP rank is `owner_tp`.
pub fn result_row(
    shape: &Shape,
    seed: u64,
    tp: RankId,
    owner: (RankId, RankId),
    token: u32,
    k: u32,
) -> Vec<u8> {
    let [ep, owner_tp] = [owner.0, owner.1].map(|rank| u64::from(rank.0));
    let row =
        seed ^ u64::from(tp.0) << 60 ^ ep << 40 ^ owner_tp << 50 ^ u64::from(token) << 20 ^ u64::from(k);
    let any_bits = seed & 1 == 1;
    let element = |i: u32| match mixed(row.wrapping_mul(0x1_0001).wrapping_add(i.into())) {
        bits if any_bits => (bits as u16).to_le_bytes(),
        bits => numerics::to_bytes(shape.dtype(), (bits % 255) as f32 / 2.0 - 60.0),
    };
    (0..shape.h()).flat_map(element).collect()
}
