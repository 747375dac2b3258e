//! Experts that read rows in the window, and leave results there for other ranks: what they do, and who reads it.

use super::super::protocol::NOTHING;
use super::super::violation::Violation;
use super::memory::{Effect, Value};
use super::view::View;
use veriep_core::fabric::order::Kind;
use veriep_core::fabric::{Fault, Progress, Wait};
use veriep_core::layout::data::partition_start;
use veriep_core::layout::state::Partition;
use veriep_core::place::Place;
use veriep_core::protocol::Operator;
use veriep_core::units::RankId;

impl View<'_, '_> {
    /// The experts of the batch that this rank combines next: they read each row where it lies, for the last time, and
    /// leave their results, each at `place` of where owners look for it, if they do so. One move, as late as may be; or if they
    /// overwrite, two for each row.
    pub(super) fn experts(&mut self, moves: u32, place: impl Fn(Place) -> Place) -> Result<Progress, Fault> {
        if self.scene.setup.model.choices.receive.overwrites() {
            return self.overwrite(moves);
        }
        self.step.touch(Place::window(0))?;
        let Some(all) = self.step.at.round.expected.clone() else { return Ok(Progress::Done) };
        let (own, shape) = (&all[self.step.at.rank.index()], self.scene.setup.shape);
        let rows = own.expand_x.chunks_exact(shape.payload_bytes() as usize);
        for (&at, expected) in own.rows_at.iter().zip(rows) {
            // Of the dispatch of the same number.
            let at = if self.scene.setup.model.choices.receive.is_direct() {
                at
            } else {
                self.in_partition(at, partition_start(shape, Partition::P1), Operator::Dispatch)
            };
            self.take_row(at, expected).into_iter().for_each(|number| self.read(number));
        }
        let results = own.y.chunks_exact(shape.row_bytes() as usize);
        for (&at, result) in own.results_at.iter().zip(results) {
            let at = place(at);
            let number = self.scene.places.number(&(self.step.at.rank, at));
            let row = self.scene.rows.number(&result.to_vec());
            let memory = &mut **self.memory.get_mut();
            let unread = memory.has_row(number);
            memory.set_row(number, Some(row));
            if unread {
                self.step.found.blame(Violation::Overwritten { rank: self.step.at.rank, at });
            }
        }
        Ok(Progress::Done)
    }

    /// The number of a row that an expert reads, which must be this one.
    fn take_row(&self, at: Place, expected: &[u8]) -> Option<u32> {
        let rank = self.step.at.rank;
        let row = self.row_at(rank, at, expected.len() as u64);
        let wrong = match row {
            Some((_, seen)) if seen == expected => None,
            None if self.is_on_its_way(rank, at) => Some(Violation::NotLanded { rank, at }),
            _ => Some(Violation::Diverged { rank, at }),
        };
        wrong.into_iter().for_each(|wrong| self.step.found.blame(wrong));
        row.map(|(number, _)| number)
    }

    /// The row at which experts that overwrite are after so many moves: where it lies, what it holds and what becomes of it.
    pub(super) fn row_of_move(&self, moves: u32) -> Option<(Place, Vec<u8>, Vec<u8>)> {
        let own = &self.step.at.expected()?[self.step.at.rank.index()];
        let (len, i) = (self.scene.setup.shape.row_bytes() as usize, moves as usize / 2);
        let of = |rows: &[u8]| rows.chunks_exact(len).nth(i).map(<[u8]>::to_vec);
        Some((*own.rows_at.get(i)?, of(&own.expand_x)?, of(&own.y)?))
    }

    /// An expert reads a row, or its result for the row sets out for the same place. After the last one combine may begin when
    /// all results have landed.
    fn overwrite(&mut self, moves: u32) -> Result<Progress, Fault> {
        if self.step.at.expected().is_none() {
            return Ok(Progress::Done);
        }
        let rank = self.step.at.rank;
        let Some((at, row, result)) = self.row_of_move(moves) else {
            let me = (rank, self.step.at.core);
            let is_result = |effect: &Effect| effect.issued.from == me && effect.issued.kind == Kind::Put;
            let ready = self.have_landed(is_result)?;
            return Ok(if ready { Progress::Done } else { Progress::Pending(Wait::QUIET) });
        };
        self.step.touch(at)?;
        if moves % 2 == 1 {
            let result = Value::Row(self.scene.rows.number(&result));
            self.issue(Kind::Put, rank, at, result);
        } else if let Some(number) = self.take_row(at, &row) {
            self.read(number);
        }
        Ok(Progress::Stepped)
    }

    /// A row that its reader takes from the window of `rank`.
    pub(super) fn row_at_peer(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.step.touch(at)?;
        let Some((number, bytes)) = self.row_at(rank, at, len) else {
            if self.is_on_its_way(rank, at) {
                self.step.found.blame(Violation::NotLanded { rank, at });
            }
            // Nothing there: what comes of it differs from the reference's.
            return Ok(&NOTHING[..len as usize]);
        };
        self.read(number);
        Ok(bytes)
    }
}
