//! A3 with direct placement. Words of a dispatch stay until the next one, those of a combine until its cores have met.

use super::super::owes::Seen;
use super::{Group, Taken, lacking, partition, word};
use veriep_core::fabric::{Flag, Wait};
use veriep_core::layout::affine::Named;
use veriep_core::layout::state::Operator;
use veriep_core::plan::split;
use veriep_core::units::{CoreId, RankId};

/// The words of a source in dispatch, by the order in which a rank sends them: grants when it has all counts, the last one when
/// it has the grants for its rows.
const WORDS: [(&str, Flag); 3] =
    [("counts told", Flag::Counts), ("grants told", Flag::Grant), ("rows landed", Flag::Tokens)];

pub(super) fn dispatch(group: &Group<'_>, member: u32, number: u64, mut seen: Seen) -> Seen {
    let shape = group.shape;
    let at = |source| [partition(number).index(), source, 0, 0, 0];
    for (level, (field, flag)) in (0..).zip(WORDS) {
        for core in 0..shape.aiv_num() {
            for source in split::ranks(shape, CoreId(core)) {
                if word(group, member, (Named::DirectRecords, field), at(source)) == Some(0) {
                    let wait = Wait::new(flag, RankId(source), &[]);
                    seen.waits.push(group.lack((member, core), (Operator::Dispatch, number), level, wait));
                }
            }
        }
    }
    if seen.waits.is_empty() {
        seen.phase = Some("has all rows");
    }
    seen
}

pub(super) fn combine(group: &Group<'_>, member: u32, number: u64, mut seen: Seen) -> Seen {
    let shape = group.shape;
    let has = |source: u32| {
        let at = [partition(number).index(), source, 0, 0, 0];
        word(group, member, (Named::ResultsReady, "word"), at) != Some(0)
    };
    let shares: Vec<_> = (0..shape.aiv_num()).map(|core| split::ranks(shape, CoreId(core))).collect();
    // A core that clears words begins with the first one of its share, and none clears any before all have summed.
    let none_cleared = shares.iter().any(|share| !share.is_empty() && has(share.start));
    let taken = if none_cleared { Taken::None } else { Taken::Perhaps };
    for (core, share) in (0..).zip(shares) {
        let (sure, doubt) = lacking(share, taken, has);
        let lack = |source: u32| {
            let wait = Wait::new(Flag::Results, RankId(source), &[]);
            group.lack((member, core), (Operator::Combine, number), 0, wait)
        };
        seen.waits.extend(sure.into_iter().map(lack));
        seen.doubts.extend(doubt.into_iter().map(lack));
    }
    seen
}
