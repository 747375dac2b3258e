//! Windows beyond 4 GiB, of which memory commits only what is touched: rows, words, tables and tasks whose places need more than
//! 32 bits come back as they were written, on memory in lockstep and on threads. The second half of a window begins at a multiple
//! of 4 GiB, so who loses the upper bits finds the first half there.

use core::sync::atomic::{AtomicU64, Ordering};
use veriep_case::case::{Case, OwnedMask};
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{Left, Options as Made, generate_left};
use veriep_core::fabric::middleware::Middleware;
use veriep_core::fabric::nic::{Nic, Post, Transfer};
use veriep_core::fabric::{Fabric, Fault};
use veriep_core::place::{Place, Region};
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::Limits;
use veriep_core::units::{CoreId, RankId};
use veriep_group::backend::lockstep::{Lockstep, Memory};
use veriep_group::backend::rank_remap::RankRemap;
use veriep_group::backend::shared::SharedMemory;
use veriep_group::backend::{Layer, Layered};
use veriep_group::driver::Options;
use veriep_group::driver::threads::Spread;
use veriep_testing::trial::{Trial, make, small};

/// The first byte whose offset has a 33rd bit.
const BEYOND: u64 = 1 << 32;

/// A layer that notes the farthest place of what reaches other ranks, in windows of the EP domain and of the TP domain.
#[derive(Default)]
struct Reach {
    window: AtomicU64,
    tp_window: AtomicU64,
}

struct Reaching<'b, T> {
    inner: T,
    reach: &'b Reach,
}

impl Reach {
    fn note(&self, at: Place) {
        match at.region {
            Region::Window => _ = self.window.fetch_max(at.offset, Ordering::Relaxed),
            Region::TpWindow => _ = self.tp_window.fetch_max(at.offset, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl<F: Fabric> Middleware for Reaching<'_, F> {
    veriep_core::around! { inner: F, its capabilities }

    fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault> {
        self.reach.note(at);
        self.inner.put(to, at, row, tail)
    }

    fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault> {
        self.reach.note(at);
        self.inner.send(to, at, message)
    }
}

impl<N: Nic> Nic for Reaching<'_, N> {
    fn observe(&self, at: Place) -> Result<u64, Fault> {
        self.inner.observe(at)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<Post, Fault> {
        self.reach.note(transfer.at);
        self.inner.post(transfer)
    }
}

impl Layer for &Reach {
    fn fabric<'b, F: Fabric + 'b>(&'b self, _: RankId, _: CoreId, inner: F) -> impl Fabric {
        Reaching { inner, reach: self }
    }

    fn nic<'b, N: Nic + 'b>(&'b self, _: RankId, inner: N) -> impl Nic {
        Reaching { inner, reach: self }
    }
}

/// A memory that notes what goes where, with the ranks of a case.
fn reached<'r, B>(reach: &'r Reach, case: &Case, memory: B) -> Layered<&'r Reach, Layered<RankRemap, B>> {
    reach.over(RankRemap::of(case).over(memory))
}

/// Runs rounds with two batches in flight, and demands that rows went beyond 4 GiB.
fn goes_beyond(config: Config, choices: Choices) {
    let case = make(config, Made { seed: 7, ..Made::default() });
    rounds_go_beyond(&case, choices, &[Memory::Strong, Memory::Weak]);
}

/// The same of a case, on threads and in lockstep on these memories.
fn rounds_go_beyond(case: &Case, choices: Choices, memories: &[Memory]) {
    let name = format!("{} {choices:?}", case.config.comm_alg);
    let is_tp = case.config.tp_world_size > 1;
    let options = Options { choices, ..Options::default() };
    let trial = Trial { options, ..Trial::new(case, "DDCC", 1) };
    let reach = Reach::default();
    let ran = |ran: Result<Vec<u8>, veriep_case::error::Error>| {
        ran.unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    for &memory in memories {
        let lockstep = Lockstep::new(case, 2, memory, 7).unwrap();
        ran(trial.stepped(&reached(&reach, case, lockstep)));
    }
    let shared = SharedMemory::new(case, 2).unwrap();
    ran(trial.threaded(&reached(&reach, case, shared), 2, Spread::Ranks));
    let Reach { window, tp_window } = reach;
    let far = if is_tp { tp_window } else { window }.into_inner();
    assert!(far >= BEYOND, "{name}: no row went farther than {far:#x}");
}

#[test]
fn partitions_beyond_4_gib_hold_records_blocks_and_results() {
    let wide = || Config { hccl_buffsize_mb: 16 << 10, ..small(3, 6, 2, 2, 2) };
    for receive in [Receive::Copy, Receive::InPlace] {
        goes_beyond(wide(), Choices { receive, ..Choices::default() });
    }
    goes_beyond(wide(), Choices { flags: Flags::Separate, ..Choices::default() });
    goes_beyond(Config { comm_alg: "fullmesh_v2".to_owned(), ..wide() }, Choices::default());
}

/// Rows are few, but there is room for as many as make an area larger than 4 GiB.
fn roomy() -> Config {
    Config {
        h: 1 << 16,
        bs: Bs::Uniform(1),
        global_bs: 2 * 9600,
        hccl_buffsize_mb: 20 << 10,
        ..small(2, 2, 1, 1, 1)
    }
}

#[test]
fn areas_beyond_4_gib_hold_rows_and_results() {
    for receive in [Receive::Direct { areas: 2 }, Receive::Overwrite { areas: 2 }] {
        goes_beyond(roomy(), Choices { receive, ..Choices::default() });
    }
}

#[test]
fn windows_of_tp_peers_beyond_4_gib_hold_rows_and_results() {
    let tp = Config { tp_world_size: 2, ..roomy() };
    goes_beyond(tp, Choices::default());
}

#[test]
fn tasks_of_a2_reach_beyond_4_gib() {
    let a2 = Config { product: "a2".to_owned(), hccl_buffsize_mb: 16 << 10, ..small(3, 6, 2, 2, 2) };
    goes_beyond(a2, Choices::default());
}

/// What goes to other servers is in the first 103 MiB; what ranks of a server put to each other, in the place of its expert.
#[test]
fn near_areas_beyond_4_gib_hold_rows_and_results() {
    let servers = Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        server_ranks: 2,
        h: 1 << 16,
        bs: Bs::Uniform(1),
        global_bs: 4 * 190,
        hccl_buffsize_mb: 12 << 10,
        ..small(4, 256, 4, 1, 1)
    };
    for stage in [Stage::Two, Stage::Three] {
        goes_beyond(servers.clone(), Choices { stage, ..Choices::default() });
    }
}

/// Makes a case of which each rank sends the first and the last token alone, with all of their pairs.
fn ends_of(mut config: Config) -> Case {
    config.raise_buffer();
    let mut case = make(config, Made { seed: 7, ..Made::default() });
    let k = case.shape.k() as usize;
    for rank in &mut case.ranks {
        let tokens = rank.expert_ids.len() / k;
        let pairs = (0..tokens).flat_map(|token| vec![token == 0 || token + 1 == tokens; k]);
        rank.mask = OwnedMask::Pairs(pairs.collect());
    }
    case
}

/// All slots of both status areas, all cores, the largest K and batch, and the longest rows, on the fewest ranks that hold so many
/// experts.
fn brim() -> Config {
    Config {
        shared_expert_num: Some(4),
        shared_expert_rank_num: 4,
        h: 8192,
        copy_expert_num: i64::from(i32::MAX) - 1024,
        ..small(8, 1024, 16, 512, 48)
    }
}

#[test]
fn rounds_at_all_limits_of_a3_come_back() {
    rounds_go_beyond(&ends_of(brim()), Choices::default(), &[Memory::Weak]);
    let blocks = ends_of(Config { comm_alg: "fullmesh_v2".to_owned(), ..brim() });
    rounds_go_beyond(&blocks, Choices::default(), &[]);
}

/// 24 experts a rank, whose counts end where the first flag begins, and windows for as many tokens as a capacity can name.
#[test]
fn rounds_at_all_limits_of_a2_come_back() {
    let a2 = Config {
        product: "a2".to_owned(),
        shared_expert_num: Some(1),
        h: 10240,
        global_bs: 2 * 65535,
        copy_expert_num: i64::from(i32::MAX) - 48,
        ..small(2, 48, 16, 256, 48)
    };
    rounds_go_beyond(&ends_of(a2), Choices::default(), &[Memory::Weak]);
}

/// A relay area that one more token would not fit.
#[test]
fn rounds_at_all_limits_of_a_hierarchy_come_back() {
    let mut servers = Config {
        product: "a2".to_owned(),
        comm_alg: "hierarchy".to_owned(),
        shared_expert_num: Some(1),
        server_ranks: 2,
        h: 10240,
        global_bs: 4 * 1293,
        ..small(4, 512, 16, 2, 48)
    };
    servers.raise_buffer();
    let more = Config { global_bs: 4 * 1294, ..servers.clone() };
    assert!(generate_left(more, Made { limits: Limits::None, ..Made::default() }, Left::All, "").is_err());
    let case = make(servers, Made { seed: 7, ..Made::default() });
    for stage in [Stage::Two, Stage::Three] {
        rounds_go_beyond(&case, Choices { stage, ..Choices::default() }, &[]);
    }
}
