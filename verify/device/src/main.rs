//! Dispatch and combine of two ranks on a GPU, each core as a thread and as a warp, compared with the reference; and litmus programs.
//!
//! `device KERNELS [all]` runs scenes for some rounds. Status 0: all results are right, and a twin's are found wrong; or there
//! is no GPU here, and the program says so. Status 1: something is wrong. The kernels are PTX, which `.ci/device` writes, or what
//! an assembler makes of it.

mod gpu;
mod litmus;

use device_kernels::{
    AGENT_BYTES, CORES, Job, LANES, RANKS, Role, SCENES, SCENES_OF_A3, Said, Scene, job, scene,
};
use gpu::{Buffer, Device, Wrong};
use litmus::REPETITIONS_MAX;
use veriep_core::fabric::raw::{Outputs, Peer};
use veriep_core::inputs::Inputs;
use veriep_core::place::{Place, Tensor};
use veriep_core::protocol::{scratch_bytes, scratch_words};
use veriep_core::reference::Cluster;
use veriep_core::shape::{Limits, Shape};
use veriep_core::sim::chooser::Dice;
use veriep_core::sim::storage::group_sizes;
use veriep_core::units::RankId;

/// Rounds of each scene: partitions, selectors and epochs are used again and again.
const ROUNDS: u32 = 50;
/// Attempts of a core that waits; a wait of a good run takes some hundreds.
const ATTEMPTS: u32 = 20_000_000;

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("error: {wrong}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Wrong> {
    all_differ()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, count) = match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["processor"] => {
            scenes(Device::Processor, "", 1, SCENES)?;
            return must_hold(Device::Processor, 20);
        }
        [path] => (path.to_owned(), SCENES_OF_A3),
        [path, "all"] => (path.to_owned(), SCENES),
        _ => return Err("usage: device KERNELS [all], or: device processor".into()),
    };
    let image = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let ptx = String::from_utf8(image.clone()).ok();
    let Some(gpu) = Device::gpu(image)? else {
        println!("no GPU here: nothing was run");
        return Ok(());
    };
    must_hold(gpu, REPETITIONS_MAX)?;
    if let Some(ptx) = ptx {
        let relaxed = Device::gpu(ptx.replace("ld.acquire.sys", "ld.relaxed.sys").into_bytes())?;
        let broken = relaxed.map(|gpu| litmus::all(gpu, REPETITIONS_MAX)).transpose()?.flatten();
        let broken = broken.ok_or("observes without an order are taken for right")?;
        println!("twin, observes without an order: {broken}");
    }
    scenes(gpu, "veriep_thread", 1, count)?;
    scenes(gpu, "veriep_warp", LANES, count)?;
    let twin = rounds(gpu, &gpu.kernel("veriep_warp")?, LANES, 0, 1, LANES - 1)?;
    println!("twin, a lane that copies nothing: {twin} of 1 round wrong");
    if twin == 1 { Ok(()) } else { Err("the twin's results are taken for right".into()) }
}

/// Fails if two scenes are the same: then one of them does not run what its name says.
fn all_differ() -> Result<(), Wrong> {
    let all: Vec<_> = (0..SCENES).map(scene).collect();
    for (number, a) in all.iter().enumerate() {
        let is_same = |b: &&Scene| (a.config, a.choices) == (b.config, b.choices);
        if let Some(b) = all[..number].iter().find(is_same) {
            return Err(format!("the scenes {} and {} are the same", b.name, a.name).into());
        }
    }
    Ok(())
}

/// Runs every litmus, and fails if one is broken.
fn must_hold(device: Device, repetitions: u32) -> Result<(), Wrong> {
    litmus::all(device, repetitions)?.map_or(Ok(()), |broken| Err(broken.into()))
}

/// Runs the first `count` scenes with a kernel.
fn scenes(device: Device, name: &str, threads: u32, count: u32) -> Result<(), Wrong> {
    let kernel = device.kernel(name)?;
    println!("{}", device.name()?);
    if let Some((registers, local)) = kernel.footprint()? {
        println!("{name}: {registers} registers and {local} bytes of local memory for each thread");
    }
    let mut all_right = true;
    for number in 0..count {
        let wrong = rounds(device, &kernel, threads, number, ROUNDS, LANES)?;
        println!("  {}: {ROUNDS} rounds, {wrong} wrong", scene(number).name);
        all_right &= wrong == 0;
    }
    if all_right { Ok(()) } else { Err("results above are wrong".into()) }
}

/// A rank's memory on the device.
struct Rank {
    /// State, window, WindowsOut, both regions of TP, outputs.
    regions: Vec<Buffer>,
    x: Buffer,
    ids: Buffer,
    weights: Buffer,
    y: Buffer,
    agent: Buffer,
    ended: Buffer,
}

impl Rank {
    fn peer(&self) -> Peer {
        let [state, window, window_out] = [0, 1, 2].map(|region| self.regions[region].segment());
        Peer { state, window, window_out }
    }

    fn outputs(&self) -> Outputs {
        Tensor::ALL.map(|tensor| self.output(tensor).segment())
    }

    fn output(&self, tensor: Tensor) -> &Buffer {
        &self.regions[5 + tensor as usize]
    }
}

/// A rank's tokens of a round.
struct Tokens {
    x: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Tokens {
    /// Drawn by chance: other experts for each token, weights and values that no order of sums hides.
    fn draw(shape: &Shape, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut below = |n: u32| dice.below(n as usize) as u32;
        let tokens = shape.bs(RankId(0)) as usize;
        let (k, experts) = (shape.k() as usize, shape.moe_expert_num());
        let mut ids: Vec<i32> = Vec::new();
        for _ in 0..tokens {
            let first = ids.len();
            while ids.len() < first + k {
                let id = below(experts) as i32;
                if !ids[first..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        let weights = (0..tokens * k).map(|_| below(1 << 20) as f32 / (1 << 20) as f32).collect();
        // bf16 of either sign, from 1/2 to 2.
        let element = |bits: u32| ((bits & 0x80FF) | 0x3F00) as u16;
        let x =
            (0..tokens * shape.h() as usize).flat_map(|_| element(below(1 << 16)).to_le_bytes()).collect();
        Self { x, ids, weights }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs { x: &self.x, expert_ids: &self.ids, expert_scales: &self.weights, ..Inputs::default() }
    }
}

/// Runs rounds of a scene in memory of its own, and counts those with a result that is not the reference's.
fn rounds(
    device: Device,
    kernel: &gpu::Kernel,
    threads: u32,
    number: u32,
    rounds: u32,
    lanes: u32,
) -> Result<u32, Wrong> {
    let of = scene(number);
    let shape = Shape::new(&of.config, Limits::None).map_err(|found| format!("{}: {found}", of.name))?;
    let zeros = |len: u64| device.zeros(len as usize);
    let most_rows = |sizes: &[u64]| sizes[5 + Tensor::ExpandX as usize].max(1) * 2;
    let ranks = group_sizes(&shape).map(|sizes| {
        Ok(Rank {
            y: zeros(most_rows(&sizes))?,
            regions: sizes.iter().map(|&size| zeros(size)).collect::<Result<_, _>>()?,
            x: zeros(2 * u64::from(shape.h() * shape.bs(RankId(0))))?,
            ids: zeros(4 * u64::from(shape.k() * shape.bs(RankId(0))))?,
            weights: zeros(4 * u64::from(shape.k() * shape.bs(RankId(0))))?,
            agent: zeros(AGENT_BYTES as u64)?,
            ended: zeros(8)?,
        })
    });
    let ranks = ranks.collect::<Result<Vec<_>, Wrong>>()?;
    let per_lane = |len: usize| device.zeros(len.next_multiple_of(64) * LANES as usize);
    let scratch = (0..RANKS * CORES)
        .map(|_| Ok((per_lane(4 * scratch_words(&shape))?, per_lane(scratch_bytes(&shape))?)));
    let scratch = scratch.collect::<Result<Vec<_>, Wrong>>()?;

    let mut wrong = 0;
    for round in 0..rounds {
        let tokens = [0, 1].map(|rank| Tokens::draw(&shape, u64::from(1 + round * RANKS + rank)));
        for (rank, tokens) in ranks.iter().zip(&tokens) {
            rank.x.fill(&tokens.x)?;
            rank.ids.fill(&tokens.ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>())?;
            rank.weights
                .fill(&tokens.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect::<Vec<_>>())?;
        }
        let inputs = tokens.each_ref().map(Tokens::inputs);
        let oracle = Cluster { shape: &shape, ranks: &inputs, elastic_info: None, expert_map: None };
        let operator = |role| {
            let mut jobs = Vec::new();
            for (rank, memory) in (0..RANKS).zip(&ranks) {
                memory.ended.fill(&[0; 8])?;
                let job = |role, core: u32| Job {
                    scene: number,
                    role,
                    rank,
                    core,
                    lanes,
                    attempts: ATTEMPTS,
                    said: Said::Nothing,
                    peers: [ranks[0].peer(), ranks[1].peer()],
                    outputs: memory.outputs(),
                    x: memory.x.segment(),
                    expert_ids: memory.ids.segment(),
                    expert_scales: memory.weights.segment(),
                    y: memory.y.segment(),
                    words: scratch[(rank * CORES + core) as usize].0.segment(),
                    row: scratch[(rank * CORES + core) as usize].1.segment(),
                    ended: memory.ended.segment().base().cast(),
                    agent: memory.agent.segment().base(),
                };
                jobs.extend((0..CORES).map(|core| job(role, core)));
                jobs.extend(of.choices.has_agents(&shape).then(|| job(Role::Agent, 0)));
            }
            // SAFETY: the buffers above live, and each job is of another core or agent.
            let jobs = unsafe { kernel.launch(&jobs, threads, |job| job::run(job, 0, |fabric, _| fabric))? };
            match jobs.iter().find(|job| job.said != Said::Done) {
                Some(&Job { role, rank, core, said, .. }) => {
                    Err(Wrong::from(format!("{}, {role:?} of rank {rank}, core {core}: {said:?}", of.name)))
                }
                None => Ok(()),
            }
        };
        operator(Role::Dispatch)?;
        let mut right = true;
        // The first round that is wrong says where.
        let told = wrong == 0;
        for (rank, memory) in (0..).map(RankId).zip(&ranks) {
            let expected = oracle.dispatch(rank);
            let rows = expected.bytes(Tensor::ExpandX);
            let received = received(&of, &shape, memory, &expected.ep_recv_counts)?;
            right &= received.len() == rows.len();
            right &= is_same(told, (Tensor::ExpandX, rank), &rows, &received);
            for tensor in Tensor::ALL.into_iter().filter(|&tensor| tensor != Tensor::ExpandX) {
                let bytes = expected.bytes(tensor);
                right &= is_same(told, (tensor, rank), &bytes, &memory.output(tensor).read()?);
            }
        }
        operator(Role::Combine)?;
        for (rank, memory) in (0..).map(RankId).zip(&ranks) {
            let returned = oracle.combine(rank, &mut |token, k, row| {
                let id = oracle.id(rank, token, k);
                let scale = oracle.sent_row(rank, token, id as u32, row);
                *row = widened(&of, row, scale);
            });
            right &= is_same(told, (Tensor::XOut, rank), &returned, &memory.output(Tensor::XOut).read()?);
        }
        wrong += u32::from(!right);
    }
    Ok(wrong)
}

/// Whether an output of a rank begins with what the reference expects; says where it does not, if that is to be told.
fn is_same(told: bool, (tensor, rank): (Tensor, RankId), expected: &[u8], seen: &[u8]) -> bool {
    let bad = (0..expected.len()).find(|&at| seen.get(at) != Some(&expected[at]));
    if let (Some(at), true) = (bad, told) {
        let some = |bytes: &[u8]| bytes.iter().skip(at).take(8).copied().collect::<Vec<u8>>();
        let (name, len) = (tensor.name(), expected.len());
        println!(
            "  {name} of rank {rank}, byte {at} of {len}: {:?}, must be {:?}",
            some(seen),
            some(expected)
        );
    }
    bad.is_none()
}

/// A row of int8 as one of bf16; another as it is.
fn widened(scene: &Scene, row: &[u8], scale: f32) -> Vec<u8> {
    if scene.config.quant_mode == 0 {
        return row.to_vec();
    }
    let value = |byte: &u8| f32::from(byte.cast_signed()) * scale;
    row.iter().flat_map(|byte| ((value(byte).to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// The rows that a rank has received; the experts return each as it came, where combine looks for it.
fn received(scene: &Scene, shape: &Shape, memory: &Rank, counts: &[i32]) -> Result<Vec<u8>, Wrong> {
    let receive = scene.choices.receive;
    let rows = counts.last().map_or(0, |&rows| rows as usize);
    let row_bytes = shape.row_format().payload_bytes as usize;
    let mut seen = Vec::new();
    if receive.keeps_rows() {
        let table = memory.output(Tensor::RowTable).read()?;
        for (place, len) in receive.rows(shape, rows as u32, &table) {
            seen.extend(memory.regions[1].read_at(place.offset as usize, len as usize)?);
        }
        if let Some(Place { offset, .. }) = receive.results(&table) {
            memory.regions[1].fill_at(offset as usize, &seen)?;
        }
    } else {
        seen = memory.output(Tensor::ExpandX).read()?;
        seen.truncate(rows * row_bytes);
    }
    let scales = memory.output(Tensor::DynamicScales).read()?;
    let mut scales = scales.as_chunks().0.iter().map(|&scale| f32::from_le_bytes(scale));
    let y: Vec<_> =
        seen.chunks(row_bytes).flat_map(|row| widened(scene, row, scales.next().unwrap_or(0.0))).collect();
    memory.y.fill(&y)?;
    Ok(seen)
}
