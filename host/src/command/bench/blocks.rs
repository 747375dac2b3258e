//! Systems measured by turns. A machine's speed may change by more than the systems differ, from one second to the
//! next; so each is measured for a moment, then the next one, and what is compared are neighbours in time.

use super::live::Group;
use super::load::{Counters, Moment};
use super::{Measured, Samples};
use crate::cli::BenchArgs;
use crate::command::quantiles::millis;
use crate::error::Error;
use crate::interrupt;
use core::time::Duration;
use serde::Serialize;

/// What is measured. Between its turns it sleeps, so that the others have the processors.
pub(super) trait System {
    /// Compares what it puts out with the oracle; `name` is that of the check.
    fn check(&mut self, name: &str) -> Result<(), Error>;

    /// Times of iterations whose operators all ranks begin together, behind some to warm up.
    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error>;

    /// What a round takes of so many back to back.
    fn chain(&mut self, rounds: u32) -> Result<Duration, Error>;

    /// Messages of a round of the last chain between processes, and their bytes, where that is known.
    fn sent(&self) -> Option<[u64; 2]> {
        None
    }
}

/// A system at a point of the grid.
pub(super) enum Contender<'c> {
    Machines(Box<Group<'c>>),
    Other(Box<dyn System + 'c>),
}

impl<'c> Contender<'c> {
    fn system(&mut self) -> &mut (dyn System + 'c) {
        match self {
            Self::Machines(group) => group.as_mut(),
            Self::Other(system) => system.as_mut(),
        }
    }
}

/// One turn of a system, in milliseconds; medians of its iterations.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Block {
    pub(super) dispatch_ms: f64,
    pub(super) combine_ms: f64,
    /// Of rounds back to back.
    pub(super) round_ms: f64,
    /// The bare copies, right behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memcpy_ms: Option<[f64; 2]>,
    /// What is left when rows weigh nothing: with all workers and with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weightless_ms: Option<[[f64; 2]; 2]>,
}

/// Measures all by turns: in each block every system once, another one first each time. What comes out is in the order
/// of `contenders`.
pub(super) fn measure(
    contenders: &mut [Contender<'_>],
    args: &BenchArgs,
    tick: &dyn Fn(),
) -> Result<Vec<Measured>, Error> {
    for contender in contenders.iter_mut() {
        contender.system().check("before")?;
    }
    let mut measured: Vec<Measured> = contenders.iter().map(|_| Measured::default()).collect();
    for block in 0..args.blocks as usize {
        for turn in 0..contenders.len() {
            if interrupt::is_asked() {
                break;
            }
            let i = (block + turn) % contenders.len();
            measured[i].add(one_turn(&mut contenders[i], args)?);
            tick();
        }
    }
    for (contender, measured) in contenders.iter_mut().zip(&mut measured) {
        if let Contender::Machines(group) = contender
            && args.protocol
        {
            measured.counts = Some(group.weightless(super::live::threads(args), (0, 1))?.1);
        }
        measured.sent = contender.system().sent();
        contender.system().check("after")?;
    }
    Ok(measured)
}

/// What a turn gives: single iterations, the mean of a chain, and beside machines what they are compared with.
pub(super) struct Turn {
    pub(super) single: Samples,
    pub(super) block: Block,
    /// Of machines.
    pub(super) counters: Counters,
}

fn one_turn(contender: &mut Contender<'_>, args: &BenchArgs) -> Result<Turn, Error> {
    let BenchArgs { warm_up, iters, .. } = *args;
    let before = Moment::now();
    let single = contender.system().single(warm_up, iters)?;
    let mut block = Block { round_ms: millis(contender.system().chain(iters)?), ..Block::default() };
    // Ranks of a baseline are processes, which may be more than processors: they wait for each other.
    let is_own = matches!(contender, Contender::Machines(_));
    let counters = if is_own { before.elapsed() } else { Counters::default() };
    [block.dispatch_ms, block.combine_ms] = single.medians();
    if let Contender::Machines(group) = contender {
        let copies = group.bare(warm_up, iters)?;
        block.memcpy_ms = (!copies.is_empty()).then(|| copies.medians());
        if args.protocol {
            let mut on =
                |workers| group.weightless(workers, (warm_up, iters)).map(|(times, _)| times.medians());
            block.weightless_ms = Some([on(super::live::threads(args))?, on(1)?]);
        }
    }
    Ok(Turn { single, block, counters })
}

/// How many times as long another system took, in the same block; 2 is half as fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ratio {
    /// Over the blocks.
    pub(super) median: f64,
    /// A quarter of the blocks have less.
    pub(super) low: f64,
    /// A quarter have more.
    pub(super) high: f64,
}

impl Ratio {
    /// `None` of no blocks.
    pub(super) fn of(theirs_over_mine: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let mut all: Vec<f64> =
            theirs_over_mine.filter(|&(_, mine)| mine > 0.0).map(|(theirs, mine)| theirs / mine).collect();
        all.sort_by(f64::total_cmp);
        let at = |quarters: usize| all.get((all.len().saturating_sub(1) * quarters + 2) / 4).copied();
        Some(Self { median: at(2)?, low: at(1)?, high: at(3)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_neighbours_and_not_of_medians() {
        // The machine is three times slower in every other block; the other system takes twice as long throughout.
        let blocks = [(2.0, 1.0), (6.0, 3.0), (2.0, 1.0), (6.0, 3.0), (2.2, 1.0)];
        let ratio = Ratio::of(blocks.into_iter()).expect("blocks");
        assert_eq!(ratio, Ratio { median: 2.0, low: 2.0, high: 2.0 });
        assert_eq!(Ratio::of([(1.0, 0.0)].into_iter()), None);
    }
}
