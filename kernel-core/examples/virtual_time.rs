//! A chooser ordered by time turns a simulated group into a simulator: every step takes the same time, and every effect the
//! time of its bytes on a link of its own. Prints the time at which the last rank ended, and the number of choices per
//! second.
//!
//! `cargo run --release --example virtual_time --features sim [RANKS CORES TOKENS]`

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;
use veriep_core::inputs::Inputs;
use veriep_core::place::Tensor;
use veriep_core::protocol::{Choices, Operator};
use veriep_core::shape::{BatchSizes, Buffer, Config, Limits, Shape};
use veriep_core::sim::Memory;
use veriep_core::sim::chooser::{Actor, Choice, Chooser, Lands};
use veriep_core::sim::cluster::{Cluster, Failure, Planned, World, schedule};
use veriep_core::sim::flight::{Flight, FlightId};
use veriep_core::sim::storage::{Sparse, group_sizes};
use veriep_core::units::RankId;

/// Nanoseconds of a step, and of the transport to another rank.
const STEP: u64 = 50;
const LATENCY: u64 = 800;
/// The number of rounds, one after the other.
const ROUNDS: usize = 4;
/// Bytes per nanosecond of a link.
const BANDWIDTH: u64 = 28;

/// Offers by the time at which they are due; of offers at one time the earlier one first.
#[derive(Default)]
struct Timed {
    now: u64,
    offers: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Choice)>>,
    /// The time at which the bytes of flights that must wait for others have been transported.
    crossed: HashMap<FlightId, u64>,
}

impl Timed {
    fn offer(&mut self, at: u64, choice: Choice) {
        self.offers += 1;
        self.queue.push(Reverse((at, self.offers, choice)));
    }
}

impl Chooser for Timed {
    fn next(&mut self) -> Option<Choice> {
        let Reverse((at, _, choice)) = self.queue.pop()?;
        self.now = at;
        Some(choice)
    }

    fn issued(&mut self, flight: FlightId, what: &Flight) -> Lands {
        self.crossed.insert(flight, self.now + LATENCY + what.weight / BANDWIDTH);
        Lands::Later
    }

    fn may_land(&mut self, flight: FlightId, _: &Flight) {
        let crossed = self.crossed.remove(&flight).unwrap_or(0);
        self.offer(crossed.max(self.now), Choice::Land(flight, u64::MAX));
    }

    fn may_step(&mut self, actor: Actor) {
        self.offer(self.now + STEP, Choice::Step(actor));
    }
}

/// Tokens of one value, and experts that return zeros.
struct Plain {
    x: Vec<u8>,
    /// The tensors by rank.
    ids: Vec<Vec<i32>>,
    scales: Vec<f32>,
}

impl World<Sparse, Timed> for Plain {
    fn inputs(&self, member: RankId, _: usize) -> Inputs<'_> {
        let ids = &self.ids[member.index()];
        Inputs { x: &self.x, expert_ids: ids, expert_scales: &self.scales, ..Inputs::default() }
    }

    fn ended(
        &mut self,
        cluster: &mut Cluster<'_, Sparse, Timed>,
        i: usize,
        planned: Planned,
    ) -> Result<(), Failure> {
        if planned.operator == Operator::Dispatch {
            let counts = cluster.output(i, planned.round, Tensor::EpRecvCounts);
            let rows = counts.last_chunk().map_or(0, |&last| u32::from_le_bytes(last));
            let y = vec![0; rows as usize * cluster.shape.row_bytes() as usize];
            cluster.members[i].returned[planned.round] = cluster.returned(i, planned.round, y);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn core::error::Error>> {
    let numbers: Vec<i64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [ranks, cores, tokens] = numbers.try_into().unwrap_or([288, 8, 16]);
    let k = 8.min(ranks);
    let config = Config {
        ep_world_size: ranks,
        moe_expert_num: ranks,
        k,
        h: 16,
        bs: BatchSizes::Uniform(tokens),
        aiv_num: cores,
        ..Config::default()
    };
    let required = Buffer::with(&config, Limits::None).required_mb;
    let config = Config { hccl_buffsize_mb: required.try_into()?, ..config };
    let shape = Shape::new(&config, Limits::None)?;
    // Token t of rank r goes to k ranks at even distances.
    let expert = |rank: i64, token: i64, i: i64| ((rank + 7 * token + i * ranks / k) % ranks) as i32;
    let of_rank = |rank| (0..tokens).flat_map(move |t| (0..k).map(move |i| expert(rank, t, i))).collect();
    let mut world = Plain {
        x: vec![0; tokens as usize * shape.row_bytes() as usize],
        ids: (0..ranks).map(of_rank).collect(),
        scales: vec![1.0; (tokens * k) as usize],
    };
    let storage = Sparse::new(group_sizes(&shape), 1024);
    let mut memory = Memory::new(&shape, storage, Timed::default());
    memory.rewrites = true;
    let mut cluster = Cluster::new(&shape, Choices::default(), memory, schedule("DC", ROUNDS));
    (cluster.checked, cluster.one_by_one) = (false, |_| false);
    let start = Instant::now();
    let choices = cluster.run(&mut world).map_err(|failure| format!("{failure:?}"))?;
    let seconds = start.elapsed().as_secs_f64();
    let now = cluster.memory.chooser.now;
    println!("{ranks} ranks of {cores} cores, {tokens} tokens: ended after {:.1} us", now as f64 / 1e3);
    println!("{choices} choices in {seconds:.2} s: {:.2} million a second", choices as f64 / 1e6 / seconds);
    Ok(())
}
