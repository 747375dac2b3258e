//! Experts that read rows in the window, and leave results there for other ranks: what they do, and who reads it.

use super::fabric::{NOTHING, View};
use super::model::{Kind, Twin};
use super::violation::Violation;
use kernel_core::fabric::Fault;
use kernel_core::layout::data::partition_start;
use kernel_core::layout::landing::{self, Area};
use kernel_core::layout::state::Partition;
use kernel_core::place::Place;
use kernel_core::protocol::Receive;
use kernel_core::units::RankId;

impl View<'_> {
    /// The experts of the batch that this rank combines next: they read each row where it lies, for the last time, and
    /// leave their results if owners read them there. One move, as late as may be.
    pub(super) fn experts(&mut self) -> Result<(), Fault> {
        self.touch(Place::window(0))?;
        let Some(all) = self.expected.clone() else { return Ok(()) };
        let (own, shape) = (&all[self.rank.index()], self.setup.shape);
        let rows = own.expand_x.chunks_exact(shape.payload_bytes() as usize);
        for (&at, expected) in own.rows_at.iter().zip(rows) {
            // Of the dispatch of the same number.
            let at = match self.setup.model.receive {
                Receive::Direct { .. } => at,
                _ => self.in_partition(at, partition_start(shape, Partition::P1), Kind::Dispatch),
            };
            match self.row_at(self.rank, at, expected.len() as u64) {
                Some((number, seen)) => {
                    if seen != expected {
                        self.blame(Violation::Diverged { rank: self.rank, at });
                    }
                    self.read_rows.borrow_mut().push(number);
                }
                None if self.is_on_its_way(at) => self.blame(Violation::NotLanded { rank: self.rank, at }),
                None => self.blame(Violation::Diverged { rank: self.rank, at }),
            }
        }
        let results = own.y.chunks_exact(shape.row_bytes() as usize);
        for (&at, result) in own.results_at.iter().zip(results) {
            let at = self.result_place(self.rank, at);
            let (place, row) = (self.interner.place(self.rank, at), self.interner.row(result.to_vec()));
            let shared = &mut **self.shared.get_mut();
            let unread = shared.rows.iter().any(|(number, _)| *number == place);
            shared.set_row(place, Some(row));
            if unread {
                self.blame(Violation::Overwritten { rank: self.rank, at });
            }
        }
        Ok(())
    }

    /// Where results lie that machines look for at `at`.
    fn result_place(&self, rank: RankId, at: Place) -> Place {
        let area = |n| landing::Parts::of(self.setup.shape, rank, Area(n)).result(0).offset;
        let is_second = self.twin() == Twin::OneResultArea && at.offset >= area(1);
        Place { offset: if is_second { at.offset - area(1) + area(0) } else { at.offset }, ..at }
    }

    /// A row that its reader takes from the window of `rank`.
    pub(super) fn row_at_peer(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
        self.touch(at)?;
        let at = self.result_place(rank, at);
        let Some((number, bytes)) = self.row_at(rank, at, len) else {
            // Nothing there: what comes of it differs from the oracle's.
            return Ok(&NOTHING[..len as usize]);
        };
        self.read_rows.borrow_mut().push(number);
        Ok(bytes)
    }
}
