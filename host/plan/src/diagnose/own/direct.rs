//! A3 with direct placement. Words of a dispatch stay until the next one, those of a combine until its cores have met.

use super::super::evidence::Seen;
use super::{LastOperator, Taken, lacking};
use std::collections::BTreeSet;
use veriep_core::fabric::{Flag, Wait};
use veriep_core::layout::affine::Named;
use veriep_core::layout::field::FieldName;
use veriep_core::plan::split;
use veriep_core::units::{CoreId, RankId};

/// The words of a source in dispatch, by the order in which a rank sends them: grants when it has all counts, the last one when
/// it has the grants for its rows.
const WORDS: [(FieldName, Flag); 3] = [
    (FieldName::CountsTold, Flag::Counts),
    (FieldName::GrantsTold, Flag::Grant),
    (FieldName::RowsLanded, Flag::Tokens),
];

pub(super) fn dispatch(mut last: LastOperator<'_>) -> Seen {
    let shape = last.group.shape;
    for (level, (field, flag)) in (0..).zip(WORDS) {
        for core in 0..shape.aiv_num() {
            for source in split::ranks(shape, CoreId(core)) {
                let word = last.word((Named::DirectRecords, Some(field)), [source, 0]);
                let wait = Wait::new(flag, RankId(source), &[]);
                if last.has_come(word, wait) {
                    last.seen.told.insert(source);
                } else if word.is_some() {
                    last.note_wait(core, level, wait);
                }
            }
        }
    }
    if last.seen.waits.is_empty() {
        last.seen.phase = Some("has all rows");
    }
    last.seen
}

pub(super) fn combine(mut last: LastOperator<'_>) -> Seen {
    let shape = last.group.shape;
    let shares: Vec<_> = (0..shape.aiv_num()).map(|core| split::ranks(shape, CoreId(core))).collect();
    let wait = |source: u32| Wait::new(Flag::Results, RankId(source), &[]);
    let is_there = |source: &u32| {
        let word = last.word((Named::ResultsReady, Some(FieldName::Word)), [*source, 0]);
        word.is_none() || last.has_come(word, wait(*source))
    };
    let there: BTreeSet<_> = (0..shape.ep_world_size()).filter(is_there).collect();
    let has = |source: u32| there.contains(&source);
    // A core that clears words begins with the first one of its share, and none clears any before all have summed.
    let none_cleared = shares.iter().any(|share| !share.is_empty() && has(share.start));
    let taken = if none_cleared { Taken::None } else { Taken::Perhaps };
    let (mut waits, mut doubts) = (Vec::new(), Vec::new());
    for (core, share) in (0..).zip(shares) {
        let (sure, doubt) = lacking(share, taken, has);
        let lack = |source: u32| last.lack(core, 0, wait(source));
        waits.extend(sure.into_iter().map(lack));
        doubts.extend(doubt.into_iter().map(lack));
    }
    Seen { waits, doubts, ..last.seen }
}
