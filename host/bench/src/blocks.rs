//! Systems measured alternately. A machine's speed may change by more than the systems differ, from one second to the
//! next; so each is measured for a moment, then the next one, and what is compared are neighbours in time.

use crate::arguments::BenchArgs;
use crate::live::{Counts, threads};
use crate::load::Moment;
use crate::measure::{Measured, Samples};
use core::time::Duration;
use serde::Serialize;
use veriep::command::quantiles::millis;
use veriep_case::error::Error;
use veriep_group::interrupt;

/// What is measured. Between its turns it sleeps, so that the others have the processors.
pub(crate) trait System {
    /// Compares what it puts out with the reference; `name` is that of the check.
    fn check(&mut self, name: &str) -> Result<(), Error>;

    /// Times of iterations whose operators all ranks begin together, after some to warm up.
    fn single(&mut self, warm_up: u32, iterations: u32) -> Result<Samples, Error>;

    /// What a round takes of so many back to back.
    fn chain(&mut self, rounds: u32) -> Result<Duration, Error>;

    /// Messages of a round of the last chain between processes, and their bytes, where that is known.
    fn sent(&self) -> Option<[u64; 2]> {
        None
    }

    /// Returns whether the workers are threads of this process. Elsewhere ranks are processes; if there are more of them than
    /// processors, they wait for each other.
    fn is_here(&self) -> bool {
        false
    }

    /// Returns the times of bare copies of as many rounds; empty for a system that is not compared with them.
    fn bare(&mut self, _warm_up: u32, _iterations: u32) -> Result<Samples, Error> {
        Ok(Samples::default())
    }

    /// Returns the times of rounds in which no row is copied, and their counts; `None` for a system without machines.
    fn without_rows(
        &mut self,
        _workers: usize,
        (_warm_up, _iterations): (u32, u32),
    ) -> Result<Option<(Samples, Counts)>, Error> {
        Ok(None)
    }
}

/// One turn of a system, in milliseconds; medians of its iterations.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Block {
    pub(crate) dispatch_ms: f64,
    pub(crate) combine_ms: f64,
    /// Of rounds back to back.
    pub(crate) round_ms: f64,
    /// The bare copies, right behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memcpy_ms: Option<[f64; 2]>,
    /// What is left when rows weigh nothing: with all workers and with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without_rows_ms: Option<[[f64; 2]; 2]>,
}

/// Measures all alternately: in each block every system once, another one first each time. What comes out is in the order
/// of `systems`.
pub(crate) fn measure(
    systems: &mut [Box<dyn System + '_>],
    args: &BenchArgs,
    tick: &dyn Fn(),
) -> Result<Vec<Measured>, Error> {
    for system in systems.iter_mut() {
        system.check("before")?;
    }
    let mut measured: Vec<Measured> = systems.iter().map(|_| Measured::default()).collect();
    for block in 0..args.blocks as usize {
        for turn in 0..systems.len() {
            if interrupt::is_asked() {
                break;
            }
            let i = (block + turn) % systems.len();
            one_turn(systems[i].as_mut(), args, &mut measured[i])?;
            tick();
        }
    }
    for (system, measured) in systems.iter_mut().zip(&mut measured) {
        if args.protocol {
            measured.counts = system.without_rows(threads(args), (0, 1))?.map(|(_, counts)| counts);
        }
        measured.sent = system.sent();
        system.check("after")?;
    }
    Ok(measured)
}

/// Measures single iterations and a chain; of machines also the bare copies, and rounds in which no row is copied.
fn one_turn(system: &mut dyn System, args: &BenchArgs, measured: &mut Measured) -> Result<(), Error> {
    let BenchArgs { warm_up, iters, .. } = *args;
    let before = Moment::now();
    let single = system.single(warm_up, iters)?;
    let mut block = Block { round_ms: millis(system.chain(iters)?), ..Block::default() };
    if system.is_here() {
        measured.counters.add(before.elapsed());
    }
    [block.dispatch_ms, block.combine_ms] = single.medians();
    let copies = system.bare(warm_up, iters)?;
    block.memcpy_ms = (!copies.is_empty()).then(|| copies.medians());
    if args.protocol {
        let mut on = |workers| -> Result<_, Error> {
            Ok(system.without_rows(workers, (warm_up, iters))?.map(|(times, _)| times.medians()))
        };
        block.without_rows_ms = on(threads(args))?.zip(on(1)?).map(<[_; 2]>::from);
    }
    measured.single.dispatch.extend(single.dispatch);
    measured.single.combine.extend(single.combine);
    measured.blocks.push(block);
    Ok(())
}

/// How many times as long another system took, in the same block; 2 is half as fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Over the blocks.
    pub(crate) median: f64,
    /// A quarter of the blocks have less.
    pub(crate) low: f64,
    /// A quarter have more.
    pub(crate) high: f64,
}

impl Ratio {
    /// `None` of no blocks.
    pub(crate) fn of(theirs_over_mine: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
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
