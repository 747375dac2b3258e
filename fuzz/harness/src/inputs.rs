//! `elastic_info` and `expert_map` of any words, and tensors of any length and content: the doors refuse what is wrong, and take nothing
//! else, by rules said once more.

use crate::domain::{Domain, Numbers, Tensors};
use crate::tape::Tape;
use std::collections::BTreeSet;
use veriep_core::inputs::{ExpertMap, InputError};
use veriep_core::reference::numerics;
use veriep_core::shape::{Elastic, Product, Protocol, Shape};
use veriep_core::units::{RankId, Token};

/// What the doors said.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Whether `elastic_info` left anybody.
    pub elastic: bool,
    /// Whether `expert_map` was sound.
    pub redundant: bool,
    /// What was wrong with the tensors first.
    pub tensors: Result<(), InputError>,
}

/// Judges what the bytes mean: a domain, then changes to a legal `elastic_info` and to legal tensors.
///
/// # Panics
/// If a door takes what is wrong, or refuses what is right.
pub fn run(bytes: &[u8]) -> Option<Report> {
    let (numbers, rest) = Numbers::from_bytes(bytes);
    let mut tape = Tape::new(rest, numbers.seed.into());
    let domain = Domain::new(numbers, &mut tape)?;
    let elastic = elastic(&domain, &mut tape);
    let rank = RankId(tape.below(domain.shape.ep_world_size() as usize) as u32);
    let mut tensors = Tensors::new(&domain, rank, &mut tape);
    (0..tape.below(4)).for_each(|_| change(&mut tensors, &mut tape));
    let seen = tensors.inputs().check(&domain.shape, rank);
    let wrong = wrong(&domain.shape, rank, &tensors);
    assert_eq!(seen.is_err(), wrong.is_some(), "{seen:?}, but {wrong:?} of {tensors:?}");
    let mut found = 0;
    let _ = tensors.inputs().check_all(&domain.shape, rank, &mut |error| {
        assert!(!error.to_string().is_empty() && !error.tensor().is_empty());
        found += 1;
        core::ops::ControlFlow::Continue(())
    });
    assert_eq!(found > 0, wrong.is_some());
    let redundant = redundant(&domain.shape, &mut tape);
    Some(Report { elastic, redundant, tensors: seen })
}

/// Some words of a legal `expert_map` changed; with a sound one, what a token means by every id.
fn redundant(shape: &Shape, tape: &mut Tape<'_>) -> bool {
    let experts = shape.moe_expert_num() as usize;
    let rows = 1 + tape.below(experts);
    let mut replicas = vec![Vec::new(); rows];
    for expert in 0..experts {
        let row = if expert < rows { expert } else { tape.below(rows) };
        replicas[row].push(expert as i32);
    }
    let width = replicas.iter().map(Vec::len).max().unwrap_or(0) + tape.below(2);
    let mut words: Vec<i32> = Vec::new();
    for row in &replicas {
        words.extend(row);
        words.resize(words.len() + width - row.len(), -1);
    }
    for _ in 0..tape.below(4) {
        let at = tape.below(words.len());
        words[at] = if tape.one_in(16) { tape.word() as i32 } else { tape.below(experts + 2) as i32 - 1 };
    }
    // The rules once more: rows of experts with -1 after them, in all each expert once.
    let rows_of = words.chunks(width).map(|row| row.split(|&word| word == -1).next().unwrap_or_default());
    let rows_of: Vec<_> = rows_of.collect();
    let mut named = rows_of.concat();
    named.sort_unstable();
    let specials = shape.expert_ids_end() as usize - experts;
    let is_sound = shape.k() as usize <= rows + specials
        && rows_of.iter().all(|row| !row.is_empty())
        && words.iter().filter(|&&word| word != -1).count() == named.len()
        && named.into_iter().eq(0..experts as i32);
    let mut told = 0;
    let map = ExpertMap::check(shape, &words, rows, &mut |violation| {
        assert!(!violation.to_string().is_empty());
        told += 1;
    });
    assert_eq!((map.is_some(), told == 0), (is_sound, is_sound), "{words:?} of {rows} rows");
    let Some(map) = map else { return false };
    let (rank, token) = (tape.below(shape.ep_world_size() as usize), tape.below(8));
    for id in 0..rows + specials {
        let own = rows_of.get(id);
        let physical =
            own.map_or((id + experts).wrapping_sub(rows) as i32, |own| own[(rank + token) % own.len()]);
        let seen = map.physical(shape, RankId(rank as u32), Token(token as u32), id as i32);
        assert_eq!(seen, Some(physical), "{words:?}, id {id}");
    }
    true
}

/// Some words of a legal `elastic_info`, or of any, changed.
fn elastic(domain: &Domain, tape: &mut Tape<'_>) -> bool {
    let whole = &domain.whole;
    let ranks = whole.ep_world_size() as i32;
    let all_ranks = || {
        let head = [1, ranks, whole.shared_expert_rank_num() as i32, whole.moe_expert_num() as i32];
        head.into_iter().chain(0..ranks).chain(0..ranks).collect::<Vec<i32>>()
    };
    let mut info = domain.elastic.as_ref().map_or_else(all_ranks, |(info, _)| info.clone());
    for _ in 0..tape.below(5) {
        let (i, word) = (tape.below(info.len()), tape.byte());
        info[i] = match word {
            0..200 => i32::from(word % 10) - 1,
            _ => tape.word() as i32,
        };
    }
    if tape.one_in(16) {
        info.truncate(tape.below(info.len() + 1));
    }
    let want = leaves(whole, &info);
    let mut is_broken = false;
    let left = Elastic::check(whole, &info, &mut |violation| {
        assert_eq!(want, Err(()), "{violation:?} of {info:?}");
        assert!(!violation.to_string().is_empty());
        is_broken = true;
    });
    assert_eq!(if is_broken { Err(()) } else { Ok(left.is_some()) }, want, "{info:?}");
    match left {
        None => false,
        Some(left) => {
            let shape = whole.survivors(&left);
            for new in (0..shape.ep_world_size()).map(RankId) {
                let physical = left.physical(new).expect("a survivor");
                assert_eq!(left.new_id(physical), Some(new));
                assert_eq!(shape.bs(new), whole.bs(physical));
                assert!(shape.rows_max(new) >= whole.rows_max(physical));
            }
            assert!(left.physical(RankId(shape.ep_world_size())).is_none());
            assert!(shape.dispatch_area() <= whole.dispatch_area(), "areas that do not fit the window");
            true
        }
    }
}

/// Whether the words leave a domain, by the rules of `elastic_info`; `Err` if they break one.
fn leaves(whole: &Shape, info: &[i32]) -> Result<bool, ()> {
    let (ranks, s) = (i64::from(whole.ep_world_size()), i64::from(whole.shared_expert_num()));
    if info.len() as i64 != 4 + 2 * ranks {
        return Err(());
    }
    if info[0] == 0 {
        return Ok(false);
    }
    let [left, shared, experts] = [info[1], info[2], info[3]].map(i64::from);
    let specials = i64::from(whole.expert_ids_end() - whole.moe_expert_num());
    let ids = experts + specials;
    let heads = (1..=ranks).contains(&left)
        && (0..left).contains(&shared)
        && (shared == 0 || s > 0 && shared % s == 0)
        && experts >= 1
        && experts % (left - shared) == 0
        && (i64::from(whole.k())..=i64::from(i32::MAX)).contains(&ids)
        && experts / (left - shared) * left <= ranks * i64::from(whole.local_expert_num());
    let (to_new, to_physical) = info[4..].split_at(ranks as usize);
    let at = |table: &[i32], i: i32| usize::try_from(i).ok().and_then(|i| table.get(i).copied());
    let mut inverse = true;
    for (i, &new) in (0..).zip(to_new) {
        inverse &= new == -1 || i64::from(new) < left && at(to_physical, new) == Some(i);
    }
    for (i, &physical) in (0..).zip(to_physical) {
        let is_left = i64::from(i) < left;
        inverse &= if is_left { at(to_new, physical) == Some(i) } else { physical == -1 };
    }
    if heads && inverse { Ok(true) } else { Err(()) }
}

/// Makes something wrong, or only other.
fn change(tensors: &mut Tensors, tape: &mut Tape<'_>) {
    let (i, byte) = (tape.below(256), tape.byte());
    let bits = [0x7F80, 0x7FC0, 0x7C00, 0xFFFF, 0x7F7F, 0, 0x8000][tape.below(7)];
    let element = |row: &mut Vec<u8>, bits: u16| {
        if !row.is_empty() {
            let at = (i * 2 % row.len()) & !1;
            row.iter_mut().skip(at).zip(bits.to_le_bytes()).for_each(|(to, from)| *to = from);
        }
    };
    let float = [f32::NAN, f32::INFINITY, f32::MAX, -0.0, 3.0e38][tape.below(5)];
    match tape.below(14) {
        0 => element(&mut tensors.x, bits),
        1 => tensors.add_rms_norm.iter_mut().for_each(|[_, gamma]| element(gamma, bits)),
        2 => element(&mut tensors.alpha_1, bits),
        3 => element(&mut tensors.const_v, bits),
        4 => tensors.add_rms_norm.iter_mut().for_each(|[residual_x, _]| element(residual_x, bits)),
        5 | 6 if !tensors.ids.is_empty() => {
            let at = i % tensors.ids.len();
            tensors.ids[at] = if byte == 255 { tape.word() as i32 } else { i32::from(byte % 20) - 1 };
        }
        7 if !tensors.weights.is_empty() => {
            let at = i % tensors.weights.len();
            tensors.weights[at] = float;
        }
        8 => {
            if let Some(scales) = tensors.scales.as_mut().filter(|scales| !scales.is_empty()) {
                let at = i % scales.len();
                scales[at] = float;
            }
        }
        9 => {
            let mask = tensors.tokens_mask.as_mut().or(tensors.pairs_mask.as_mut());
            if let Some(flag) = mask.and_then(|mask| mask.get_mut(i % 5)) {
                *flag = !*flag;
            }
        }
        10 => tensors.tokens_mask = Some((0..tensors.ids.len().min(i % 6)).map(|t| t < 2).collect()),
        11 => tensors.x.truncate(tensors.x.len().saturating_sub(i % 5)),
        12 => tensors.shared_x = Some(tensors.x.clone()),
        _ => tensors.scales = Some(vec![1.0; i]),
    }
}

/// What is wrong, by the rules said once more.
fn wrong(shape: &Shape, rank: RankId, tensors: &Tensors) -> Option<&'static str> {
    let (bs, k, h) = (shape.bs(rank) as usize, shape.k() as usize, shape.h() as usize);
    let (consts, norm) = (shape.const_expert_num() as usize, tensors.add_rms_norm.as_ref());
    let dtype = shape.dtype();
    let bytes = |n: usize, row: &[u8]| row.len() == 2 * n;
    let finite = |row: &[u8]| numerics::values(dtype, row).iter().all(|value| value.is_finite());
    let lengths = bytes(bs * h, &tensors.x)
        && tensors.ids.len() == bs * k
        && tensors.weights.len() == bs * k
        && tensors.tokens_mask.as_ref().is_none_or(|mask| mask.len() == bs)
        // A 1-D mask goes before.
        && (tensors.tokens_mask.is_some() || tensors.pairs_mask.as_ref().is_none_or(|mask| mask.len() == bs * k))
        && bytes(consts, &tensors.alpha_1)
        && bytes(consts, &tensors.alpha_2)
        && bytes(consts * h, &tensors.const_v)
        && norm.is_none_or(|[residual_x, gamma]| bytes(bs * h, residual_x) && bytes(h, gamma))
        && tensors.shared_x.as_ref().is_none_or(|x| shape.shared_expert_rows() == 0 && bytes(bs * h, x));
    let has_mask = tensors.tokens_mask.is_some() || tensors.pairs_mask.is_some();
    let taken = match shape.protocol() {
        Protocol::Fullmesh => tensors.shared_x.is_none(),
        Protocol::Hierarchy => tensors.shared_x.is_none() && tensors.scales.is_none() && !has_mask,
        _ => true,
    };
    let quantised = shape.row_format().scale.is_some();
    let scales = tensors.scales.as_ref().is_none_or(|scales| {
        let fits = quantised && scales.len() == shape.expert_rows() as usize * h;
        let has_rows = shape.moe_expert_num() <= shape.expert_rows() - shape.shared_expert_rows();
        fits && has_rows && scales.iter().all(|scale| scale.is_finite())
    });
    let weights = tensors.weights.iter().all(|weight| weight.is_finite());
    let gamma = norm.map(|[_, gamma]| gamma);
    let mut model = [&tensors.alpha_1, &tensors.alpha_2, &tensors.const_v].into_iter().chain(gamma);
    let parts = [
        (taken, "a tensor that no machine reads"),
        (lengths, "a length"),
        (scales, "scales"),
        (weights, "a weight"),
        (model.all(|row| finite(row)), "a number of the model"),
    ];
    if let Some((_, what)) = parts.into_iter().find(|(right, _)| !right) {
        return Some(what);
    }
    let active = |token: usize, column: usize| match (&tensors.tokens_mask, &tensors.pairs_mask) {
        (Some(mask), _) => mask[token],
        (_, Some(mask)) => mask[token * k + column],
        _ => true,
    };
    let ids = (0..bs).all(|token| {
        let ids =
            (0..k).filter(|&column| active(token, column)).map(|column| tensors.ids[token * k + column]);
        let legal = ids.clone().all(|id| (0..shape.expert_ids_end() as i32).contains(&id));
        legal && ids.clone().collect::<BTreeSet<_>>().len() == ids.count()
    });
    let token_active = |token| (0..k).any(|column| active(token, column));
    let sorted = tensors.tokens_mask.as_ref().is_none_or(|mask| mask.is_sorted_by(|a, b| a >= b));
    let is_a2 = shape.product() == Product::A2;
    let all_if_uneven = is_a2 || !shape.bs_is_uneven() || (0..bs).all(token_active);
    for (right, what) in [(ids, "an id"), (sorted, "the mask's order"), (all_if_uneven, "an inactive token")]
    {
        if !right {
            return Some(what);
        }
    }
    let can_be_quantised = |token: usize| {
        let x = numerics::values(dtype, &tensors.x[token * 2 * h..][..2 * h]);
        let moe =
            (0..k).filter(|&column| active(token, column)).map(|column| tensors.ids[token * k + column]);
        let moe = moe.filter(|&id| id < shape.moe_expert_num() as i32);
        let moe = moe.map(|id| shape.shared_expert_rows() as usize + id as usize);
        let mut rows = (0..shape.shared_expert_num() as usize).chain(moe);
        x.iter().all(|x| x.is_finite())
            && rows.all(|row| {
                let smooth = tensors.scales.as_ref().map(|scales| &scales[row * h..][..h]);
                smooth.is_none_or(|smooth| x.iter().zip(smooth).all(|(x, scale)| (x * scale).is_finite()))
            })
    };
    let tokens = !quantised || (0..bs).filter(|&token| token_active(token)).all(can_be_quantised);
    (!tokens).then_some("a token")
}
