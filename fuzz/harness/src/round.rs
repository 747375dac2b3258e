//! Whole rounds under any schedule and any landing of effects: every output as the reference has it, no flag left behind,
//! an end.

use crate::domain::{Domain, Feature, Numbers};
use crate::group::{Group, Returned, Scene, Watch, result_row};
use crate::tape::{Tape, mixed};
use veriep_core::fabric::ProtocolError;
use veriep_core::inputs::Inputs;
use veriep_core::layout::a2_window;
use veriep_core::layout::affine::Named;
use veriep_core::layout::state::{Partition, selector};
use veriep_core::place::{Place, Tensor};
use veriep_core::plan::returns::received;
use veriep_core::protocol::Operator;
use veriep_core::reference::{Cluster, numerics};
use veriep_core::shape::Protocol;
use veriep_core::sim::cluster::Planned;
use veriep_core::sync::flag::is_window_flag;
use veriep_core::units::{CoreId, RankId, Token};

/// A round, decoded and judged: what kind it was, for tests.
#[derive(Clone, Debug)]
pub struct Report {
    pub domain: Domain,
    /// Steps and landings that it took.
    pub ticks: usize,
    /// Tasks that agents posted.
    pub tasks: usize,
}

/// Runs what the bytes mean. `None` if they mean no domain.
///
/// # Panics
/// If an output is wrong, an access is illegal, a flag is left, or there is no end.
pub fn run(bytes: &[u8]) -> Option<Report> {
    let (numbers, rest) = Numbers::from_bytes(bytes);
    let mut tape = Tape::new(rest, numbers.seed.into());
    let domain = Domain::new(numbers, &mut tape)?;
    let (mut scene, mut cluster) = Scene::new(&domain, tape);
    for (number, ep, _) in domain.members() {
        for round in &scene.rounds {
            assert_eq!(round[number].inputs().check(&domain.shape, ep), Ok(()), "the inputs are legal");
        }
    }
    let mut group = Group { scene: &mut scene, cluster: &mut cluster };
    let mut honest = Honest { seed: seed_of(&numbers) };
    let Some(ticks) = group.run(&mut honest) else { panic!("a hang: {:?}", group.cluster.members) };
    group.cluster.memory.settle();
    no_flag_is_left(&group);
    let tasks = cluster.memory.posted as usize;
    Some(Report { ticks, tasks, domain })
}

/// The seed of the experts' rows; an odd one makes them of any bits.
pub(crate) fn seed_of(numbers: &Numbers) -> u64 {
    mixed(numbers.seed.into()) & !1 | u64::from(numbers.has(Feature::AnyBits))
}

struct Honest {
    seed: u64,
}

impl Watch for Honest {
    fn ended(&mut self, group: &mut Group<'_, '_, '_>, member: usize, planned: Planned) {
        let Planned { operator, round, .. } = planned;
        match operator {
            Operator::Dispatch => {
                check_dispatch(group, member, round);
                group.cluster.members[member].returned[round] = experts(group, member, round, self.seed);
            }
            Operator::Combine => check_combine(group, member, round, self.seed),
        }
    }

    fn combines(&mut self, group: &Group<'_, '_, '_>, member: usize, round: usize) {
        // Rows in the window are good until the experts have ended.
        if group.scene.domain.choices.receive.keeps_rows() {
            let returned = &group.cluster.members[member].returned[round];
            check_rows(group, member, round, &returned.row_table);
        }
    }

    fn refused(&mut self, group: &Group<'_, '_, '_>, member: usize, error: ProtocolError) {
        panic!("member {} of an honest group: {error}", group.cluster.members[member].number);
    }
}

/// Runs `judge` with the reference of a round.
pub(crate) fn oracle<T>(group: &Group<'_, '_, '_>, round: usize, judge: impl FnOnce(&Cluster<'_>) -> T) -> T {
    let ranks: Vec<_> = group.scene.rounds[round].iter().map(crate::domain::Tensors::inputs).collect();
    let elastic_info = group.scene.domain.elastic.as_ref().map(|(info, _)| info.as_slice());
    judge(&Cluster { shape: &group.scene.domain.whole, ranks: &ranks, elastic_info, expert_map: None })
}

fn compare(group: &Group<'_, '_, '_>, member: usize, tensor: Tensor, want: &[u8]) {
    let number = group.cluster.members[member].number;
    let seen = &group.output(member, tensor)[..want.len()];
    let at = seen.iter().zip(want).position(|(a, b)| a != b);
    assert!(at.is_none(), "{} of member {number} differs at byte {at:?}", tensor.name());
}

fn check_dispatch(group: &Group<'_, '_, '_>, member: usize, round: usize) {
    let number = group.cluster.members[member].number;
    let want = oracle(group, round, |cluster| cluster.dispatch(number));
    for tensor in [
        Tensor::EpRecvCounts,
        Tensor::ExpertTokenNums,
        Tensor::ExpandIdx,
        Tensor::AssistInfo,
        Tensor::DynamicScales,
        Tensor::ExpandScales,
        Tensor::TpRecvCounts,
    ] {
        compare(group, member, tensor, &want.bytes(tensor));
    }
    check_rows(group, member, round, group.output(member, Tensor::RowTable));
}

/// The rows that experts read, found by `table` if they are in the window.
fn check_rows(group: &Group<'_, '_, '_>, member: usize, round: usize, table: &[u8]) {
    let number = group.cluster.members[member].number;
    let want = oracle(group, round, |cluster| cluster.dispatch(number)).expand_x;
    let rows = want.len() / group.scene.domain.shape.payload_bytes() as usize;
    let seen = group.cluster.rows(member, round, rows, table).expect("rows in the memory");
    let at = seen.iter().zip(&want).position(|(a, b)| a != b);
    assert!(at.is_none() && seen.len() == want.len(), "rows of member {number} differ at byte {at:?}");
}

/// What the experts of a member return for what it received, by the definition.
pub(crate) fn experts(group: &Group<'_, '_, '_>, member: usize, round: usize, seed: u64) -> Returned {
    let shape = &group.scene.domain.shape;
    let (tp, number) = (shape.tp_world_size(), group.cluster.members[member].number);
    let ep = group.cluster.members[member].ep;
    let own_tp = RankId(number.0 % tp);
    let mut y = Vec::new();
    for owner_tp in (0..tp).map(|i| RankId(own_tp.0 ^ i)) {
        let inputs = |source| inputs_of(group, round, source, owner_tp);
        for row in received(shape, ep, inputs) {
            let (token, k) = (row.pair.token.0, row.pair.k);
            y.extend(result_row(shape, seed + 2 * round as u64, own_tp, (row.source, owner_tp), token, k));
        }
    }
    group.cluster.returned(member, round, y)
}

/// What the member that machines call `ep` brings.
pub(crate) fn inputs_of<'g>(
    group: &'g Group<'_, '_, '_>,
    round: usize,
    ep: RankId,
    tp: RankId,
) -> Inputs<'g> {
    let number = group.scene.domain.physical(ep).0 * group.scene.domain.shape.tp_world_size() + tp.0;
    group.scene.rounds[round][number as usize].inputs()
}

/// The row that combine has for `(token, k)` of a member: of one expert, or the sum of TP peers.
pub(crate) fn came_back(
    group: &Group<'_, '_, '_>,
    member: usize,
    seed: u64,
    token: Token,
    k: u32,
) -> Vec<u8> {
    let shape = &group.scene.domain.shape;
    let tp = shape.tp_world_size();
    let own_tp = RankId(group.cluster.members[member].number.0 % tp);
    let owner = (group.cluster.members[member].ep, own_tp);
    let part = |of| result_row(shape, seed, of, owner, token.0, k);
    match tp {
        1 => part(own_tp),
        _ => numerics::add_rows(shape.dtype(), &part(RankId(0)), &part(RankId(1))),
    }
}

fn check_combine(group: &Group<'_, '_, '_>, member: usize, round: usize, seed: u64) {
    let number = group.cluster.members[member].number;
    let seed = seed + 2 * round as u64;
    let returned = &mut |token, k, row: &mut Vec<u8>| *row = came_back(group, member, seed, token, k);
    if group.scene.rounds[round][number.index()].add_rms_norm.is_none() {
        let want = oracle(group, round, |cluster| cluster.combine(number, returned));
        return compare(group, member, Tensor::XOut, &want);
    }
    oracle(group, round, |cluster| {
        let want = cluster.combine_add_rms_norm(number, returned);
        compare(group, member, Tensor::XOut, &want.x_out);
        compare(group, member, Tensor::X, &want.x);
        let rstd = group.output(member, Tensor::Rstd).as_chunks().0;
        let rstd: Vec<_> = rstd.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_eq!(rstd.len(), want.rstd.len());
        for (seen, range) in rstd.iter().zip(&want.rstd) {
            assert!(range.holds(*seen), "rstd {seen} of member {number}: {range:?}");
        }
        compare(group, member, Tensor::Y, &cluster.y(number, &want, &rstd));
    });
}

/// After the last operator no flag is left that a later one could take for its own.
fn no_flag_is_left(group: &Group<'_, '_, '_>) {
    let shape = &group.scene.domain.shape;
    for member in &group.cluster.members {
        let number = member.number.index();
        let word = |at| group.cluster.memory.word(member.number, at);
        // Where calls have numbers, the record's upper bits hold those of the last uses.
        let next = word(selector(Operator::Dispatch, CoreId(0))) & 1;
        let last_dispatch = Some(if next == 0 { Partition::P1 } else { Partition::P0 });
        for area in &group.scene.guard(number).areas {
            let words: &[u64] = match (area.named, group.scene.domain.shape.protocol()) {
                (Named::DispatchStatus, _) => &[0, 8],
                // Words of the last dispatch stay.
                (Named::DirectRecords, _) if area.partition != last_dispatch => &[0, 8, 16],
                (
                    Named::CombineStatus
                    | Named::ResultsReady
                    | Named::TpDispatchSlots
                    | Named::TpCombineSlots,
                    _,
                ) => &[0],
                _ => continue,
            };
            for (slot, offset) in
                (0..area.count).flat_map(|slot| words.iter().map(move |offset| (slot, offset)))
            {
                let at = Place { offset: area.start.offset + slot * area.stride + offset, ..area.start };
                assert_eq!(word(at), 0, "{} {slot} of member {number}", area.named.name());
            }
        }
        if group.scene.domain.shape.protocol() == Protocol::Fullmesh {
            let ranks = (0..shape.ep_world_size()).map(RankId);
            let most = ranks.map(|rank| shape.rows_to_peer_max(rank)).max().unwrap_or(0);
            let ends =
                [Operator::Dispatch, Operator::Combine].map(|kind| a2_window::sent_bytes(shape, kind, most));
            let end = ends[0].max(ends[1]);
            for peer in (0..shape.ep_world_size()).map(RankId) {
                for half in [Partition::P0, Partition::P1] {
                    let mut at = a2_window::next_flag_place(shape, 0);
                    // After the longest window no rank has written.
                    while at < end {
                        let place = a2_window::window_in(shape, half, peer, at);
                        assert!(!is_window_flag(word(place)), "{place} of {number}");
                        at = a2_window::next_flag_place(shape, at + 1);
                    }
                }
            }
        }
        if group.scene.domain.shape.protocol() == Protocol::FullmeshV2 {
            let records =
                group.scene.guard(number).areas.iter().filter(|a| a.named == Named::DispatchRecords);
            for area in records {
                for block in 0..area.size() / 512 {
                    let at = Place { offset: area.start.offset + block * 512 + 480, ..area.start };
                    assert_eq!(word(at), 0, "block flag at {at} of member {number}");
                }
            }
        }
    }
}
