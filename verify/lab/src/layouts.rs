//! Layouts and plans, for a comparison of processors: the page's has 32-bit pointers.

use alloc::format;
use alloc::string::String;
use veriep_core::layout::map::areas;
use veriep_core::plan::split;
use veriep_core::protocol::{Choices, Fingerprints};
use veriep_core::shape::{BatchSizes, Config, Limits, Protocol, Shape};
use veriep_core::sim::chooser::Dice;
use veriep_core::units::{CoreId, RankId};

/// Configurations that are drawn. Some of them are refused, on all processors.
const DRAWN: usize = 1000;

/// Tells the areas, the fingerprints and the cores' shares of each drawn configuration that is legal, and returns their number.
pub(crate) fn tell(mut each: impl FnMut(String)) -> usize {
    let dice = &mut Dice(1);
    let mut legal = 0;
    for _ in 0..DRAWN {
        let ep_world_size = dice.one_of(&[2, 4, 8, 16, 32, 64]);
        let comm_alg = dice.one_of(&[
            Protocol::FullmeshV1,
            Protocol::FullmeshV2,
            Protocol::Fullmesh,
            Protocol::Hierarchy,
        ]);
        let config = Config {
            ep_world_size,
            moe_expert_num: ep_world_size * dice.one_of(&[1, 2, 4]),
            k: dice.one_of(&[1, 2, 6, 8]),
            h: dice.one_of(&[1024, 2048, 7168]),
            aiv_num: dice.one_of(&[1, 3, 8, 24, 48]),
            bs: BatchSizes::Uniform(dice.one_of(&[1, 7, 16, 64])),
            quant_mode: dice.one_of(&[0, 2]),
            hccl_buffsize_mb: dice.one_of(&[200, 1024]),
            comm_alg,
            ..Config::default()
        };
        let Ok(shape) = Shape::new(&config, Limits::None) else { continue };
        legal += 1;
        let ranks = [RankId(0), RankId(shape.ep_world_size() - 1)];
        for choices in Choices::all(&shape) {
            each(format!("{:x}", Fingerprints::new(&shape, choices).whole()));
            for rank in ranks {
                areas(&shape, choices.mode(), rank).for_each(|area| each(format!("{area:?}")));
            }
        }
        for rank in ranks {
            for core in (0..shape.aiv_num()).map(CoreId) {
                each(format!(
                    "{:?} {:?}",
                    split::work(&shape, rank, core),
                    split::dispatch(&shape, rank, core)
                ));
            }
        }
    }
    legal
}

#[cfg(test)]
mod tests {
    #[test]
    fn most_of_what_is_drawn_is_legal() {
        assert!(super::tell(|_| ()) > 300);
    }
}
