//! Attacks. **Corruption**: any word that machines and agents read may change at any step to anything. **A Byzantine rank**: a rank
//! whose machines are right, but what they send is not.
//!
//! Whatever comes: no panic, an end, no access that the layout does not give, no error that blames this crate. With a
//! Byzantine rank moreover every row of others arrives unharmed, every token that has no expert on the Byzantine rank gets its sum, and
//! who refuses something names the Byzantine rank. (Not so where a Byzantine rank has other people's rows in its hands: with direct placement it
//! can put more rows than it was granted, in a hierarchy a relay forwards what others sent, and in a TP domain a rank lends
//! its peer what others told it.)

use crate::domain::{Domain, Feature, Numbers};
use crate::group::{Group, Liar, Returned, Scene, Watch, result_row};
use crate::round::{came_back, inputs_of, oracle, seed_of};
use crate::tape::Tape;
use veriep_core::fabric::ProtocolError;
use veriep_core::layout::a2_window::{FLAG, next_flag_place};
use veriep_core::layout::affine::Named;
use veriep_core::layout::map::record_fields;
use veriep_core::layout::outputs::ep_recv_counts_bytes;
use veriep_core::place::{Place, Tensor};
use veriep_core::plan::returns::received;
use veriep_core::plan::route;
use veriep_core::protocol::Operator;
use veriep_core::shape::{Product, Protocol};
use veriep_core::sim::cluster::Planned;
use veriep_core::sync::flag;
use veriep_core::units::{Pair, RankId, Token};

/// The most words that corruption changes in a run: afterwards it can come to an end.
const DROPS_MAX: usize = 80;
/// A bit of the kind: a Byzantine rank may be in a TP domain.
const WITH_TP: u8 = 0x80;

/// How an attack ended.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whether there was a Byzantine rank, and not corruption.
    pub byzantine: bool,
    /// Words that corruption changed.
    pub drops: usize,
    /// Every member that refused something, by place among the members, and what.
    pub refused: Vec<(usize, ProtocolError)>,
    /// Operators that came to an end, over all members.
    pub ended: usize,
    /// Rows and sums of others that were held against the reference.
    pub unharmed: usize,
    /// How often so much was in flight that some of it had to land.
    pub full: usize,
}

/// Runs what the bytes mean: numbers, then the kind of attack and its rate. `None` if they mean no domain.
///
/// # Panics
/// If an attack does what it must not.
pub fn run(bytes: &[u8]) -> Option<Report> {
    let (mut numbers, rest) = Numbers::from_bytes(bytes);
    let mut tape = Tape::new(rest, numbers.seed.into());
    let (kind, rate) = (tape.byte(), tape.byte());
    let is_byzantine = kind & 1 == 1;
    if is_byzantine && kind & WITH_TP == 0 {
        // A TP peer lends out what others told it: there is no telling whose rows are whose.
        numbers.features &= !(Feature::Tp as u16);
    }
    // The definition of what a word can be knows no numbers of calls.
    let mut domain = Domain::new(numbers, &mut tape)?;
    domain.choices.checked = false;
    let (mut scene, mut cluster) = Scene::new(&domain, tape);
    cluster.memory.rewrites = true;
    let byzantine = is_byzantine.then(|| usize::from(kind >> 1) % cluster.members.len());
    scene.byzantine =
        byzantine.map(|member| Liar { member: cluster.members[member].number.index(), rate: rate.max(1) });
    let report = Report { byzantine: is_byzantine, ..Report::default() };
    let has_tp = domain.shape.tp_world_size() > 1;
    let is_direct = domain.choices.receive.is_direct();
    let is_apart = !has_tp && !is_direct && domain.shape.protocol() != Protocol::Hierarchy;
    let mut attack = Attack { seed: seed_of(&numbers), rate, byzantine, is_apart, report };
    Group { scene: &mut scene, cluster: &mut cluster }.run(&mut attack);
    attack.report.full = cluster.memory.chooser.full;
    attack.report.ended = cluster.members.iter().map(|member| member.ended).sum();
    Some(attack.report)
}

struct Attack {
    seed: u64,
    rate: u8,
    /// Its place among the members.
    byzantine: Option<usize>,
    /// Whether a Byzantine rank can harm its own rows alone.
    is_apart: bool,
    report: Report,
}

impl Watch for Attack {
    fn ended(&mut self, group: &mut Group<'_, '_, '_>, member: usize, planned: Planned) {
        let Planned { operator, round, .. } = planned;
        match (operator, self.byzantine) {
            (Operator::Dispatch, Some(byzantine)) if byzantine != member && self.is_apart => {
                let byzantine = group.cluster.members[byzantine].ep;
                let returned = self.unharmed_rows(group, member, round, byzantine);
                group.cluster.members[member].returned[round] = returned;
            }
            (Operator::Dispatch, _) => {
                let returned = rubbish(group, member, round);
                group.cluster.members[member].returned[round] = returned;
            }
            (Operator::Combine, Some(byzantine)) if byzantine != member && self.is_apart => {
                self.unharmed_sums(group, member, round, group.cluster.members[byzantine].ep);
            }
            (Operator::Combine, _) => {}
        }
    }

    fn meddle(&mut self, group: &mut Group<'_, '_, '_>) {
        if self.byzantine.is_none() && self.report.drops < DROPS_MAX && group.scene.tape().byte() < self.rate
        {
            self.report.drops += 1;
            drop_falls(group);
        }
    }

    fn refused(&mut self, group: &Group<'_, '_, '_>, member: usize, error: ProtocolError) {
        use ProtocolError as E;
        assert!(!matches!(error, E::Internal(_) | E::Given(_) | E::Fault(_)), "member {member}: {error}");
        self.report.refused.push((member, error));
        let Some(byzantine) = self.byzantine.filter(|&byzantine| byzantine != member) else { return };
        let byzantine = group.cluster.members[byzantine].ep;
        if let Some(source) = error.source() {
            // What a relay forwarded, or a TP peer lent.
            let is_handed_on = group.scene.domain.shape.protocol() == Protocol::Hierarchy
                || group.scene.domain.shape.tp_world_size() > 1;
            assert!(source == byzantine || is_handed_on, "{error}: names the wrong rank");
            return;
        }
        // A row has its source by its place; the sum of legal counts can be too much.
        let is_plain = matches!(error, E::Triple { .. } | E::Rows { .. });
        assert!(is_plain || !self.is_apart, "member {member} refuses its own: {error}");
    }
}

impl Attack {
    /// Every row of a source that does not lie is where the counts say, as the reference has it. What the experts return
    /// for all rows.
    fn unharmed_rows(
        &mut self,
        group: &mut Group<'_, '_, '_>,
        member: usize,
        round: usize,
        byzantine: RankId,
    ) -> Returned {
        let shape = group.scene.domain.shape.clone();
        let (number, ep) = (group.cluster.members[member].number, group.cluster.members[member].ep);
        let want = oracle(group, round, |cluster| cluster.dispatch(number));
        let output = |tensor| group.output(member, tensor).to_vec();
        let counts = &output(Tensor::EpRecvCounts)[..ep_recv_counts_bytes(&shape, ep) as usize];
        let seen: Vec<i32> = counts.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect();
        let honest: Vec<_> = received(&shape, ep, |s| inputs_of(group, round, s, RankId(0))).collect();
        let payload = shape.payload_bytes() as usize;
        let triples: Vec<u8> =
            want.assist_info_for_combine.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        let scales: Vec<u8> = want.dynamic_scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let tensors = [
            (Tensor::AssistInfo, &triples, if shape.product() == Product::A3 { 12 } else { 0 }),
            (Tensor::DynamicScales, &scales, if shape.row_format().scale.is_some() { 4 } else { 0 }),
        ];
        let rows = seen.last().map_or(0, |&rows| rows as usize);
        let expand_x =
            group.cluster.rows(member, round, rows, &output(Tensor::RowTable)).expect("rows in the memory");
        let mut y = Vec::new();
        let (mut at, mut honest_at) = (0, 0);
        for (slot, (&end, &honest_end)) in seen.iter().zip(&want.ep_recv_counts).enumerate() {
            let (end, honest_end) = (end as usize, honest_end as usize);
            let source = RankId(slot as u32 % shape.ep_world_size());
            assert!(at <= end, "counts fall at slot {slot}");
            if source == byzantine {
                y.extend((0..(end - at) as u64 * shape.row_bytes()).map(|_| group.scene.tape().dice() as u8));
            } else {
                assert_eq!(end - at, honest_end - honest_at, "rows of rank {source} at slot {slot}");
                let (here, there) = (at * payload..end * payload, honest_at * payload..honest_end * payload);
                assert_eq!(&expand_x[here], &want.expand_x[there], "rows of rank {source}");
                for (tensor, want, len) in tensors {
                    let rows = &group.output(member, tensor)[at * len..end * len];
                    assert_eq!(rows, &want[honest_at * len..honest_end * len], "{tensor:?} of rank {source}");
                }
                self.report.unharmed += end - at;
                for row in &honest[honest_at..honest_end] {
                    let seed = self.seed + 2 * round as u64;
                    let owner = (row.source, RankId(0));
                    y.extend(result_row(&shape, seed, RankId(0), owner, row.pair.token.0, row.pair.k));
                }
            }
            (at, honest_at) = (end, honest_end);
        }
        group.cluster.returned(member, round, y)
    }

    /// Every token without an expert on the Byzantine rank has the reference's sum.
    fn unharmed_sums(&mut self, group: &Group<'_, '_, '_>, member: usize, round: usize, byzantine: RankId) {
        let shape = &group.scene.domain.shape;
        let (number, ep) = (group.cluster.members[member].number, group.cluster.members[member].ep);
        let seed = self.seed + 2 * round as u64;
        let returned = &mut |token, k, row: &mut Vec<u8>| *row = came_back(group, member, seed, token, k);
        let (inputs, len) = (inputs_of(group, round, ep, RankId(0)), shape.row_bytes() as usize);
        let want = oracle(group, round, |cluster| match inputs.add_rms_norm {
            None => cluster.combine(number, returned),
            Some(_) => cluster.combine_add_rms_norm(number, returned).x_out,
        });
        for token in (0..shape.bs(ep)).map(Token) {
            let home = |k| route::home(shape, ep, &inputs, Pair { token, k });
            let pairs = 0..shape.combine_columns();
            if pairs.clone().filter_map(home).all(|home| home.rank != byzantine) {
                let row = token.index() * len..(token.index() + 1) * len;
                let seen = &group.output(member, Tensor::XOut)[row.clone()];
                assert_eq!(seen, &want[row], "x_out of token {token} of rank {ep}");
                self.report.unharmed += 1;
            }
        }
    }
}

/// What combine is given where outputs are rubbish: the outputs as they are, and as many rows as they tell of.
fn rubbish(group: &mut Group<'_, '_, '_>, member: usize, round: usize) -> Returned {
    let shape = group.scene.domain.shape.clone();
    let ep = group.cluster.members[member].ep;
    let counts = &group.output(member, Tensor::EpRecvCounts)[..ep_recv_counts_bytes(&shape, ep) as usize];
    let most = shape.rows_max(ep) * u64::from(shape.tp_world_size());
    let rows: u64 = counts
        .chunks(counts.len().max(1) / shape.tp_world_size() as usize)
        .filter_map(|half| half.last_chunk())
        .map(|&last| u64::from(i32::from_le_bytes(last).unsigned_abs()).min(most))
        .sum();
    let mut tape = group.scene.tape();
    let short = if tape.one_in(8) { tape.below(40) as u64 } else { 0 };
    let len = (rows * shape.row_bytes()).saturating_sub(short);
    let y = (0..len).map(|_| tape.dice() as u8).collect();
    drop(tape);
    let mut returned = group.cluster.returned(member, round, y);
    let mut tape = group.scene.tape();
    if tape.one_in(4) {
        let Returned { assist_info, ep_recv_counts, expand_idx, expand_scales, sent_rows, row_table, .. } =
            &mut returned;
        for bytes in [assist_info, ep_recv_counts, expand_idx, expand_scales, sent_rows, row_table] {
            let (i, byte) = (tape.below(bytes.len().max(1)), tape.byte());
            if let Some(place) = bytes.get_mut(i) {
                *place = byte;
            }
        }
    }
    returned
}

/// Some word of a member's memory becomes something else: as a rule one that has just come, a little.
fn drop_falls(group: &mut Group<'_, '_, '_>) {
    let recent = group.cluster.memory.chooser.recent.clone();
    if !recent.is_empty() && group.scene.tape().byte() & 1 == 0 {
        let mut tape = group.scene.tape();
        let (number, at, len) = recent[tape.below(recent.len())];
        let words = len / 4;
        // After the row of a record stand scale and triple.
        let last = if tape.byte() & 1 == 0 { words } else { words.min(4) };
        let at = Place { offset: at.offset + 4 * (words - last + tape.below(last)) as u64, ..at };
        let change = [1, 2, 0xFFFF_FFFF, 0x100][tape.below(4)];
        drop(tape);
        let old: [u8; 4] = group.bytes(number, at, 4).try_into().unwrap_or_default();
        if last > 0 {
            let area = group.scene.guard(number).find(at).map(|spot| spot.map.named);
            group.scene.epochs_known &= area != Some(Named::Epochs);
            let new = u32::from_le_bytes(old).wrapping_add(change).to_le_bytes();
            group.cluster.memory.poke(RankId(number as u32), at, &new);
        }
        return;
    }
    let member = group.scene.tape().below(group.cluster.members.len());
    let number = group.cluster.members[member].number.index();
    let areas = &group.scene.guard(number).areas;
    let areas: Vec<_> = areas.iter().filter(|area| area.count > 0).copied().collect();
    let shape = group.scene.domain.shape.clone();
    let mut tape = group.scene.tape();
    let area = areas[tape.below(areas.len())];
    let slot = tape.below(area.count.min(256) as usize) as u64;
    let offset = match area.named {
        Named::WindowsIn => match tape.below(3) {
            0 => tape.below(13) as u64 * 8,
            _ => (0..tape.below(12)).fold(0, |at, _| next_flag_place(&shape, at + 1)),
        },
        Named::DispatchRecords | Named::TpRecords => {
            let fields: Vec<_> = record_fields(&shape).collect();
            fields[tape.below(fields.len())].offset + [0, 4, 8][tape.below(3)]
        }
        // Streams end with their flag, before that lies their first record.
        Named::StreamsIn | Named::StreamsOut => {
            area.slot - 8 - 8 * tape.below(area.slot.min(256) as usize / 8) as u64
        }
        // Fields of hierarchies and infos are further behind.
        Named::RelayRecords | Named::NearSlots | Named::Infos => {
            tape.below(area.slot.min(256) as usize) as u64 & !3
        }
        _ => tape.below(area.slot.min(32) as usize) as u64 & !7,
    };
    let word = word(&mut tape);
    drop(tape);
    let fields = [Named::DispatchRecords, Named::TpRecords, Named::Infos];
    let len = if fields.contains(&area.named) || !offset.is_multiple_of(8) { 4 } else { 8 };
    group.scene.epochs_known &= area.named != Named::Epochs;
    let at = Place { offset: area.start.offset + slot * area.stride + offset, ..area.start };
    if offset + len as u64 <= area.stride {
        group.cluster.memory.poke(RankId(number as u32), at, &word.to_le_bytes()[..len]);
    }
}

/// A word that is wrong in one of many ways, or right: else no machine would get far.
fn word(tape: &mut Tape<'_>) -> u64 {
    let small = tape.byte();
    match tape.below(15) {
        0 => tape.word(),
        1 => 0,
        2 => u64::from(small) & 3,
        3 => flag::status(u32::from(small) & 7),
        4 => flag::status(tape.word() as u32),
        5 => flag::ARRIVED,
        6 => u64::from(small & 3) << 62 | u64::from(small >> 2 & 7) << 31 | u64::from(small >> 5),
        7 => u64::from(small & 3) << 62 | tape.word() >> 2,
        8 => FLAG.into(),
        9 => u64::from(small & 7) << 32 | u64::from(small >> 3 & 7),
        10 => u64::MAX >> (small & 63),
        // Epochs, with and without a number; a flag that is nearly one.
        11 => u64::from(small & 15) << 16 | u64::from(small >> 4),
        12 => u64::from(small & 15),
        13 => flag::ARRIVED ^ 1 << (small & 63),
        _ => u64::from(u32::MAX) + 1 - u64::from(small),
    }
}
