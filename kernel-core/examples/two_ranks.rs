//! Two ranks of one core send two tokens each to four experts and sum the results.
use veriep_core::inputs::Inputs;
use veriep_core::place::Tensor;
use veriep_core::protocol::{Choices, Operator};
use veriep_core::shape::{BatchSizes, Config, Limits, Shape};
use veriep_core::sim::cluster::{Cluster, Failure, Planned, World, schedule};
use veriep_core::sim::{Dense, Memory, Seeded, seeded::Memory::Weak, storage::group_sizes};
use veriep_core::units::RankId;

/// The tokens of both ranks, `[2, 4]` of bf16.
struct Tokens([Vec<u8>; 2]);

impl World<Dense, Seeded> for Tokens {
    fn inputs(&self, rank: RankId, _round: usize) -> Inputs<'_> {
        let (expert_ids, expert_scales) = (&[0, 3, 2, 1], &[0.5; 4]); // Two experts for each token.
        Inputs { x: &self.0[rank.index()], expert_ids, expert_scales, ..Inputs::default() }
    }

    fn ended(&mut self, all: &mut Cluster<'_, Dense, Seeded>, i: usize, op: Planned) -> Result<(), Failure> {
        if op.operator == Operator::Dispatch {
            let y = all.output(i, op.round, Tensor::ExpandX).to_vec(); // Experts return rows unchanged.
            all.members[i].returned[op.round] = all.returned(i, op.round, y);
        }
        Ok(())
    }
}

fn main() {
    let config = Config { ep_world_size: 2, moe_expert_num: 4, k: 2, h: 4, aiv_num: 1, ..Config::default() };
    let config = Config { bs: BatchSizes::Uniform(2), hccl_buffsize_mb: 1, ..config };
    let shape = Shape::new(&config, Limits::None).expect("a legal configuration");
    let mut tokens = Tokens([1.0f32, 2.0].map(|x| x.to_le_bytes()[2..].repeat(8)));
    let memory = Memory::new(&shape, Dense::new(group_sizes(&shape)), Seeded::new(Weak, 7)); // Effects land late, by seed 7.
    let mut group = Cluster::new(&shape, Choices::default(), memory, schedule("DC", 1));
    group.run(&mut tokens).expect("a dispatch and a combine");
    assert!((0..2).all(|rank| group.output(rank, 0, Tensor::XOut) == tokens.0[rank]));
}
