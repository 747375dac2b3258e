//! A hash that identifies a shape.

use super::{PerRank, Shape};

/// Offset basis and prime of FNV-1a with 64 bits.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// FNV-1a over words instead of bytes.
pub(crate) fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(BASIS, |hash, word| (hash ^ word).wrapping_mul(PRIME))
}

impl Shape {
    /// Returns a hash of all that both operators and all ranks must have alike. What one operator alone reads, and what
    /// changes nothing that ranks share, is not in it: of dispatch `expert_token_nums_type`, of combine `norm_eps`. A
    /// dispatch may so run with a shape that has the defaults of combine, and its combine with another one.
    ///
    /// Such shapes have the same hash on every processor; others almost never share one, though an adversary could construct
    /// such a pair.
    #[must_use]
    pub const fn fingerprint(&self) -> u64 {
        self.derived.fingerprint
    }

    /// Returns the [`fingerprint`](Self::fingerprint) with the batch sizes that all ranks of a group must know alike.
    pub(crate) fn agreed_fingerprint(&self) -> u64 {
        match self.own {
            Some(_) => self.hash_with(&PerRank::NONE),
            None => self.fingerprint(),
        }
    }

    pub(super) fn hash_of_fields(&self) -> u64 {
        self.hash_with(&self.bs_per_rank)
    }

    fn hash_with(&self, bs_per_rank: &PerRank) -> u64 {
        // All fields are named, so that a new one that is missing here does not compile.
        let Self {
            comm_alg,
            dtype,
            row_format,
            result_format,
            token_nums: _,
            ep_world_size,
            server_ranks,
            tp_world_size,
            moe_expert_num,
            local_expert_num,
            shared_expert_num,
            shared_expert_rank_num,
            zero_expert_num,
            copy_expert_num,
            const_expert_num,
            k,
            h,
            bs_max,
            bs_per_rank: _,
            // It says how much is known of the sizes.
            own: _,
            aiv_num,
            hccl_buffsize_mb,
            port_offset,
            norm_eps_bits: _,
            kept,
            derived: _,
        } = *self;
        let words = [comm_alg.product() as u32, comm_alg as u32, dtype as u32, row_format.kind()];
        let ranks = [ep_world_size, server_ranks, tp_world_size];
        let experts = [moe_expert_num, local_expert_num, shared_expert_num, shared_expert_rank_num];
        let specials = [zero_expert_num, copy_expert_num, const_expert_num];
        let sizes = [k, h, bs_max, aiv_num, hccl_buffsize_mb, port_offset];
        let flags = [result_format.kind(), kept.is_some().into(), bs_per_rank.len() as u32];
        let kept =
            kept.map(|kept| [kept.shared_expert_num.into(), kept.moe_expert_num.into(), kept.rows_max]);
        let small = [&words[..], &ranks, &experts, &specials, &sizes, &flags].into_iter().flatten();
        let small = small.copied().chain(bs_per_rank.iter().map(u32::from)).map(u64::from);
        hash(small.chain(kept.into_iter().flatten()))
    }
}
