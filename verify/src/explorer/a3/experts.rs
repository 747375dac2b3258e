//! Experts that read rows in the window, and leave results there for other ranks: what they do, and who reads it.

use super::super::model::Twin;
use super::super::protocol::{self, NOTHING};
use super::super::violation::Violation;
use super::memory::{Effect, Value};
use super::view::View;
use veriep_core::fabric::order::Kind;
use veriep_core::fabric::{Fault, Progress, Wait};
use veriep_core::layout::data::partition_start;
use veriep_core::layout::direct::{self, Area};
use veriep_core::layout::state::Partition;
use veriep_core::place::Place;
use veriep_core::protocol::Operator;
use veriep_core::units::RankId;

impl protocol::View for View<'_, '_> {
    /// The experts of the batch that this rank combines next: they read each row where it lies, for the last time, and
    /// leave their results if owners read them there. One move, as late as may be; or if they overwrite, two for each row.
    fn experts(&mut self, moves: u32) -> Result<Progress, Fault> {
        if self.scene.setup.model.choices.receive.overwrites() {
            return self.overwrite(moves);
        }
        self.step.touch(Place::window(0))?;
        let Some(all) = self.step.round.expected.clone() else { return Ok(Progress::Done) };
        let (own, shape) = (&all[self.step.rank.index()], self.scene.setup.shape);
        let rows = own.expand_x.chunks_exact(shape.payload_bytes() as usize);
        for (&at, expected) in own.rows_at.iter().zip(rows) {
            // Of the dispatch of the same number.
            let at = if self.scene.setup.model.choices.receive.is_direct() {
                at
            } else {
                self.in_partition(at, partition_start(shape, Partition::P1), Operator::Dispatch)
            };
            self.take(at, expected).into_iter().for_each(|number| self.read(number));
        }
        let results = own.y.chunks_exact(shape.row_bytes() as usize);
        for (&at, result) in own.results_at.iter().zip(results) {
            let at = self.result_place(self.step.rank, at);
            let (place, row) =
                (self.scene.places.number(&(self.step.rank, at)), self.scene.rows.number(&result.to_vec()));
            let memory = &mut **self.memory.get_mut();
            let unread = memory.has_row(place);
            memory.set_row(place, Some(row));
            if unread {
                self.step.blame(Violation::Overwritten { rank: self.step.rank, at });
            }
        }
        Ok(Progress::Done)
    }
}

impl View<'_, '_> {
    /// The number of a row that an expert reads, which must be this one.
    fn take(&self, at: Place, expected: &[u8]) -> Option<u32> {
        let rank = self.step.rank;
        let row = self.row_at(rank, at, expected.len() as u64);
        let wrong = match row {
            Some((_, seen)) if seen == expected => None,
            None if self.is_on_its_way(rank, at) => Some(Violation::NotLanded { rank, at }),
            _ => Some(Violation::Diverged { rank, at }),
        };
        wrong.into_iter().for_each(|wrong| self.step.blame(wrong));
        row.map(|(number, _)| number)
    }

    /// An expert reads a row, or its result for the row sets out for the same place. Behind the last one combine may begin when
    /// all results have landed.
    fn overwrite(&mut self, moves: u32) -> Result<Progress, Fault> {
        let (rank, shape) = (self.step.rank, self.scene.setup.shape);
        let Some(all) = self.step.round.expected.clone() else { return Ok(Progress::Done) };
        let (own, (i, second)) = (&all[rank.index()], (moves as usize / 2, moves % 2 == 1));
        let of = |rows: &[u8]| rows.chunks_exact(shape.row_bytes() as usize).nth(i).map(<[u8]>::to_vec);
        let (Some(&at), Some(row), Some(result)) = (own.rows_at.get(i), of(&own.expand_x), of(&own.y)) else {
            let me = (rank, self.step.core);
            let is_result = |effect: &Effect| effect.issued.from == me && effect.issued.kind == Kind::Put;
            let ready = self.twin() == Twin::ReadyAheadOfResults || self.have_landed(is_result)?;
            return Ok(if ready { Progress::Done } else { Progress::Pending(Wait::QUIET) });
        };
        self.step.touch(at)?;
        if second != (self.twin() == Twin::ResultAheadOfRead) {
            let result = Value::Row(self.scene.rows.number(&result));
            self.issue(Kind::Put, rank, at, result);
        } else if let Some(number) = self.take(at, &row) {
            self.read(number);
        }
        Ok(Progress::Stepped)
    }

    /// Where results lie that machines look for at `at`.
    fn result_place(&self, rank: RankId, at: Place) -> Place {
        let area = |number| {
            let area = Area { number, overwritten: false };
            direct::Parts::of(self.scene.setup.shape, rank, area).result(0).offset
        };
        let is_second = self.twin() == Twin::OneResultArea && at.offset >= area(1);
        Place { offset: if is_second { at.offset - area(1) + area(0) } else { at.offset }, ..at }
    }

    /// A row that its reader takes from the window of `rank`.
    pub(super) fn row_at_peer(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.step.touch(at)?;
        let at = self.result_place(rank, at);
        let Some((number, bytes)) = self.row_at(rank, at, len) else {
            if self.is_on_its_way(rank, at) {
                self.step.blame(Violation::NotLanded { rank, at });
            }
            // Nothing there: what comes of it differs from the oracle's.
            return Ok(&NOTHING[..len as usize]);
        };
        self.read(number);
        Ok(bytes)
    }
}
