//! The part of a loom group that A2 and A3 share: its rounds and operators, its cores as loom threads, and the check of their
//! outputs.
//!
//! Combine returns what the reference says that the experts make of dispatch's outputs; those are compared with
//! the same reference, so a schedule may also begin with a combine.

use super::join::Joins;
use super::memory::{Member, Outputs};
use super::round::{Round, Traffic};
use crate::defects::Defect;
use ::loom::thread;
use std::rc::Rc;
use std::sync::Arc;
use veriep_core::fabric::{Fabric, Fault, Progress, ProtocolError};
use veriep_core::layout::outputs::capacity;
use veriep_core::place::Tensor;
use veriep_core::protocol::{
    Choices, CombineInputs, Context, Env, Machine, Operator, Scratch, scratch_bytes, scratch_words,
};
use veriep_core::shape::Shape;
use veriep_core::sim::cluster::{Planned, Returned, schedule};
use veriep_core::units::{CoreId, RankId};
use veriep_core::vector::Portable;

/// Ranks, their rounds and what each rank runs.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub(super) choices: Choices,
    /// By rank; equal but for their cores.
    pub(super) shapes: Vec<Arc<Shape>>,
    pub(super) rounds: Vec<Round>,
    /// By rank.
    pub(super) schedules: Vec<Vec<Planned>>,
    /// At most one effect in a step.
    pub(super) one_by_one: bool,
    /// How cores of a rank join after each operator; only a rank that runs one operator at most can do without.
    pub(super) join: Option<Defect>,
}

/// A core's fabric, from operator to operator.
pub(super) trait Seated: Fabric {
    /// Begins operator number `n`, which writes to `outputs`.
    fn begin(&mut self, n: usize, outputs: Rc<Outputs>);

    /// What a step comes to that came to `progress`: who waits may let others go on.
    fn answer(&mut self, progress: Progress) -> Result<Progress, ProtocolError> {
        Ok(progress)
    }

    fn ended(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// The last operator has ended.
    fn leave(&mut self) {}
}

pub(super) type Run = Box<dyn FnOnce()>;

impl Domain {
    /// All ranks run the operators that the letters D and C mean; round `n` has `traffic[n]`.
    pub(super) fn new(
        shapes: impl Iterator<Item = Shape>,
        traffic: &[Traffic<'_>],
        letters: &str,
        choices: Choices,
    ) -> Self {
        let shapes: Vec<_> = shapes.map(Arc::new).collect();
        let rounds = (0..).zip(traffic).map(|(n, traffic)| Round::new(&shapes[0], n, traffic)).collect();
        let schedules = vec![schedule(letters, 1); shapes.len()];
        Self { choices, shapes, rounds, schedules, one_by_one: true, join: None }
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = (RankId, &Arc<Shape>)> {
        (0..).map(RankId).zip(&self.shapes)
    }

    /// One execution: a thread for whatever runs `beside` the cores of a rank, and one for each core of the ranks that have
    /// anything to run, the last of them this one.
    pub(super) fn run<F: Seated + 'static>(
        self: &Arc<Self>,
        beside: impl Fn(RankId) -> Option<Run>,
        fabric: impl Fn(RankId, CoreId) -> F,
    ) {
        let (mut runs, mut outputs) = (Vec::<Run>::new(), Vec::new());
        for (rank, shape) in self.ranks() {
            let ep = Member::of(shape, rank).ep;
            let of_rank: Vec<_> = self.rounds.iter().map(|_| Rc::new(Outputs::new(shape, ep))).collect();
            runs.extend(beside(rank));
            let joins = self
                .join
                .map(|join| Rc::new(Joins::new(join, shape.aiv_num(), self.schedules[rank.index()].len())));
            let cores = if self.schedules[rank.index()].is_empty() { 0 } else { shape.aiv_num() };
            for core in (0..cores).map(CoreId) {
                let (domain, outputs) = (Arc::clone(self), of_rank.clone());
                let fabric = Box::new(fabric(rank, core));
                let core = Core { domain, rank, core, fabric, outputs, joins: joins.clone() };
                runs.push(Box::new(move || core.run()));
            }
            outputs.push(of_rank);
        }
        let last = runs.pop();
        together(last, runs.into_iter());
        for ((rank, _), outputs) in self.ranks().zip(&outputs) {
            self.check(rank, outputs);
        }
    }

    /// Compares what `rank` put out with the reference.
    fn check(&self, rank: RankId, outputs: &[Rc<Outputs>]) {
        for planned in &self.schedules[rank.index()] {
            for tensor in outputs_of(planned.operator) {
                if tensor == Tensor::ExpandX && self.choices.receive.keeps_rows() {
                    continue;
                }
                // Empty for what the reference does not tell.
                let expected = self.rounds[planned.round].expected(rank, tensor);
                let seen = outputs[planned.round].read(tensor, expected.len() as u64);
                let name = tensor.name();
                assert_eq!(seen.as_deref(), Some(expected), "{name} of rank {rank}, {planned}, is wrong");
            }
        }
    }
}

fn outputs_of(operator: Operator) -> impl Iterator<Item = Tensor> {
    Tensor::ALL.into_iter().filter(move |tensor| tensor.is_of_combine() == (operator == Operator::Combine))
}

/// Runs `here` on this thread, and each of the others on one of its own.
pub(super) fn together<R: FnOnce() + 'static>(here: Option<R>, others: impl Iterator<Item = R>) {
    let others: Vec<_> = others.map(thread::spawn).collect();
    here.into_iter().for_each(|run| run());
    for other in others {
        assert!(other.join().is_ok(), "a thread panicked");
    }
}

/// One core on its thread.
struct Core {
    domain: Arc<Domain>,
    rank: RankId,
    core: CoreId,
    /// Not a parameter: each product would compile all machines once more.
    fabric: Box<dyn Seated>,
    /// Of its rank, by round.
    outputs: Vec<Rc<Outputs>>,
    /// Of its rank.
    joins: Option<Rc<Joins>>,
}

impl Core {
    /// Its operators, one after the other.
    fn run(mut self) {
        let domain = Arc::clone(&self.domain);
        let (shape, schedule) = (&domain.shapes[self.rank.index()], &domain.schedules[self.rank.index()]);
        let joined = self.joins.is_some() || shape.aiv_num() == 1 || schedule.len() <= 1;
        assert!(joined, "several cores need a join between operators");
        let (member, terms) = (Member::of(shape, self.rank), self.fabric.terms());
        let env = Env::new(shape, member.ep, self.core, domain.choices, terms, Portable);
        let env = env.expect("machines of this shape").with_tp_rank(member.tp);
        let env = if domain.one_by_one { env.one_by_one() } else { env };
        let (mut words, mut row) = (vec![0; scratch_words(shape)], vec![0; scratch_bytes(shape)]);
        for (n, &planned) in schedule.iter().enumerate() {
            self.fabric.begin(n, Rc::clone(&self.outputs[planned.round]));
            if self.joins.is_some() && planned.operator == Operator::Combine {
                self.read(planned.round, [Tensor::AssistInfo, Tensor::EpRecvCounts]);
            }
            let scratch = Scratch { words: &mut words, row: &mut row };
            if let Err(error) = self.operator(shape, &env, planned, scratch) {
                panic!("rank {}, core {}, {planned}: {error}", self.rank, self.core);
            }
            if let Some(joins) = &self.joins {
                joins.after(n, self.core, || self.read(planned.round, outputs_of(planned.operator)));
            }
        }
        self.fabric.leave();
    }

    /// Reads outputs of its rank, whichever of its cores has written them.
    fn read(&self, round: usize, tensors: impl IntoIterator<Item = Tensor>) {
        for tensor in tensors {
            let len = self.domain.rounds[round].expected(self.rank, tensor).len() as u64;
            assert!(self.outputs[round].read(tensor, len).is_some(), "rows of {}", tensor.name());
        }
    }

    /// The experts, who read rows in the window as late as may be, just before the combine, and leave results there if it looks
    /// for them there. They run on the only core of a rank. Returns what dispatch has put out of where rows are.
    fn experts(&mut self, shape: &Shape, operator: Operator, round: usize) -> Result<Returned, Fault> {
        let receive = self.domain.choices.receive;
        if operator == Operator::Dispatch || !receive.keeps_rows() {
            return Ok(Returned::default());
        }
        assert_eq!(shape.aiv_num(), 1, "experts behind a join");
        let whole = |tensor| {
            let rows = self.outputs[round].read(tensor, capacity(shape, self.rank, tensor));
            rows.unwrap_or_default()
        };
        let (sent_rows, row_table) = (whole(Tensor::SentRows), whole(Tensor::RowTable));
        let expected = self.domain.rounds[round].expected(self.rank, Tensor::ExpandX);
        let count = expected.len() as u64 / shape.payload_bytes();
        let mut seen = Vec::new();
        for (at, len) in receive.rows(shape, count as u32, &row_table) {
            seen.extend_from_slice(self.fabric.bytes(at, len)?);
        }
        assert_eq!(seen, expected, "rows of rank {} in round {round}", self.rank);
        if let Some(at) = receive.results(&row_table) {
            let y = self.domain.rounds[round].combine_inputs(self.rank).y.to_vec();
            self.fabric.write(at, &y)?;
        }
        Ok(Returned { sent_rows, row_table, ..Returned::default() })
    }

    fn operator(
        &mut self,
        shape: &Shape,
        env: &Env<Portable>,
        Planned { operator, round, .. }: Planned,
        scratch: Scratch<'_>,
    ) -> Result<(), String> {
        let kept = self.experts(shape, operator, round).map_err(|fault| fault.to_string())?;
        let (fabric, round) = (&mut *self.fabric, &self.domain.rounds[round]);
        let mut machine = Machine::begin(operator, env);
        let (inputs, combine_inputs) = (&round.inputs(self.rank), &round.combine_inputs(self.rank));
        let combine_inputs =
            &CombineInputs { sent_rows: &kept.sent_rows, row_table: &kept.row_table, ..*combine_inputs };
        let core = env.on(shape).map_err(|error| error.to_string())?;
        let mut cx = Context { core, fabric, inputs, combine_inputs, scratch };
        drive(|| machine.step(&mut cx).and_then(|progress| cx.fabric.answer(progress)))?;
        cx.fabric.ended().map_err(|fault| fault.to_string())
    }
}

/// Polls in vain, one after the other, after which a wait counts as endless: a core that polls lets all others run
/// until they wait, too, so a wait that ends does so after as many polls as others make waits of their own.
const POLLS_MAX: u32 = 100;

/// Steps a machine to its end; a pending one lets the others go on.
pub(super) fn drive(mut step: impl FnMut() -> Result<Progress, ProtocolError>) -> Result<(), String> {
    let mut polls = 0;
    loop {
        match step().map_err(|error| error.to_string())? {
            Progress::Stepped => polls = 0,
            Progress::Pending(wait) if polls == POLLS_MAX => return Err(format!("endless wait, {wait}")),
            Progress::Pending(_) => {
                polls += 1;
                thread::yield_now();
            }
            Progress::Done => return Ok(()),
        }
    }
}
