//! A caller: objects in some state, tensors, lists to be filled in; and next to each object what it must be.

use super::Args;
use super::caches::Tells;
use super::dice::Dice;
use super::memory::Memory;
use super::mood::Mood;
use super::tensors::{Data, Tensors};
use crate::codes::*;
use crate::types::*;
use crate::vector::Unit;
use core::ffi::c_char;
use core::mem::{MaybeUninit, zeroed};
use core::ptr::{null, null_mut};
use kernel_core::fabric::{Capabilities, Terms};
use kernel_core::layout::state::Slots;
use kernel_core::plan::order::SendOrder;
use kernel_core::protocol::{
    Agent, AgentEnv, Choices, Env, Flags, Gates, Machine, Operator, Receive, Stage, Ticket, scratch_bytes,
    scratch_words,
};
use kernel_core::shape::{BatchSizes, Config, Dtype, Given, Limits, Op, Protocol, Shape};
use kernel_core::units::RankId;
use std::boxed::Box;
use std::string::String;
use std::vec::Vec;
use std::{format, vec};

/// What came of a call, and what must.
pub(super) struct Outcome {
    pub(super) said: i32,
    /// Of a call whose arguments hold: the code, and the text in full, of a call that has one.
    pub(super) must: Option<(i32, Option<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not made.
    None,
    Idle,
    Sends,
    Sent,
    Resumed,
    Running,
    Done,
    Dead,
}

/// The core's own machine that goes in lockstep with a core of C.
pub(super) struct Twin {
    pub(super) env: Env<Unit>,
    pub(super) machine: Machine,
    pub(super) operator: Operator,
    pub(super) needs: Capabilities,
}

/// Scratch of a core, for C and for its twin.
pub(super) struct Scratch {
    pub(super) words: Vec<u32>,
    pub(super) bytes: Vec<u8>,
}

/// A core of a rank.
pub(super) struct Seat {
    pub(super) object: Box<veriep_core>,
    pub(super) rank: u32,
    pub(super) core: u32,
    pub(super) tp_rank: u32,
    pub(super) phase: Phase,
    pub(super) twin: Option<Twin>,
    pub(super) scratch: [Scratch; 2],
}

/// A ticket of the gates.
pub(super) struct TicketSeat {
    pub(super) object: Box<veriep_ticket>,
    pub(super) twin: Option<Ticket>,
}

/// The agent of a rank.
pub(super) struct AgentSeat {
    pub(super) object: Box<veriep_agent>,
    pub(super) phase: Phase,
    pub(super) twin: Option<(AgentEnv, Agent)>,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) config: Config<'static>,
    pub(super) bs_per_rank: Vec<i64>,
    /// What the object `shape` is, when it is made.
    pub(super) of: Shape,
    /// A shape for which no core is made.
    pub(super) of_other: Shape,
    pub(super) shape: Box<veriep_shape>,
    pub(super) shape_is_made: bool,
    pub(super) other: Box<veriep_shape>,
    pub(super) left: Box<veriep_shape>,
    pub(super) of_left: Option<Shape>,
    /// Words that the library never wrote.
    pub(super) blank: Box<veriep_shape>,
    pub(super) map: Box<veriep_expert_map>,
    /// Words and rows of the map, when it is made.
    pub(super) of_map: Option<(usize, usize)>,
    /// All experts; a row has one or two of them.
    pub(super) replicas: Vec<i32>,
    pub(super) rows_of_map: u32,
    pub(super) seats: Vec<Seat>,
    pub(super) agents: Vec<AgentSeat>,
    pub(super) gates: Box<veriep_gates>,
    /// What the object `gates` is, when it is made.
    pub(super) of_gates: Option<Gates>,
    pub(super) tickets: [TicketSeat; 2],
    pub(super) memories: [Memory; 2],
    pub(super) tensors: Vec<Tensors>,
    pub(super) y: Vec<Data>,
    pub(super) choices: veriep_choices,
    /// The places of words that the last pending core has awaited, with its rank.
    pub(super) awaited: Vec<(u32, u64)>,
    // What calls write.
    pub(super) made_config: Box<veriep_config>,
    pub(super) sizes: Box<veriep_sizes>,
    pub(super) own: Box<veriep_fingerprints>,
    pub(super) whole: Box<u64>,
    pub(super) list: Vec<u64>,
    pub(super) count: Box<usize>,
    pub(super) results: Box<veriep_rows>,
    pub(super) physical: Vec<i32>,
    pub(super) plan_words: Vec<u32>,
    pub(super) status: Box<veriep_status>,
    pub(super) text: Vec<c_char>,
}

pub(super) fn opaque<T>() -> Box<T> {
    // SAFETY: used for opaque words and plain structures alone.
    Box::new(unsafe { zeroed() })
}

/// Limits of the arithmetic alone, as of all shapes here.
pub(super) fn check(config: &Config<'_>) -> (Option<Shape>, String) {
    let mut lines = String::new();
    let shape = Shape::check(config, Limits::None, &mut |violation| lines += &format!("{violation}\n"));
    (shape, lines)
}

/// A configuration that may break rules.
fn draw(dice: &mut Dice, comm_alg: Protocol, bs_per_rank: &[i64]) -> Config<'static> {
    let is_a3 = matches!(comm_alg, Protocol::FullmeshV1 | Protocol::FullmeshV2);
    // Agents have an order where there are three.
    let ranks = if comm_alg == Protocol::Fullmesh { dice.pick(&[1, 2, 3]) } else { dice.pick(&[1, 2]) };
    let shared = i64::from(is_a3 && ranks == 2 && dice.once_in(5));
    let rare = |dice: &mut Dice| i64::from(dice.once_in(4));
    let mut given = Given::empty();
    given.set(dice.pick(&[Given::MASK_1D, Given::MASK_2D]), dice.once_in(2));
    let is_quantised = dice.once_in(3);
    given.set(Given::SCALES, is_quantised && dice.once_in(2));
    given.set(Given::SHARED_EXPERT_X, dice.once_in(6));
    given.set(Given::EXPERT_MAP, dice.once_in(6));
    Config {
        comm_alg,
        op: if dice.once_in(4) { Op::CombineAddRmsNorm } else { Op::Combine },
        dtype: dice.pick(&[Dtype::Bf16, Dtype::F16]),
        ep_world_size: ranks,
        server_ranks: if dice.once_in(2) { 1 } else { 2 },
        tp_world_size: if is_a3 && dice.once_in(3) { 2 } else { dice.below(2) as i64 },
        moe_expert_num: (ranks - shared) * (1 + dice.below(2) as i64),
        shared_expert_num: shared,
        shared_expert_rank_num: shared,
        zero_expert_num: rare(dice),
        copy_expert_num: rare(dice),
        const_expert_num: rare(dice),
        k: 1 + dice.below(2) as i64,
        h: 32,
        bs: BatchSizes::Uniform(if bs_per_rank.is_empty() { 1 + dice.below(3) as i64 } else { 0 }),
        global_bs: if dice.once_in(4) { 4 * ranks } else { 0 },
        quant_mode: 2 * i64::from(is_quantised),
        comm_quant_mode: 2 * rare(dice),
        expert_token_nums_type: rare(dice),
        hccl_buffsize_mb: if comm_alg == Protocol::Hierarchy { 110 } else { 8 },
        port_offset: if is_a3 { 512 * rare(dice) } else { 0 },
        aiv_num: 1 + dice.below(2) as i64,
        norm_eps: dice.pick(&[1e-5, 1e-3]),
        given,
    }
}

/// The number of a name in an enumeration of codes.
fn number_of<T: PartialEq>(all: &[T], it: &T) -> u32 {
    all.iter().position(|one| one == it).unwrap() as u32
}

pub(super) const PROTOCOLS: [Protocol; 4] =
    [Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh, Protocol::Hierarchy];

impl World {
    pub(super) fn new(mut dice: Dice) -> Self {
        // Ahead of the rest, since rules leave fewer configurations of some.
        let comm_alg = dice.pick(&[
            Protocol::FullmeshV1,
            Protocol::FullmeshV1,
            Protocol::FullmeshV2,
            Protocol::Fullmesh,
            Protocol::Hierarchy,
        ]);
        let (config, bs_per_rank, of) = loop {
            let mut bs_per_rank = Vec::new();
            if dice.once_in(4) {
                bs_per_rank = (0..3).map(|_| 1 + dice.below(3) as i64).collect();
            }
            let config = draw(&mut dice, comm_alg, &bs_per_rank);
            bs_per_rank.truncate(config.ep_world_size as usize);
            let whole = Config { bs: sizes_of(&config, &bs_per_rank), ..config };
            if let Some(shape) = check(&whole).0 {
                break (config, bs_per_rank, shape);
            }
        };
        let of_other = check(&Config { bs: BatchSizes::Uniform(4), ..config }).0.unwrap();
        let ranks = || 0..of.ep_world_size();
        let scratch = || Scratch {
            words: vec![0; scratch_words(&of).max(scratch_words(&of_other)) + 1],
            bytes: vec![0; scratch_bytes(&of).max(scratch_bytes(&of_other)) + 1],
        };
        let is_second = dice.once_in(2);
        let seats = ranks()
            .flat_map(|rank| (0..of.aiv_num()).map(move |core| (rank, core)))
            .map(|(rank, core)| Seat {
                object: opaque(),
                rank,
                core,
                // The other one never comes.
                tp_rank: (rank + u32::from(is_second)) % of.tp_world_size(),
                phase: Phase::None,
                twin: None,
                scratch: [scratch(), scratch()],
            })
            .collect();
        let agents =
            ranks().map(|_| AgentSeat { object: opaque(), phase: Phase::None, twin: None }).collect();
        let tensors = ranks().map(|rank| Tensors::new(&of, RankId(rank), config.given, &mut dice)).collect();
        let y = |rank| {
            let elements = of.rows_max(RankId(rank)) * of.row_bytes() * u64::from(of.tp_world_size());
            Data::new(elements, 1, || 0x3C10_3C20_3C30_3C40)
        };
        let y = ranks().map(y).collect();
        let receive = if config.comm_alg == Protocol::FullmeshV1 { dice.below(6) as u32 } else { 0 };
        let choices = veriep_choices {
            order: dice.below(4) as u32,
            flags: dice.below(2) as u32,
            receive,
            stage: 2 + dice.below(2) as u32,
            checked: dice.below(2) as u32,
            slots: 0,
        };
        // Where groups may have them.
        let lines = veriep_choices { slots: VERIEP_SLOTS_64, ..choices };
        let may = rust_choices(&raw const lines).check(&of, Terms::new(Capabilities::all())).is_ok();
        let choices = if may && dice.once_in(2) { lines } else { choices };
        let memories = [Memory::new(&of), Memory::new(&of)];
        let experts = of.moe_expert_num().cast_signed();
        let has_two = experts % 2 == 0 && dice.once_in(2);
        let rows_of_map = of.moe_expert_num() / if has_two { 2 } else { 1 };
        // One entry more than the map has.
        let replicas: Vec<_> = (0..experts).rev().chain([0]).collect();
        let slots = scratch_words(&of).max(64) + 64;
        let text = vec![7; dice.pick(&[0, 1, 9, 60, 600])];
        let mut world = Self {
            config,
            bs_per_rank,
            shape: opaque(),
            shape_is_made: false,
            other: opaque(),
            left: opaque(),
            of_left: None,
            blank: opaque(),
            map: opaque(),
            of_map: None,
            replicas,
            rows_of_map,
            seats,
            agents,
            gates: opaque(),
            of_gates: None,
            tickets: [(); 2].map(|()| TicketSeat { object: opaque(), twin: None }),
            memories,
            tensors,
            y,
            choices,
            awaited: Vec::new(),
            made_config: opaque(),
            sizes: opaque(),
            own: opaque(),
            whole: Box::new(7),
            list: vec![0; 64 * 80 / 8],
            count: Box::new(7),
            results: opaque(),
            physical: vec![-7; 16],
            plan_words: vec![0; slots],
            status: Box::new(veriep_status { steps: 5, rank: 5, code: 5 }),
            text,
            of,
            of_other,
            dice,
        };
        let other = veriep_config { bs: 4, bs_per_rank: null(), ..world.c_config() };
        // SAFETY: all is there.
        let said = unsafe { crate::shape::veriep_shape_new(&raw mut *world.other, &other, null_mut(), 0) };
        assert_eq!(said, VERIEP_OK);
        world
    }

    /// The configuration that the shape is made of.
    pub(super) fn rust_config(&self) -> Config<'_> {
        Config { bs: sizes_of(&self.config, &self.bs_per_rank), ..self.config }
    }

    /// The same as C has it.
    pub(super) fn c_config(&self) -> veriep_config {
        let of = &self.config;
        let bs = if let BatchSizes::Uniform(bs) = of.bs { bs } else { 0 };
        let is_per_rank = !self.bs_per_rank.is_empty();
        veriep_config {
            abi_version: VERIEP_ABI_VERSION,
            limits: VERIEP_LIMITS_NONE,
            comm_alg: number_of(&PROTOCOLS, &of.comm_alg),
            op: number_of(&[Op::Combine, Op::CombineAddRmsNorm], &of.op),
            dtype: number_of(&[Dtype::Bf16, Dtype::F16], &of.dtype),
            given: of.given.bits(),
            ep_world_size: of.ep_world_size,
            server_ranks: of.server_ranks,
            tp_world_size: of.tp_world_size,
            moe_expert_num: of.moe_expert_num,
            shared_expert_num: of.shared_expert_num,
            shared_expert_rank_num: of.shared_expert_rank_num,
            zero_expert_num: of.zero_expert_num,
            copy_expert_num: of.copy_expert_num,
            const_expert_num: of.const_expert_num,
            k: of.k,
            h: of.h,
            bs,
            bs_per_rank: if is_per_rank { self.bs_per_rank.as_ptr() } else { null() },
            bs_per_rank_len: self.bs_per_rank.len(),
            global_bs: of.global_bs,
            quant_mode: of.quant_mode,
            comm_quant_mode: of.comm_quant_mode,
            expert_token_nums_type: of.expert_token_nums_type,
            hccl_buffsize_mb: of.hccl_buffsize_mb,
            port_offset: of.port_offset,
            aiv_num: of.aiv_num,
            norm_eps: of.norm_eps,
            bs_rank: VERIEP_NONE,
        }
    }

    pub(super) fn mood(&mut self) -> Mood {
        let dice = &mut self.dice;
        let refuses_after = if dice.once_in(16) { dice.pick(&[0, 0, 1, 3, 6, 12]) } else { u32::MAX };
        Mood { refuses_after, is_slow: dice.once_in(6), is_mute: dice.once_in(24), can: Capabilities::all() }
    }

    /// Which calls for caches are given.
    pub(super) fn tells(&mut self) -> Tells {
        self.dice.pick(&[Tells::NEITHER, Tells::NEITHER, Tells::BOTH, Tells::WRITES, Tells::READS])
    }

    /// Objects may be elsewhere at the next call.
    pub(super) fn move_objects(&mut self) {
        fn to_elsewhere<T>(object: &mut Box<T>) {
            let mut there = opaque::<T>();
            // SAFETY: opaque words.
            unsafe { (&raw const **object).copy_to_nonoverlapping(&raw mut *there, 1) };
            *object = there;
        }
        to_elsewhere(&mut self.shape);
        to_elsewhere(&mut self.left);
        to_elsewhere(&mut self.map);
        to_elsewhere(&mut self.gates);
        self.tickets.iter_mut().for_each(|ticket| to_elsewhere(&mut ticket.object));
        self.seats.iter_mut().for_each(|seat| to_elsewhere(&mut seat.object));
        self.agents.iter_mut().for_each(|agent| to_elsewhere(&mut agent.object));
    }

    /// Writes a word that another rank might have written, or that no rank would have, to both memories.
    pub(super) fn poke(&mut self) {
        if self.awaited.is_empty() {
            return;
        }
        let (rank, offset) = self.dice.pick(&self.awaited);
        let random = self.dice.next();
        let word =
            self.dice.pick(&[0, 1, 2, 0x3F80_0000_3F80_0000, 0x3F80_0000, 0x3F80_0000_0000_0001, random]);
        self.memories.iter_mut().for_each(|memory| memory.set(rank as usize, offset, word));
    }

    /// The caller's memory that a call may write, each with a name.
    pub(super) fn watched(&self, args: &Args) -> Vec<(&'static str, *const u8, usize)> {
        fn of<T>(name: &'static str, it: &T) -> (&'static str, *const u8, usize) {
            (name, (&raw const *it).cast(), size_of::<T>())
        }
        fn all<T>(name: &'static str, them: &[T]) -> (&'static str, *const u8, usize) {
            (name, them.as_ptr().cast(), size_of_val(them))
        }
        let mut watched = vec![
            of("shape", &*self.shape),
            of("other", &*self.other),
            of("left", &*self.left),
            of("blank", &*self.blank),
            of("map", &*self.map),
            of("gates", &*self.gates),
            of("config", &*self.made_config),
            of("sizes", &*self.sizes),
            of("own", &*self.own),
            of("whole", &*self.whole),
            all("list", &self.list),
            of("count", &*self.count),
            of("results", &*self.results),
            all("physical", &self.physical),
            of("status", &*self.status),
            all("text", &self.text),
            all("replicas", &self.replicas),
        ];
        for (tensors, y) in self.tensors.iter().zip(&self.y) {
            watched.extend(tensors.all().chain([y]).map(|data| all("a tensor", data.words())));
        }
        if args.row.name == "veriep_plan_sends" {
            watched.push(all("words", &self.plan_words));
        }
        for (number, seat) in self.seats.iter().enumerate() {
            let is_its = number == args.seat;
            watched.push(of(if is_its { "core" } else { "another core" }, &*seat.object));
            if is_its && args.row.name.starts_with("veriep_core") {
                watched.push(all("words", &seat.scratch[0].words));
                watched.push(all("bytes", &seat.scratch[0].bytes));
            }
        }
        for (number, ticket) in self.tickets.iter().enumerate() {
            let is_its = number == args.ticket;
            watched.push(of(if is_its { "ticket" } else { "another ticket" }, &*ticket.object));
        }
        for (rank, agent) in self.agents.iter().enumerate() {
            let is_its = rank as u32 == self.seats[args.seat].rank;
            watched.push(of(if is_its { "agent" } else { "another agent" }, &*agent.object));
        }
        watched
    }
}

/// Batch sizes, by rank where there are any.
pub(super) fn sizes_of<'a>(config: &Config<'_>, bs_per_rank: &'a [i64]) -> BatchSizes<'a> {
    match config.bs {
        BatchSizes::Uniform(bs) if bs_per_rank.is_empty() => BatchSizes::Uniform(bs),
        _ => BatchSizes::PerRank(bs_per_rank),
    }
}

/// The choices that C was given; null are those by default.
pub(super) fn rust_choices(given: *const veriep_choices) -> Choices {
    // SAFETY: null, or the test's own.
    let Some(given) = (unsafe { given.as_ref() }) else {
        return Choices { checked: true, ..Choices::default() };
    };
    Choices {
        order: [SendOrder::Plain, SendOrder::Staggered, SendOrder::Destinations, SendOrder::Stride]
            [given.order as usize],
        flags: if given.flags == VERIEP_FLAGS_JOINT { Flags::Joint } else { Flags::Separate },
        receive: match given.receive {
            VERIEP_RECEIVE_COPY => Receive::Copy,
            VERIEP_RECEIVE_IN_PLACE => Receive::InPlace,
            VERIEP_RECEIVE_DIRECT => Receive::Direct { areas: 1 },
            VERIEP_RECEIVE_DIRECT_2 => Receive::Direct { areas: 2 },
            VERIEP_RECEIVE_OVERWRITE => Receive::Overwrite { areas: 1 },
            _ => Receive::Overwrite { areas: 2 },
        },
        stage: if given.stage == VERIEP_STAGE_2 { Stage::Two } else { Stage::Three },
        checked: given.checked == 1,
        slots: if given.slots == VERIEP_SLOTS_32 { Slots::Shipped } else { Slots::Lines },
    }
}

/// All of a structure's bytes are 0, which is a value of it.
pub(super) fn nothing<T>() -> T {
    // SAFETY: used for plain structures alone.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
