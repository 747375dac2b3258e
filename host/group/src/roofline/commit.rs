//! Memory that is committed before a run, so that its times are without page faults.

use super::Traffic;
use crate::backend::Layer;
use crate::backend::rank_remap::RankRemap;
use crate::backend::shared::SharedMemory;
use veriep_case::batch::Batch;
use veriep_case::case::Case;
use veriep_case::error::Error;
use veriep_core::protocol::Choices;
use veriep_core::shape::Product;

/// Rounds whose memory is committed before a run. Later ones find most of what they touch committed by earlier ones.
const COMMITTED_MAX: usize = 8;
/// Partitions that rounds use alternately.
const PARTITIONS: usize = 2;
/// Bytes that these rounds may copy: to list and to copy more takes longer than a run gains.
const COMMITTED_BYTES_MAX: u64 = 4 << 30;

/// Commits the memory that the first of `rounds` rounds touch, each with what `traffic` gives for its number, so that their
/// times are without page faults: writes zeros there. The memory must be new, and reads as before; it has outputs for
/// `batches` batches. Returns for how many rounds it did so.
///
/// # Errors
/// As of [`Traffic::new`] and [`Traffic::times`].
pub fn commit<'a>(
    memory: &SharedMemory,
    (case, choices): (&'a Case, Choices),
    (rounds, batches): (usize, usize),
    traffic: impl Fn(usize) -> Batch<'a>,
    threads: usize,
) -> Result<usize, Error> {
    let memory = RankRemap::of(case).over(memory);
    let rounds = rounds.min(match case.shape.product() {
        Product::A3 => COMMITTED_MAX,
        // Rows begin at the start of a window in every round, and to list them takes long: the rows are copied for it.
        Product::A2 => PARTITIONS,
    });
    let mut copied = 0;
    for round in 0..rounds {
        let mut of_round = Traffic::of(case, traffic(round), choices)?;
        // A first round, which is not listed, uses the first partition.
        let nth = round + 1;
        copied += of_round.bytes_copied(nth);
        if copied > COMMITTED_BYTES_MAX {
            return Ok(round);
        }
        of_round.output_batch = round % batches;
        of_round.is_blank = true;
        of_round.times_of(&memory, threads, nth..nth + 1)?;
    }
    Ok(rounds)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::driver::threads::Workers;
    use crate::driver::{Options, RankState};
    use crate::group;
    use crate::world::World;
    use core::time::Duration;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use veriep_case::config::Config;
    use veriep_case::generate::{self, generate};
    use veriep_case::global_rank;
    use veriep_core::fabric::Fabric;
    use veriep_core::place::{Place, Region};
    use veriep_core::units::CoreId;

    /// Bytes that the system uses to tell of a page.
    const ENTRY: usize = 8;
    const PAGE: usize = 4096;

    /// Pages of the windows that are in memory.
    fn present(memory: &SharedMemory) -> usize {
        let map = File::open("/proc/self/pagemap").unwrap();
        let of_window = |[_, (base, len), ..]: [(usize, u64); 5]| {
            let mut entries = vec![0; len as usize / PAGE * ENTRY];
            map.read_exact_at(&mut entries, (base / PAGE * ENTRY) as u64).unwrap();
            entries.as_chunks().0.iter().filter(|&&entry| u64::from_le_bytes(entry) >> 63 == 1).count()
        };
        memory.mapped().into_iter().map(of_window).sum()
    }

    fn case() -> Case {
        // Many experts: which records of a window are used differs by round.
        let config = "ep_world_size = 2\nmoe_expert_num = 64\nk = 2\nh = 8192\nbs = 16\naiv_num = 1\n";
        let config = Config::parse(config).unwrap();
        generate(config, generate::Options { seed: 1, ..Default::default() }, "test").unwrap()
    }

    fn batch(case: &Case, round: usize) -> Batch<'_> {
        Batch::varied(case, 1 - round)
    }

    /// Memory of a group that is ready for two rounds.
    fn committed(case: &Case) -> SharedMemory {
        let memory = SharedMemory::new(case, 1).unwrap();
        let group = (case, Choices::default());
        assert_eq!(commit(&memory, group, (2, 1), |round| batch(case, round), 1).unwrap(), 2);
        memory
    }

    #[test]
    fn rounds_find_their_pages_committed() {
        let case = case();
        let memory = committed(&case);
        let before = present(&memory);
        let mut ranks: Vec<_> = global_rank::all(&case.shape).map(|_| RankState::new(1)).collect();
        let deadline = Duration::from_secs(60);
        let (world, alone) = (World::alone(2, 1), Workers { count: 1, deadline, ..Workers::default() });
        for round in 0..2 {
            let of = (&case.shape, &batch(&case, round), Options::default());
            group::repeat(&memory, of, &mut ranks, (&world, &alone), 1).unwrap();
        }
        let later = present(&memory) - before;
        assert!(later * 8 < before, "{later} pages came in the rounds, {before} before");
    }

    #[test]
    fn committed_memory_reads_as_new() {
        let case = case();
        let memory = committed(&case);
        for rank in global_rank::all(&case.shape) {
            let (_, len) = memory.mapped()[rank.index()][1];
            let fabric = memory.fabric(rank, CoreId(0), 0);
            let window = Place { region: Region::Window, offset: 0 };
            assert!(fabric.bytes(window, len).unwrap().iter().all(|&byte| byte == 0));
        }
    }
}
