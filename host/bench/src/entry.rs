//! One result row: a system at one point of the grid.

use crate::against;
use crate::arguments::{Baseline, LiveArg};
use crate::blocks::{Block, Ratio};
use crate::load::{Counters, Load};
use crate::measure::Measured;
use core::time::Duration;
use serde::Serialize;
use veriep::cli::{RowCopyArg, name_of};
use veriep::command::quantiles::Quantiles;
use veriep_case::case::Case;
use veriep_case::config::Bs;
use veriep_case::experts::Experts;
use veriep_case::global_rank;
use veriep_core::fabric::raw::RowCopy;
use veriep_core::protocol::Receive;
use veriep_group::traffic;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Machines(LiveArg, Receive, RowCopyArg),
    Baseline(Baseline),
}

/// The name of the machines by where they run.
const fn machines(on: LiveArg) -> &'static str {
    match on {
        LiveArg::Threads => "veriep",
        LiveArg::Processes => "veriep-processes",
        LiveArg::Mpi => "veriep-mpi",
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Subject<'c> {
    pub(crate) case: &'c Case,
    pub(crate) system: System,
    /// None of a baseline.
    pub(crate) row_copy: Option<RowCopy>,
}

/// One system at one point of the grid. Its outputs were the reference's, before the measurement and after it.
#[derive(Serialize)]
pub(crate) struct Entry {
    pub(crate) system: String,
    /// None of a baseline.
    pub(crate) receive: Option<&'static str>,
    /// None of a baseline.
    pub(crate) experts: Option<&'static str>,
    /// None of a baseline. What `auto` chose, if that was asked for.
    row_copy: Option<String>,
    /// None of a baseline.
    #[serde(skip)]
    pub(crate) asked: Option<RowCopyArg>,
    pub(crate) ep_world_size: i64,
    pub(crate) bs: Bs,
    h: i64,
    k: i64,
    moe_expert_num: i64,
    pub(crate) quant_mode: i64,
    dtype: String,
    pub(crate) aiv_num: i64,
    hccl_buffsize_mb: i64,
    /// All ranks begin an operator together.
    pub(crate) dispatch_ms: Option<Quantiles>,
    pub(crate) combine_ms: Option<Quantiles>,
    /// Rounds back to back: ranks wait for each other only as the operators do.
    pub(crate) chained: Chained,
    /// Of the rows that dispatch sends, and of the results that combine returns.
    payload_bytes: u64,
    result_bytes: u64,
    moved_bytes: PerOperator<u64>,
    /// Between the processes of an MPI, all of them together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sent: Option<Sent>,
    /// The bare copies of `moved_bytes`, where there are any.
    pub(crate) memcpy_ms: Option<PerOperator<f64>>,
    /// Other systems by this one, block by block.
    pub(crate) than: Vec<Than>,
    pub(crate) protocol: Option<Protocol>,
    /// Of the processors' time while the point was measured, what a virtual machine did not get.
    pub(crate) stolen_share: Option<f64>,
    /// What was going on while the machines of the point had their turns.
    pub(crate) load: Load,
    /// Payload and results by the median.
    pub(crate) gb_per_s: PerOperator<Option<f64>>,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
pub(crate) struct Chained {
    /// A dispatch and its combine; over the blocks, of each its mean.
    pub(crate) round_ms: Option<Quantiles>,
}

/// What a round sends.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct PerOperator<T> {
    pub(crate) dispatch: T,
    pub(crate) combine: T,
}

/// What another system took, by what this one took in the same block: 2 is twice as fast as that.
#[derive(Serialize)]
pub(crate) struct Than {
    pub(crate) system: String,
    pub(crate) dispatch: Option<Ratio>,
    pub(crate) combine: Option<Ratio>,
    /// Back to back.
    round: Option<Ratio>,
}

/// What operators take when rows weigh nothing.
#[derive(Serialize)]
pub(crate) struct Protocol {
    /// Steps of all machines in a round, their effects, and flags that a worker publishes to a rank of another one.
    steps: u64,
    effects: u64,
    flags: u64,
    /// Of the whole, block by block.
    pub(crate) share: PerOperator<Option<Ratio>>,
    /// With one worker.
    pub(crate) ns_per_step: f64,
    pub(crate) ns_per_effect: f64,
    /// What all workers take more than one, for each flag that crosses.
    pub(crate) ns_per_flag: Option<f64>,
}

/// What is reported of all that was measured at a point.
pub(crate) fn entries(
    subjects: &[Subject<'_>],
    measured: &[Measured],
    threads: usize,
    stolen_share: Option<f64>,
) -> Vec<Entry> {
    let all = || subjects.iter().zip(measured);
    let mut counters = Counters::default();
    measured.iter().for_each(|one| counters.add(one.counters));
    let ranks = subjects.first().map_or(1, |subject| global_rank::count(&subject.case.shape) as usize);
    let load = counters.load(threads.min(ranks), stolen_share);
    all()
        .map(|(subject, mine)| {
            let beside = |(other, theirs): (&Subject<'_>, &Measured)| {
                Some(than_other(compared(subject, other)?, theirs, mine))
            };
            let than = memcpy(mine).into_iter().chain(all().filter_map(beside)).collect();
            let protocol = protocol(mine, global_rank::count(&subject.case.shape) as usize, threads);
            Entry { than, protocol, stolen_share, load, ..entry(subject, mine) }
        })
        .collect()
}

/// What another system is called beside this one, if the two are compared. Machines are compared with baselines of the same
/// quantisation; those of several processes with those of fewer; what is quantised with what is not; ways to copy rows with
/// those before them in [`RowCopyArg`]; and experts that overwrite with those that do not.
fn compared(mine: &Subject<'_>, other: &Subject<'_>) -> Option<String> {
    let (config, its) = (&mine.case.config, &other.case.config);
    let (has_its_mode, has_its_cores) = (config.quant_mode == its.quant_mode, config.aiv_num == its.aiv_num);
    match (mine.system, other.system) {
        (System::Machines(..), System::Baseline(baseline)) => has_its_mode.then(|| name_of(baseline)),
        (System::Machines(on, receive, copy), System::Machines(its_on, its_receive, its_copy))
            if on != its_on =>
        {
            let is_alike = (receive, copy) == (its_receive, its_copy) && has_its_mode && has_its_cores;
            (is_alike && on > its_on).then(|| machines(its_on).to_owned())
        }
        (System::Machines(LiveArg::Threads, receive, copy), System::Machines(_, its_receive, its_copy))
            if has_its_cores =>
        {
            if receive != its_receive {
                let is_overwritten = receive.overwrites() && its_receive.is_direct();
                (is_overwritten && copy == its_copy && has_its_mode)
                    .then(|| format!("experts = {}", Experts::under(its_receive).name()))
            } else if copy != its_copy {
                (its_copy < copy && has_its_mode).then(|| format!("row_copy = {}", name_of(its_copy)))
            } else {
                (config.quant_mode != 0 && its.quant_mode == 0).then(|| "quant_mode = 0".to_owned())
            }
        }
        (System::Machines(..), System::Machines(..)) | (System::Baseline(_), _) => None,
    }
}

fn than_other(system: String, theirs: &Measured, own: &Measured) -> Than {
    let of = |times: fn(&Block) -> f64| {
        Ratio::of(theirs.blocks.iter().zip(&own.blocks).map(|(theirs, own)| (times(theirs), times(own))))
    };
    Than {
        system,
        dispatch: of(|block| block.dispatch_ms),
        combine: of(|block| block.combine_ms),
        round: of(|block| block.round_ms),
    }
}

/// The median of what the blocks say.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Ratio::of(values.map(|value| (value, 1.0))).map(|ratio| ratio.median)
}

fn memcpy(mine: &Measured) -> Option<Than> {
    let of = |operator: usize, mine_of: fn(&Block) -> f64| {
        let with = |block: &Block| Some((block.memcpy_ms?[operator], mine_of(block)));
        Ratio::of(mine.blocks.iter().filter_map(with))
    };
    let dispatch = Some(of(0, |block| block.dispatch_ms)?);
    Some(Than {
        system: "memcpy".to_owned(),
        dispatch,
        combine: of(1, |block| block.combine_ms),
        round: None,
    })
}

fn protocol(mine: &Measured, ranks: usize, threads: usize) -> Option<Protocol> {
    let counts = mine.counts?;
    let share = |operator: usize, whole: fn(&Block) -> f64| {
        let with = |block: &Block| Some((block.without_rows_ms?[0][operator], whole(block)));
        Ratio::of(mine.blocks.iter().filter_map(with))
    };
    // Medians over the blocks of what a block says.
    let over = |value: &dyn Fn([[f64; 2]; 2]) -> f64| {
        median(mine.blocks.iter().filter_map(|block| block.without_rows_ms).map(value)).unwrap_or_default()
    };
    let sum = |times: [f64; 2]| times.iter().sum::<f64>() * 1e6;
    let one = over(&|[_, one]| sum(one));
    // A worker without a rank has nothing to do.
    let workers = threads.min(ranks);
    let more = over(&|[all, one]| workers as f64 * sum(all) - sum(one));
    Some(Protocol {
        steps: counts.steps,
        effects: counts.effects,
        flags: counts.crossing,
        share: PerOperator { dispatch: share(0, |b| b.dispatch_ms), combine: share(1, |b| b.combine_ms) },
        ns_per_step: one / counts.steps as f64,
        ns_per_effect: one / counts.effects as f64,
        ns_per_flag: (counts.crossing > 0).then(|| more / counts.crossing as f64),
    })
}

fn entry(subject: &Subject<'_>, measured: &Measured) -> Entry {
    let (config, bytes) = (&subject.case.config, traffic::Bytes::of(subject.case));
    let (system, moved, way) = match subject.system {
        System::Machines(on, receive, copy) => {
            (machines(on).to_owned(), bytes.moved(receive), Some((receive, copy)))
        }
        System::Baseline(baseline) => (name_of(baseline), against::moved(baseline, &bytes), None),
    };
    let Measured { single, blocks, .. } = measured;
    let (dispatch_ms, combine_ms) = (Quantiles::of(&single.dispatch), Quantiles::of(&single.combine));
    let median_of =
        |operator: usize| median(blocks.iter().filter_map(|block| Some(block.memcpy_ms?[operator])));
    let memcpy_ms =
        median_of(0).zip(median_of(1)).map(|(dispatch, combine)| PerOperator { dispatch, combine });
    let gb_per_s = |bytes: u64, ms: Option<Quantiles>| {
        ms.map(|q| q.median).filter(|&ms| ms > 0.0).map(|ms| bytes as f64 / ms / 1e6)
    };
    let rounds: Vec<_> = blocks.iter().map(|block| Duration::from_secs_f64(block.round_ms / 1e3)).collect();
    Entry {
        system,
        receive: way.map(|(receive, _)| receive.name()),
        experts: way.map(|(receive, _)| Experts::under(receive).name()),
        row_copy: subject.row_copy.map(|way| name_of(RowCopyArg::from(way))),
        asked: way.map(|(_, asked)| asked),
        ep_world_size: config.ep_world_size,
        bs: config.bs.clone(),
        h: config.h,
        k: config.k,
        moe_expert_num: config.moe_expert_num,
        quant_mode: config.quant_mode,
        dtype: config.dtype.clone(),
        aiv_num: config.aiv_num,
        hccl_buffsize_mb: config.hccl_buffsize_mb,
        dispatch_ms,
        combine_ms,
        chained: Chained { round_ms: Quantiles::of(&rounds) },
        payload_bytes: bytes.payload,
        result_bytes: bytes.results,
        moved_bytes: PerOperator { dispatch: moved.0, combine: moved.1 },
        sent: measured.sent.map(|[messages, bytes]| Sent { messages, bytes }),
        memcpy_ms,
        than: Vec::new(),
        protocol: None,
        stolen_share: None,
        load: Load::default(),
        gb_per_s: PerOperator {
            dispatch: gb_per_s(bytes.payload, dispatch_ms),
            combine: gb_per_s(bytes.results, combine_ms),
        },
        blocks: blocks.clone(),
    }
}
