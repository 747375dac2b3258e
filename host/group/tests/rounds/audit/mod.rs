//! An audit of what ranks send: every transfer is counted and compared with the plan. On a hierarchy every token crosses to a server at most
//! once, and only to one that has an expert of it; a relay forwards a row only to whom it belongs; sums come back
//! likewise. On the full mesh every window holds the rows that its receiver is to get.

mod astray;
mod count;

pub(crate) use astray::Astray;

use astray::Redirect;
use count::{Bytes, Counted, Counts, Load};
use veriep_case::batch::Batch;
use veriep_case::error::Error;
use veriep_core::fabric::nic::Transfer;
use veriep_core::layout::a2_window::sent_bytes;
use veriep_core::layout::relay as layout;
use veriep_core::plan::relay;
use veriep_core::plan::route;
use veriep_core::protocol::{Operator, Stage};
use veriep_core::shape::{Product, Protocol, Shape};
use veriep_core::sim::cluster::Planned;
use veriep_core::units::{CoreId, Pair, RankId, Token};
use veriep_group::backend::inject::Inject;
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Backend, Layer, Layered};
use veriep_group::driver::threads::{Times, Workers};
use veriep_group::driver::{self, Failure, Unit};
use veriep_testing::trial::Trial;

/// A rank whose traffic is redundant.
#[derive(Clone, Copy, Default)]
pub(crate) struct Redundant {
    /// It sends everything to other servers twice.
    pub(crate) twice: Option<RankId>,
    pub(crate) astray: Option<Astray>,
}

/// What went one way in an operator, all ranks together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Rows; of a hierarchy across servers, tokens or their sums.
    pub(crate) rows: u64,
    pub(crate) row_bytes: u64,
    /// Bytes of all that was written, flags and lists included.
    pub(crate) bytes: u64,
}

/// What changed ranks in an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// To other servers.
    pub(crate) across: Way,
    /// To other ranks of the same server.
    pub(crate) inside: Way,
}

/// Runs a trial in lockstep. What each operator moved, for every unit.
pub(crate) fn in_lockstep(
    trial: &Trial<'_>,
    memory: Memory,
    redundant: Redundant,
) -> Result<Vec<Vec<Moved>>, Error> {
    let memory = Lockstep::new(trial.case, trial.batches(), memory, 1).expect("memory");
    audited(trial, memory, redundant, |unit| {
        let steps = driver::lockstep::run(unit)?;
        Ok(Times { steps, ..Times::default() })
    })
}

/// The same on threads.
pub(crate) fn on_threads(
    trial: &Trial<'_>,
    workers: &Workers,
    redundant: Redundant,
) -> Result<Vec<Vec<Moved>>, Error> {
    let memory = SharedMemory::new(trial.case, trial.batches()).unwrap();
    audited(trial, memory, redundant, |unit| driver::threads::run(unit, workers))
}

/// A memory with the layers of a run, and the layer that counts.
type Audited<B> = Layered<Redirect, Layered<Inject, Layered<Counted, Layered<RankRemap, B>>>>;

fn audited<B: Backend>(
    trial: &Trial<'_>,
    memory: B,
    redundant: Redundant,
    drive: impl Fn(&Unit<'_, Audited<B>>) -> Result<Times, Failure>,
) -> Result<Vec<Vec<Moved>>, Error> {
    let shape = &trial.case.shape;
    let inject = Inject {
        killed: None,
        slow: None,
        late: None,
        silent: None,
        twice: redundant.twice,
        shape: shape.clone(),
        choices: trial.options.choices,
    };
    let counted = Counted::of(shape).over(RankRemap::of(trial.case).over(memory));
    let backend = Redirect(redundant.astray).over(inject.over(counted));
    let mut moved = Vec::new();
    trial.run(&backend, |unit| {
        let times = drive(unit)?;
        moved.push(check(unit, &unit.backend.inner.inner.layer.take())?);
        Ok(times)
    })?;
    Ok(moved)
}

/// A record from rank to rank: of which token. Whose it is follows from the operator.
type Record = (RankId, RankId, u32);
/// A row inside a server from rank to rank: of which source's token, at which position.
type Row = (RankId, RankId, RankId, u32, u32);

/// Compares the counts of a unit with the plan. What was moved, by operator; nothing where ranks have no servers.
///
/// # Errors
/// Something was sent that is not in the plan, or twice, or not at all.
fn check<B>(unit: &Unit<'_, B>, counts: &Counts) -> Result<Vec<Moved>, Failure> {
    let (shape, batches) = (unit.shape, unit.batches);
    if shape.product() != Product::A2 {
        return Ok(Vec::new());
    }
    let audit = Audit { shape, stage: unit.options.choices.stage, counts };
    let of = |(number, &Planned { operator, round: batch, .. }): (usize, &Planned)| {
        let moved = match shape.protocol() {
            Protocol::Hierarchy => audit.servers(number, operator, &batches[batch]),
            _ => audit.mesh(number, operator, &batches[batch]),
        };
        moved.map_err(|why| Failure::Traffic(format!("{} of batch {batch}: {why}", operator.name())))
    };
    unit.operators.iter().enumerate().map(of).collect()
}

struct Audit<'a> {
    shape: &'a Shape,
    stage: Stage,
    counts: &'a Counts,
}

impl Audit<'_> {
    fn ranks(&self) -> impl Iterator<Item = RankId> + use<> {
        (0..self.shape.ep_world_size()).map(RankId)
    }

    fn server(&self, rank: RankId) -> u32 {
        self.shape.server_of(rank).0
    }

    /// Bytes of an operator by rank: of its cores, and of what its agent posted.
    fn bytes(&self, number: usize) -> Result<Vec<Bytes>, String> {
        let cores = self.shape.aiv_num() as usize;
        let of = |rank: RankId| {
            let logs = self.counts.cores.iter().skip(rank.index() * cores).take(cores);
            let mut sum = Bytes::default();
            for bytes in logs.filter_map(|log| log.bytes.get(number)) {
                sum.across += bytes.across;
                sum.inside += bytes.inside;
            }
            for posted in self.posted(number, rank)? {
                let near = self.server(posted.to) == self.server(rank);
                *(if near { &mut sum.inside } else { &mut sum.across }) += posted.len;
            }
            Ok(sum)
        };
        self.ranks().map(of).collect()
    }

    /// Ranks for which an agent has a task in every operator.
    fn peers(&self) -> usize {
        (match (self.shape.protocol(), self.stage) {
            (Protocol::Hierarchy, Stage::Three) => 0,
            (Protocol::Hierarchy, Stage::Two) => self.shape.servers() - 1,
            _ => self.shape.ep_world_size() - 1,
        }) as usize
    }

    /// What an agent posted for an operator: one task for each peer.
    fn posted(&self, number: usize, rank: RankId) -> Result<&[Transfer], String> {
        let peers = self.peers();
        let all = &self.counts.agents[rank.index()];
        let due = peers * self.counts.cores[rank.index() * self.shape.aiv_num() as usize].bytes.len();
        if all.len() != due {
            return Err(format!(
                "the agent of rank {rank} has posted {} tasks in all operators, not {due}",
                all.len()
            ));
        }
        Ok(&all[number * peers..(number + 1) * peers])
    }

    fn servers(&self, number: usize, kind: Operator, batch: &Batch<'_>) -> Result<Moved, String> {
        let (records, rows) = self.written(number)?;
        let (planned_records, planned_rows) = self.planned(kind, batch);
        hold(records.clone(), planned_records, |fault, (from, to, token)| {
            let what = match kind {
                Operator::Dispatch => format!("token {token} of rank {from}"),
                Operator::Combine => format!("the sum of rank {from} for token {token} of rank {to}"),
            };
            match fault {
                Fault::Twice => format!("{what} crossed to server {} twice", self.server(to)),
                Fault::Missing => format!("{what} never crossed to server {}", self.server(to)),
                Fault::Unplanned => format!("{what} went to rank {to}, where it is not needed"),
            }
        })?;
        hold(rows.clone(), planned_rows, |fault, (from, to, source, token, position)| {
            let what = format!("row {position} of token {token} of rank {source}");
            match fault {
                Fault::Twice => format!("rank {from} put {what} to rank {to} twice"),
                Fault::Missing => format!("rank {from} never put {what} to rank {to}"),
                Fault::Unplanned => format!("rank {from} put {what} to rank {to}, which needs it not"),
            }
        })?;
        let (record, row) = match kind {
            Operator::Dispatch => (self.shape.payload_bytes(), self.shape.payload_bytes()),
            Operator::Combine => (self.shape.result_bytes(), self.shape.row_bytes()),
        };
        self.gathered(number, kind, &records)?;
        let inside = rows.iter().filter(|(from, to, ..)| from != to).count() as u64;
        let across = records.len() as u64;
        self.moved(number, (across, record), (inside, row))
    }

    fn moved(
        &self,
        number: usize,
        (across, record): (u64, u64),
        (inside, row): (u64, u64),
    ) -> Result<Moved, String> {
        let bytes = self.bytes(number)?;
        let way = |rows, row, bytes| Way { rows, row_bytes: rows * row, bytes };
        Ok(Moved {
            across: way(across, record, bytes.iter().map(|bytes| bytes.across).sum()),
            inside: way(inside, row, bytes.iter().map(|bytes| bytes.inside).sum()),
        })
    }

    /// What cores have written in an operator.
    fn written(&self, number: usize) -> Result<(Vec<Record>, Vec<Row>), String> {
        let (mut records, mut rows) = (Vec::new(), Vec::new());
        let cores = self.ranks().flat_map(|rank| (0..self.shape.aiv_num()).map(move |c| (rank, CoreId(c))));
        for ((from, core), log) in cores.zip(&self.counts.cores) {
            for write in log.writes.iter().filter(|write| write.operator as usize == number) {
                match write.load {
                    Load::Record { token } => records.push((from, write.to, token)),
                    Load::Row { source, token, position } => {
                        rows.push((from, write.to, source, token, position));
                    }
                    Load::Unknown => {
                        let to = write.to;
                        return Err(format!(
                            "core {core} of rank {from} put something to rank {to} that is no row"
                        ));
                    }
                }
            }
        }
        Ok((records, rows))
    }

    fn planned(&self, kind: Operator, batch: &Batch<'_>) -> (Vec<Record>, Vec<Row>) {
        let shape = self.shape;
        let (mut records, mut rows) = (Vec::new(), Vec::new());
        for rank in self.ranks() {
            let ids = batch.inputs(rank).expert_ids;
            for crossing in relay::across(shape, rank, ids) {
                let relay = shape.relay(rank, crossing.server);
                let (from, to) = way(kind, rank, relay);
                records.push((from, to, crossing.token.0));
            }
            for (token, server, forward) in relay::inside(shape, ids) {
                let (from, to) = way(kind, shape.relay(rank, server), forward.home.rank);
                rows.push((from, to, rank, token.0, forward.part.position));
            }
        }
        (records, rows)
    }

    /// In stage 2 a task carries the records that were gathered for it, and their end flag.
    fn gathered(&self, number: usize, kind: Operator, records: &[Record]) -> Result<(), String> {
        for rank in self.ranks() {
            for &Transfer { to, len, .. } in self.posted(number, rank)? {
                let n = records.iter().filter(|&&(from, dest, _)| from == rank && dest == to).count();
                let due = layout::gathered_bytes(self.shape, kind, n as u32);
                if len != due {
                    return Err(format!("rank {rank} posted {len} bytes to rank {to}, not {due}"));
                }
            }
        }
        Ok(())
    }

    fn mesh(&self, number: usize, kind: Operator, batch: &Batch<'_>) -> Result<Moved, String> {
        let shape = self.shape;
        let ranks = shape.ep_world_size() as usize;
        let mut planned = vec![0; ranks * ranks];
        for rank in self.ranks() {
            let inputs = batch.inputs(rank);
            let pairs = (0..shape.bs(rank)).flat_map(|t| (0..shape.k()).map(move |k| (Token(t), k)));
            for home in pairs.filter_map(|(token, k)| route::home(shape, rank, &inputs, Pair { token, k })) {
                let (from, to) = way(kind, rank, home.rank);
                planned[from.index() * ranks + to.index()] += 1;
            }
        }
        let row = match kind {
            Operator::Dispatch => shape.payload_bytes(),
            Operator::Combine => shape.row_bytes(),
        };
        let (mut across, mut inside) = (0, 0);
        for rank in self.ranks() {
            for &Transfer { to, len, .. } in self.posted(number, rank)? {
                let due = planned[rank.index() * ranks + to.index()];
                if len != sent_bytes(shape, kind, due) {
                    return Err(format!("the window of rank {rank} to rank {to} has not {due} rows"));
                }
                let near = self.server(to) == self.server(rank);
                *(if near { &mut inside } else { &mut across }) += u64::from(due);
            }
        }
        self.moved(number, (across, row), (inside, row))
    }
}

/// Results come back the way that tokens went.
const fn way(kind: Operator, from: RankId, to: RankId) -> (RankId, RankId) {
    match kind {
        Operator::Dispatch => (from, to),
        Operator::Combine => (to, from),
    }
}

/// How what was seen differs from the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Twice,
    Missing,
    Unplanned,
}

/// Compares what was seen with a plan in which nothing is twice.
fn hold<T: Copy + Ord>(
    mut seen: Vec<T>,
    mut planned: Vec<T>,
    what: impl Fn(Fault, T) -> String,
) -> Result<(), String> {
    seen.sort_unstable();
    planned.sort_unstable();
    if let Some(&twice) = seen.windows(2).find(|pair| pair[0] == pair[1]).and_then(|pair| pair.first()) {
        return Err(what(Fault::Twice, twice));
    }
    if let Some(&unplanned) = seen.iter().find(|item| planned.binary_search(item).is_err()) {
        return Err(what(Fault::Unplanned, unplanned));
    }
    if let Some(&missing) = planned.iter().find(|item| seen.binary_search(item).is_err()) {
        return Err(what(Fault::Missing, missing));
    }
    Ok(())
}

#[test]
fn what_is_twice_or_too_much_or_missing_is_told_apart() {
    let of = |seen: &[u32], planned: &[u32]| {
        hold(seen.to_vec(), planned.to_vec(), |fault, item| format!("{fault:?} {item}"))
    };
    assert_eq!(of(&[2, 1], &[1, 2]), Ok(()));
    assert_eq!(of(&[2, 1, 2], &[1, 2]), Err("Twice 2".to_owned()));
    assert_eq!(of(&[1, 2, 3], &[1, 2]), Err("Unplanned 3".to_owned()));
    assert_eq!(of(&[2], &[1, 2]), Err("Missing 1".to_owned()));
}
