//! Sums by servers, computed by hand.

use super::*;
use crate::shape::Protocol;

/// Two servers of two ranks with an expert each; K = 3, one token of one block, weights 1, 2, 4.
fn hierarchy() -> Config<'static> {
    Config { comm_alg: Protocol::Hierarchy, server_ranks: 2, ..small([4, 4, 0, 0, 3, 8, 1]) }
}

fn tensors(ids: [[i32; 3]; 4]) -> Vec<Tensors> {
    let of = |(rank, ids): (u8, &[i32; 3])| Tensors::new(&[f32::from(rank); 8], ids, &[1.0, 2.0, 4.0]);
    (0..).zip(&ids).map(of).collect()
}

/// Returns the result of rank 0's token, when its pairs return these values in every element.
fn combined(config: &Config<'_>, ids: [i32; 3], values: [f32; 3]) -> f32 {
    let tensors = tensors([ids, [0, 1, 2], [0, 1, 2], [0, 1, 2]]);
    let (x_out, asked) = combine(&shape(config), &tensors, 0, &|_, k| vec![values[k as usize]; 8]);
    assert_eq!(asked, [(0, 0), (0, 1), (0, 2)]);
    assert!(x_out.iter().all(|&v| v == x_out[0]));
    x_out[0]
}

#[test]
fn a_partial_sum_is_rounded_before_it_crosses() {
    // In f32 256 + 2 * 0.5 + 4 * 0.5 = 259, which bf16 rounds to 260.
    assert_eq!(combined(&small([4, 4, 0, 0, 3, 8, 1]), [0, 2, 1], [256.0, 0.5, 0.5]), 260.0);
    // By servers: 256 + 2 = 258, and 1; in all 259 again.
    assert_eq!(combined(&hierarchy(), [0, 2, 1], [256.0, 0.5, 0.5]), 260.0);
    // 256 + 1 is rounded to 256 on the way; then 256 + 2.
    assert_eq!(combined(&hierarchy(), [0, 1, 2], [256.0, 0.5, 0.5]), 258.0);
    // Its own server is no exception, and the order of servers is not that of k.
    assert_eq!(combined(&hierarchy(), [2, 3, 0], [256.0, 0.5, 0.5]), 258.0);
}

#[test]
fn blocks_are_made_of_the_sum_in_f32() {
    let config = Config { comm_quant_mode: 2, ..hierarchy() };
    // 257 / 127 = 2.0236, as bf16 2.03125; times 127 is 257.97, as bf16 258. A sum rounded to 256 before would have given
    // 256. The other server adds 2.
    assert_eq!(combined(&config, [0, 1, 2], [256.0, 0.5, 0.5]), 260.0);
}

#[test]
fn a_server_brings_nothing_where_the_token_has_no_pair() {
    // A sum that begins with the partial sum itself would give -0.0.
    let config = hierarchy();
    assert_eq!(combined(&config, [0, 1, 2], [0.0; 3]).to_bits(), 0);
    let one_server = Config { k: 1, ..config };
    let tensors: Vec<_> = (0..4).map(|_| Tensors::new(&[1.0; 8], &[3], &[-1.0])).collect();
    let seen = combine(&shape(&one_server), &tensors, 0, &|_, _| vec![0.0; 8]).0;
    assert!(seen.iter().all(|v| v.to_bits() == 0), "{seen:?}");
}

#[test]
fn rows_carry_their_weight_and_their_position_on_that_server() {
    let seen = dispatch(&shape(&hierarchy()), &tensors([[1, 2, 0], [3, 2, 1], [0, 1, 2], [0, 2, 3]]));
    // Expert 2, on server 1: rank 0's token has it as its only one there; rank 1's as the second of two; ...
    assert_eq!(seen[2].ep_recv_counts, [1, 2, 3, 4]);
    assert_eq!(seen[2].expand_scales, [2.0, 2.0, 4.0, 2.0]);
    let of = |pairs, place| pairs << 16 | place;
    let infos = [[0, 0, of(1, 0)], [1, 0, of(2, 1)], [2, 0, of(1, 0)], [3, 0, of(2, 0)]];
    assert_eq!(seen[2].assist_info_for_combine, infos);
    assert_eq!(seen[0].expand_scales, [4.0, 1.0, 1.0]);
    assert_eq!(seen[0].assist_info_for_combine[0], [0, 0, of(2, 1)]);
}
