//! Is a schedule safe? Answered by a search over the real machines, or over an abstract model of A2's windows, and beside that by the
//! argument of gates.

use crate::a2_window_model;
use crate::argument::{Argued, Rules, argue};
use crate::explorer::{self, Model};
pub use crate::explorer::{Line, Product, Taken, Timeline, Traffic, Witness};
use crate::orders::Orders;
use veriep_core::protocol::{Flags, Receive};
use veriep_core::shape::Shape;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The machines of `veriep_core`; on A2 with agents and transfers, or messages.
    Machines,
    /// A2 alone: windows that land and ranks that wait for them, [`a2_window_model`]; no machine, no agent, no flag that moves.
    Windows,
}

impl Subject {
    /// What answers within seconds: three ranks of A2's machines are too many.
    pub const fn quick(product: Product, ranks: u32) -> Self {
        match product {
            Product::A2 if ranks > 2 => Self::Windows,
            _ => Self::Machines,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Question {
    /// Whose protocol.
    pub product: Product,
    pub subject: Subject,
    /// The orders of the ranks, which can be repeated unless they run once.
    pub orders: Orders,
    /// The same as text.
    pub operators: String,
    /// Ranks of a server (hierarchy).
    pub server_ranks: u32,
    /// Partitions of dispatch and combine; A2 looks at the first only.
    pub partitions: [u32; 2],
    /// Where experts find rows (A3); with direct placement the first number of partitions is that of areas.
    pub receive: Receive,
    /// How dispatch announces records (A3 with records).
    pub flags: Flags,
    /// Ranks of one core each.
    pub ranks: u32,
    /// How often the operators run; `None`: any number of times.
    pub rounds: Option<u32>,
    /// Give up beyond so many states.
    pub states_max: usize,
    /// Give up when this says so.
    pub stop: fn() -> bool,
}

#[derive(Clone, Debug)]
pub struct Answer {
    /// No bad state was found.
    pub safe: bool,
    /// Whether there is a search of such orders; else nothing was searched.
    pub searched: bool,
    /// Whether ranks wait for each other without end: what is bad in the counterexample, or what the argument says of orders that are not
    /// searched.
    pub deadlock: bool,
    /// What the argument of gates says.
    pub argued: Argued,
    pub states: usize,
    /// Different traffic matrices met.
    pub traffic_matrices: usize,
    /// The traffic that the search allowed.
    pub traffic: Traffic,
    /// Whether every reachable state was visited.
    pub complete: bool,
    /// A shortest way into trouble, one line per event; empty if none was found.
    pub counterexample: Vec<String>,
    /// The same of machines, with who did what to whose memory, and their steps if there was a witness of their calls.
    pub timeline: Option<Timeline>,
    /// The shape of the machines; none of an abstract model.
    pub shape: Option<Shape>,
}

/// In a hierarchy of more than two ranks every token goes across, to a rank with another number if there is one.
const ACROSS: [&[&[i32]]; 2] = [&[&[1, 2, 0]], &[&[3, 2, 1, 0]]];

/// Answers a question. The machines are explored over weak memory; a counterexample of A3 is told over strong memory if
/// there is one, since it is easier to follow and can be replayed. A2's are short over weak memory, where what a core
/// writes needs no move.
///
/// A witness sees the calls of the machines on the way into trouble.
pub fn answer(question: &Question, witness: Option<&dyn Witness>) -> Answer {
    match question.subject {
        _ if !is_searched(question) => unsearched(question),
        Subject::Machines => of_machines(question, witness),
        Subject::Windows => of_windows(question),
    }
}

/// Whether there is a search of a question's orders. The model of the windows takes one operator after the other.
fn is_searched(question: &Question) -> bool {
    let Question { product, receive, orders, .. } = question;
    let is_one = question.subject == Subject::Machines || orders.is_one();
    is_one && explorer::searches(*product, *receive, orders)
}

fn argued(question: &Question) -> Argued {
    let rules = match question.product {
        Product::A3 => Rules::a3(question.receive),
        Product::A2 => Rules::a2(false),
        Product::Hierarchy => Rules::a2(true),
    };
    argue(rules, &question.orders, question.ranks as usize, question.partitions, question.rounds)
}

/// What there is to say without a search: that ranks wait for each other, or nothing.
fn unsearched(question: &Question) -> Answer {
    let argued = argued(question);
    Answer {
        safe: argued.waits.is_empty(),
        searched: false,
        deadlock: !argued.waits.is_empty(),
        argued,
        states: 0,
        traffic_matrices: 0,
        traffic: Traffic::All,
        complete: false,
        counterexample: Vec::new(),
        timeline: None,
        shape: None,
    }
}

fn of_machines(question: &Question, witness: Option<&dyn Witness>) -> Answer {
    let [dispatch, combine] = question.partitions;
    let mut model = Model::new(question.ranks, &question.operators);
    model.choices.receive = question.receive;
    model.choices.flags = question.flags;
    // The partitions of direct placement are its areas.
    if !question.receive.is_direct() {
        model = model.partitions(dispatch, combine);
    }
    model.product = question.product;
    if question.product == Product::Hierarchy {
        model = model.hierarchy(question.server_ranks);
        // All traffic of more ranks is too much.
        let only = ACROSS.iter().find(|only| only.iter().all(|to| to.len() == question.ranks as usize));
        model.traffic = only.map_or(model.traffic, |only| Traffic::Given(only));
    }
    model.units = question.rounds;
    model.states_max = question.states_max;
    model.stop = question.stop;
    let mut report = explorer::explore_before(&model.clone().weak(), witness);
    if question.product == Product::A3 && report.counterexample.is_some() {
        let strong = explorer::explore_before(&model, witness);
        if strong.counterexample.is_some() {
            report = strong;
        }
    }
    let told = report.counterexample.iter().flat_map(|timeline| {
        timeline.story.iter().map(ToString::to_string).chain([timeline.violation.to_string()])
    });
    Answer {
        safe: report.counterexample.is_none(),
        searched: true,
        deadlock: report.counterexample.as_ref().is_some_and(|timeline| timeline.violation.is_wait()),
        argued: argued(question),
        states: report.states,
        traffic_matrices: report.traffic_matrices,
        traffic: model.traffic,
        complete: report.complete,
        counterexample: told.collect(),
        timeline: report.counterexample,
        shape: Some(model.shape()),
    }
}

fn of_windows(question: &Question) -> Answer {
    // A half of an operator is none.
    let begun = |rounds: u32| {
        let taken = question.orders.of(0).times(rounds as usize);
        taken.iter().filter(|part| part.begins()).count() as u32
    };
    let operators = question.rounds.map(begun);
    let [halves, _] = question.partitions;
    let Question { ranks, states_max, stop, .. } = *question;
    let report = a2_window_model::explore(ranks as usize, halves, operators, states_max, stop);
    Answer {
        safe: report.counterexample.is_none(),
        searched: true,
        deadlock: false,
        argued: argued(question),
        states: report.states,
        // Every rank sends every peer a window, whatever is in it.
        traffic_matrices: 1,
        traffic: Traffic::All,
        complete: report.complete,
        counterexample: report.counterexample.unwrap_or_default(),
        timeline: None,
        shape: None,
    }
}
