//! The check that memory is addressable: sizes are 64 bits wide, but slices are at most `isize::MAX` bytes long.

use super::validate::signed;
use super::violation::Found;
use super::{Rule, Seen, Shape, Violation};
use crate::units::RankId;

/// Bytes of the largest entry of a received row or a token, other than a row of H elements, rounded up.
const ENTRY: u64 = 32;

impl Shape {
    /// Returns whether windows, outputs and inputs have at most `limit` bytes each; `found` receives the violations.
    pub(super) fn is_addressable(&self, limit: u64, found: Found<'_>) -> bool {
        let rows = self.rows_max(RankId(0)).max(self.rows_max(RankId(self.shared_expert_rank_num)));
        let of_a_row = match self.tp_world_size {
            1 => self.longest_row_bytes().max(ENTRY),
            // The TP window has a record and a result of each row, for both partitions.
            _ => 2 * (self.record_pitch() + self.combine_pitch()),
        };
        let of_a_token = self.row_bytes().max(4 * u64::from(self.combine_columns()));
        let tokens = u64::from(self.bs_max) * of_a_token;
        let experts = u64::from(self.expert_rows().max(self.const_expert_num)) * 4 * u64::from(self.h);
        let received = 4 * (self.dispatch_slots() + self.reduce_entries());
        let sizes = [
            ("hccl_buffsize_mb", self.hccl_buffsize_mb, self.window_bytes()),
            ("bs", self.bs_max, tokens.max(rows * of_a_row).max(received)),
            ("h", self.h, experts),
        ];
        for &(parameter, seen, bytes) in sizes.iter().filter(|(.., bytes)| *bytes > limit) {
            let rule = Rule::Words("must leave all memory within what this processor can address");
            let numbers = [("bytes", signed(bytes)), ("limit", signed(limit))];
            found(&Violation::new(parameter, Seen::Number(seen.into()), rule).with(&numbers));
        }
        sizes.iter().all(|(.., bytes)| *bytes <= limit)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::layout::{outputs::capacity, tp};
    use crate::place::Tensor;
    use crate::shape::{BatchSizes, Config, Limits, Protocol};
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    fn shape(config: &Config<'_>) -> Shape {
        Shape::new(config, Limits::None).unwrap()
    }

    fn broken(shape: &Shape, limit: u64) -> Vec<String> {
        let mut found = Vec::new();
        let fits = shape.is_addressable(limit, &mut |violation| found.push(violation.to_string()));
        assert_eq!(fits, found.is_empty());
        found
    }

    #[test]
    fn memory_that_a_processor_cannot_address_is_refused() {
        let words = "must leave all memory within what this processor can address";
        // 16 ranks of 4096 MiB; outputs of 16 * 16 * 4 rows of 14 KiB; scales of 64 experts.
        let shape = shape(&Config { hccl_buffsize_mb: 4096, ..Config::default() });
        let window =
            std::format!("hccl_buffsize_mb = 4096: {words} (bytes = 4294967296, limit = 2147483647)");
        assert_eq!(broken(&shape, i32::MAX as u64), [window]);
        let rows = std::format!("bs = 16: {words} (bytes = 14680064, limit = 14680063)");
        assert_eq!(broken(&shape, 14_680_063)[1..], [rows]);
        let scales = std::format!("h = 7168: {words} (bytes = 1835008, limit = 1835007)");
        assert_eq!(broken(&shape, 1_835_007)[2..], [scales]);
        assert!(broken(&shape, 1 << 32).is_empty() && broken(&shape, 14_680_064).len() == 1);
    }

    /// This holds for rows of any size, with a TP domain and without.
    #[test]
    fn no_output_and_no_window_exceeds_the_limit() {
        let (a3, a2) = (Protocol::FullmeshV1, Protocol::Hierarchy);
        for (comm_alg, h, k, quant_mode, tp_world_size) in [
            (a3, 1, 1, 0, 0),
            (a3, 1, 16, 2, 2),
            (a3, 7168, 8, 0, 2),
            (a3, 7168, 8, 2, 0),
            (a3, 3, 16, 0, 0),
            (a2, 8, 16, 0, 0),
        ] {
            let bs = BatchSizes::Uniform(5);
            let config = Config {
                comm_alg,
                h,
                k,
                quant_mode,
                tp_world_size,
                bs,
                moe_expert_num: 16,
                server_ranks: 1,
                ..Config::default()
            };
            let shape = shape(&config);
            let mut sizes: Vec<u64> = Tensor::ALL.map(|tensor| capacity(&shape, RankId(0), tensor)).to_vec();
            if tp_world_size == 2 {
                sizes.push(tp::window_bytes(&shape, RankId(0)));
            }
            let largest = sizes.into_iter().max().unwrap();
            assert!(broken(&shape, largest - 1).iter().any(|line| line.starts_with("bs = 5:")), "{config:?}");
        }
    }
}
