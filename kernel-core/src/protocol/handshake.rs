//! The parameters that all ranks of a group, and all layers that share one, must have in common. Ranks compare them when the
//! group is made, before the first operator: a rank with other parameters would write to places where no rank expects it.

use super::Choices;
use crate::layout::affine::Named;
use crate::layout::map::{self, Area};
use crate::shape::{Shape, hash};
use crate::units::RankId;

/// The number of the layout and of what its words mean. Builds that would not understand each other have different ones: a
/// change of any place, or of who writes what there, counts it up.
const LAYOUT: u64 = 4;

/// Declares the names of the parameters, and the function that tells their numbers.
macro_rules! parameters {
    ($shape:ident, $choices:ident; $($name:literal: $number:expr,)*) => {
        const PARAMETERS: [&str; [$($name),*].len()] = [$($name),*];

        fn parameters($shape: &Shape, $choices: Choices) -> [u64; PARAMETERS.len()] {
            [$($number),*]
        }
    };
}

parameters! {
    shape, choices;
    "layout": LAYOUT,
    // Names, which no shape has.
    "group_ep": 0,
    "group_tp": 0,
    "comm_alg": shape.protocol() as u64,
    "dtype": shape.dtype() as u64,
    "ep_world_size": shape.ep_world_size().into(),
    "server_ranks": shape.server_ranks().into(),
    "tp_world_size": shape.tp_world_size().into(),
    "moe_expert_num": shape.moe_expert_num().into(),
    "shared_expert_num": shape.shared_expert_num().into(),
    "shared_expert_rank_num": shape.shared_expert_rank_num().into(),
    "zero_expert_num": shape.zero_expert_num().into(),
    "copy_expert_num": shape.copy_expert_num().into(),
    "const_expert_num": shape.const_expert_num().into(),
    "k": shape.k().into(),
    "h": shape.h().into(),
    "bs": hash((0..shape.ep_world_size()).map(|rank| shape.agreed_bs(RankId(rank)).into())),
    "quant_mode": shape.row_format().kind().into(),
    "comm_quant_mode": shape.result_format().kind().into(),
    "expert_token_nums_type": shape.token_nums() as u64,
    "hccl_buffsize_mb": shape.hccl_buffsize_mb().into(),
    "aiv_num": shape.aiv_num().into(),
    "norm_eps": shape.norm_eps().to_bits().into(),
    "port_offset": shape.port_offset(),
    "receive": u64::from(choices.receive.areas()) + 256 * u64::from(choices.receive.keeps_rows()),
    "experts": choices.receive.overwrites().into(),
    "flags": choices.flags as u64,
    "stage": choices.stage as u64,
    "checked": choices.checked.into(),
    "slots": choices.slots.bytes(),
    // Whatever else makes a shape.
    "elastic_info": shape.agreed_fingerprint(),
}

/// Areas in the order of their numbers, which stays. The list is deliberately not the one of the [table](crate::layout::table):
/// ranks of two builds compare these numbers, so an area that is added or moved there must not give the others new ones.
const AREAS: [Named; 34] = [
    Named::DispatchStatus,
    Named::CombineStatus,
    Named::DispatchSelectors,
    Named::CombineSelectors,
    Named::CoreWords,
    Named::CombineRows,
    Named::DispatchRecords,
    Named::TpDispatchSlots,
    Named::TpCombineSlots,
    Named::TpDispatchSelectors,
    Named::TpCombineSelectors,
    Named::TpRecords,
    Named::TpResults,
    Named::Tasks,
    Named::Doorbell,
    Named::BufferChosen,
    Named::WindowsIn,
    Named::WindowsOut,
    Named::Epochs,
    Named::Entered,
    Named::RowsDone,
    Named::EndFlags,
    Named::Counts,
    Named::RelayRecords,
    Named::NearSlots,
    Named::DirectRecords,
    Named::ResultsReady,
    Named::CoreSums,
    Named::Rows,
    Named::OverwrittenRows,
    Named::Infos,
    Named::Results,
    Named::StreamsIn,
    Named::StreamsOut,
];

/// A number for each parameter that all ranks must have alike, then one for each area of their memory: where it is on the
/// first and on the last rank. The same on every processor, so that ranks can send them to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Fingerprints(pub [u64; PARAMETERS.len() + AREAS.len()]);

impl Fingerprints {
    /// Those of a rank that was given this shape and makes these choices, in groups without names.
    #[must_use]
    pub fn new(shape: &Shape, choices: Choices) -> Self {
        let mut words = [0; PARAMETERS.len() + AREAS.len()];
        words.iter_mut().zip(parameters(shape, choices)).for_each(|(word, parameter)| *word = parameter);
        let mut add = |area: Area| {
            let words = words.iter_mut().skip(PARAMETERS.len());
            if let Some((_, word)) = AREAS.iter().zip(words).find(|(named, _)| **named == area.named) {
                *word = hash([*word, area.start.offset, area.count, area.stride, area.slot].into_iter());
            }
        };
        for rank in [0, shape.ep_world_size().saturating_sub(1)] {
            map::areas(shape, choices.mode(), RankId(rank)).for_each(&mut add);
        }
        Self(words)
    }

    /// With the names of the two groups, in UTF-8 (V2 reference: `groupEp`, `groupTp`); an empty name is none.
    #[must_use]
    pub fn named(self, group_ep: &[u8], group_tp: &[u8]) -> Self {
        let number =
            |name: &[u8]| if name.is_empty() { 0 } else { hash(name.iter().map(|byte| (*byte).into())) };
        let mut words = self.0;
        for (word, name) in words.iter_mut().skip(1).zip([group_ep, group_tp]) {
            *word = number(name);
        }
        Self(words)
    }

    /// The first parameter, or else the first area, in which another rank differs.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<&'static str> {
        let names = PARAMETERS.into_iter().chain(AREAS.map(Named::name));
        names.zip(self.0.iter().zip(&other.0)).find(|(_, (own, others))| own != others).map(|(name, _)| name)
    }

    /// One number for all of them.
    #[must_use]
    pub fn whole(&self) -> u64 {
        hash(self.0.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::map;
    use crate::layout::state::Slots;
    use crate::plan::order::SendOrder;
    use crate::protocol::{Flags, Receive, Stage};
    use crate::shape::{BatchSizes, Config, Dtype, Elastic, Limits, Protocol};
    use crate::testing::golden;
    use alloc::collections::BTreeSet;
    use alloc::string::String;
    use alloc::vec::Vec;
    use std::path::Path;
    use std::{env, format, fs};

    const COPY: Choices = Choices {
        order: SendOrder::Plain,
        flags: Flags::Joint,
        receive: Receive::Copy,
        stage: Stage::Three,
        checked: false,
        slots: Slots::Shipped,
    };

    fn a3() -> Config<'static> {
        Config { ep_world_size: 6, moe_expert_num: 60, h: 1024, hccl_buffsize_mb: 600, ..Config::default() }
    }

    fn of(config: &Config<'_>, choices: Choices) -> Fingerprints {
        Fingerprints::new(&Shape::new(config, Limits::None).unwrap(), choices)
    }

    fn shared(experts: i64, ranks: i64) -> Config<'static> {
        Config { shared_expert_num: experts, shared_expert_rank_num: ranks, ..a3() }
    }

    /// The second of each pair is what one rank was given in place of the first.
    #[test]
    fn a_rank_that_was_given_another_parameter_is_told_which() {
        let uneven = |list| Config { bs: BatchSizes::PerRank(list), global_bs: 96, ..a3() };
        let tp = Config { moe_expert_num: 6, k: 6, ..a3() };
        let pairs = [
            ("comm_alg", a3(), Config { comm_alg: Protocol::FullmeshV2, ..a3() }),
            ("dtype", a3(), Config { dtype: Dtype::F16, ..a3() }),
            ("ep_world_size", a3(), Config { ep_world_size: 5, ..a3() }),
            ("server_ranks", a3(), Config { server_ranks: 2, ..a3() }),
            ("tp_world_size", tp, Config { tp_world_size: 2, ..tp }),
            ("moe_expert_num", a3(), Config { moe_expert_num: 66, ..a3() }),
            ("shared_expert_num", shared(1, 2), shared(2, 2)),
            ("shared_expert_rank_num", shared(1, 1), shared(1, 2)),
            ("zero_expert_num", a3(), Config { zero_expert_num: 1, ..a3() }),
            ("copy_expert_num", a3(), Config { copy_expert_num: 1, ..a3() }),
            ("const_expert_num", a3(), Config { const_expert_num: 1, ..a3() }),
            ("k", a3(), Config { k: 7, ..a3() }),
            ("h", a3(), Config { h: 1040, ..a3() }),
            ("bs", a3(), Config { bs: BatchSizes::Uniform(15), ..a3() }),
            ("bs", uneven(&[16, 1, 2, 3, 4, 5]), uneven(&[16, 2, 1, 3, 4, 5])),
            ("quant_mode", a3(), Config { quant_mode: 2, ..a3() }),
            ("comm_quant_mode", a3(), Config { comm_quant_mode: 2, ..a3() }),
            ("expert_token_nums_type", a3(), Config { expert_token_nums_type: 0, ..a3() }),
            ("hccl_buffsize_mb", a3(), Config { hccl_buffsize_mb: 601, ..a3() }),
            ("aiv_num", a3(), Config { aiv_num: 9, ..a3() }),
            ("norm_eps", a3(), Config { norm_eps: 1e-5, ..a3() }),
            ("port_offset", a3(), Config { port_offset: 512, ..a3() }),
        ];
        let mut told = BTreeSet::new();
        for (name, own, other) in pairs {
            let (own, other) = (of(&own, COPY), of(&other, COPY));
            assert_eq!(
                (own.first_difference(&other), other.first_difference(&own)),
                (Some(name), Some(name))
            );
            assert_eq!(own.first_difference(&own), None);
            assert_ne!(own.whole(), other.whole());
            told.insert(name);
        }
        let direct = |areas| Choices { receive: Receive::Direct { areas }, ..COPY };
        let choices = [
            ("receive", COPY, Choices { receive: Receive::InPlace, ..COPY }),
            ("receive", direct(1), direct(2)),
            ("experts", direct(1), Choices { receive: Receive::Overwrite { areas: 1 }, ..COPY }),
            ("flags", COPY, Choices { flags: Flags::Separate, ..COPY }),
            ("stage", COPY, Choices { stage: Stage::Two, ..COPY }),
            ("checked", COPY, Choices { checked: true, ..COPY }),
            ("slots", COPY, Choices { slots: Slots::Lines, ..COPY }),
        ];
        for (name, own, other) in choices {
            assert_eq!(of(&a3(), own).first_difference(&of(&a3(), other)), Some(name));
            told.insert(name);
        }
        let named = |ep: &str, tp: &str| of(&a3(), COPY).named(ep.as_bytes(), tp.as_bytes());
        for (name, own, other) in [
            ("group_ep", named("ep", "tp"), named("pe", "tp")),
            ("group_ep", named("", ""), named("ep", "")),
            ("group_tp", named("ep", "a"), named("ep", "b")),
        ] {
            assert_eq!(own.first_difference(&other), Some(name));
            told.insert(name);
        }
        // One is told of by whole survivors, one by other builds.
        told.extend(["elastic_info", "layout"]);
        assert!(PARAMETERS.iter().all(|name| told.contains(name)), "{told:?}");
    }

    #[test]
    fn survivors_of_other_elastic_domains_differ() {
        let whole = Shape::new(&a3(), Limits::None).unwrap();
        let info = [1, 5, 0, 60, 0, 1, 2, 3, 4, -1, 0, 1, 2, 3, 4, -1];
        let left = Elastic::check(&whole, &info, &mut |violation| panic!("{violation}")).unwrap();
        let left = Fingerprints::new(&whole.survivors(&left), COPY);
        let plain = of(&Config { ep_world_size: 5, ..a3() }, COPY);
        assert_eq!(left.first_difference(&plain), Some("elastic_info"));
    }

    /// Shapes of every protocol, each in all its modes. A change of a number here changes what ranks of two builds take
    /// for granted of each other.
    fn pinned() -> Vec<String> {
        let a2 = |comm_alg| Config { comm_alg, ep_world_size: 16, moe_expert_num: 32, k: 4, ..a3() };
        let int8 = |config| Config { quant_mode: 2, ..config };
        let v2 = Config { comm_alg: Protocol::FullmeshV2, ..a3() };
        let whole =
            Config { ep_world_size: 288, moe_expert_num: 288, hccl_buffsize_mb: 9000, h: 7168, ..a3() };
        let configs = [
            ("a3", a3()),
            ("a3 int8", Config { comm_quant_mode: 2, ..int8(a3()) }),
            ("a3 f16", Config { dtype: Dtype::F16, ..a3() }),
            ("a3 shared", shared(2, 2)),
            ("a3 special", Config { zero_expert_num: 1, copy_expert_num: 2, const_expert_num: 3, ..a3() }),
            ("a3 port", Config { port_offset: 512, ..a3() }),
            ("a3 uneven", Config { bs: BatchSizes::PerRank(&[16, 1, 2, 3, 4, 5]), global_bs: 96, ..a3() }),
            ("a3 288", whole),
            ("a3 tp", Config { tp_world_size: 2, moe_expert_num: 6, k: 2, ..a3() }),
            ("v2", v2),
            ("v2 int8", int8(v2)),
            ("a2", a2(Protocol::Fullmesh)),
            ("a2 int8", int8(a2(Protocol::Fullmesh))),
            ("hierarchy", a2(Protocol::Hierarchy)),
            ("hierarchy int8", int8(a2(Protocol::Hierarchy))),
        ];
        let mut lines = Vec::new();
        for (name, config) in configs {
            let shape = Shape::new(&config, Limits::None).unwrap();
            for choices in Choices::all(&shape).filter(|choices| choices.order == SendOrder::default()) {
                let Choices { flags, receive, stage, slots, .. } = choices;
                let whole = Fingerprints::new(&shape, choices).whole();
                lines.push(format!("{name}, {flags:?}, {receive:?}, {stage:?}, {slots:?}: {whole:016x}"));
            }
        }
        lines
    }

    #[test]
    fn fingerprints_change_with_the_number_of_the_layout_alone() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fingerprints.txt");
        let golden = fs::read_to_string(path).unwrap_or_default();
        let (number, old) = golden.split_once('\n').unwrap_or_default();
        let own = format!("layout {LAYOUT}");
        let pinned = pinned();
        assert!(pinned.len() >= 50, "{}", pinned.len());
        if let Some(line) = pinned.iter().find(|line| !old.lines().any(|old| old == *line)) {
            assert_ne!(number, own, "{line}: is another one; count up LAYOUT, and say why in the commit");
        }
        golden::check("fingerprints.txt", &format!("{own}\n{}\n", pinned.join("\n")));
    }

    #[test]
    fn every_area_has_a_number_of_its_own() {
        let a2 = |comm_alg| Config { comm_alg, ep_world_size: 16, moe_expert_num: 16, k: 2, ..a3() };
        let tp = Config { tp_world_size: 2, moe_expert_num: 6, k: 2, ..a3() };
        let streams = Choices { stage: Stage::Two, ..COPY };
        let landings = Choices { receive: Receive::Direct { areas: 2 }, ..COPY };
        let mut told = BTreeSet::new();
        for (config, choices) in [
            (a2(Protocol::Fullmesh), COPY),
            (a2(Protocol::Hierarchy), COPY),
            (a2(Protocol::Hierarchy), streams),
            (tp, COPY),
            (a3(), landings),
            (a3(), Choices { receive: Receive::Overwrite { areas: 2 }, ..COPY }),
        ] {
            let shape = Shape::new(&config, Limits::None).unwrap();
            let all: Vec<Area> = map::areas(&shape, choices.mode(), RankId(0)).collect();
            let names: BTreeSet<_> = all.iter().map(|area| area.named.name()).collect();
            let own = Fingerprints::new(&shape, choices);
            for (word, name) in (PARAMETERS.len()..).zip(AREAS.map(Named::name)) {
                assert_eq!(own.0[word] != 0, names.contains(name), "{name}");
                let mut other = own;
                other.0[word] ^= 1;
                assert_eq!(own.first_difference(&other), Some(name));
            }
            assert!(names.iter().all(|name| AREAS.map(Named::name).contains(name)), "{names:?}");
            told.extend(names);
        }
        assert_eq!(told.len(), AREAS.len());
    }
}
