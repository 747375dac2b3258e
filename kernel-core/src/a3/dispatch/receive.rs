//! The receiving half: learn where the own rows go, copy the records out.

use super::{Dispatch, Part, Phase};
use crate::a3::exchange::Exchange;
use crate::a3::steps::{self, ROWS, count_of, split_words, write_first};
use crate::a3::{Env, Flags, Receive, Ub, internal};
use crate::fabric::{Fabric, Progress, ProtocolError};
use crate::layout::data::dispatch_record;
use crate::layout::record::{scale_of, triple_of};
use crate::layout::{outputs, row_table};
use crate::placement::Home;
use crate::shape::QuantMode;
use crate::units::RankId;
use crate::vector::Vector;

impl Dispatch {
    pub(super) fn exchange<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
        mut exchange: Exchange,
    ) -> Result<Progress, ProtocolError> {
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        let progress = exchange.step(env, fabric, counts)?;
        match progress {
            Progress::Stepped => self.go(Phase::Exchange(exchange)),
            Progress::Pending(_) => Ok(progress),
            Progress::Done => {
                self.epoch = exchange.epoch();
                (self.first_row, self.total) = (exchange.first_row(), exchange.total());
                self.go(match env.choices.flags {
                    Flags::Joint => first_record(env.work.slots.start, self.first_row),
                    Flags::Separate => Phase::Quiet,
                })
            }
        }
    }

    pub(super) fn await_tokens<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        slot: u32,
        row: u32,
    ) -> Result<Progress, ProtocolError> {
        if slot >= env.work.slots.end {
            return self.copied(env, row);
        }
        match steps::await_token_flag(env.shape, fabric, self.partition, slot)? {
            Some(wait) => Ok(Progress::Pending(wait)),
            None => self.go(first_record(slot, row)),
        }
    }

    pub(super) fn copy_out<F: Fabric + ?Sized, V: Vector>(
        &mut self,
        env: &Env<'_, V>,
        fabric: &mut F,
        ub: &mut Ub<'_>,
    ) -> Result<Progress, ProtocolError> {
        let Phase::CopyOut { slot, index, row, token, part } = self.phase else {
            return Err(internal("not copying out"));
        };
        let shape = env.shape;
        let (_, counts) = split_words(ub.words, &env.work.sends)?;
        let (slot, index) = match env.choices.flags {
            Flags::Joint => next_record(env, counts, slot, index)?,
            Flags::Separate if index >= *count_of(env, counts, slot)? => {
                return self.go(Phase::AwaitTokens { slot: slot + 1, row });
            }
            Flags::Separate => (slot, index),
        };
        if slot >= env.work.slots.end {
            return self.copied(env, row);
        }
        let (local_expert, source) = shape.by_ranks(slot);
        let (home, source) = (Home { rank: env.rank, local_expert }, RankId(source));
        let record = dispatch_record(shape, self.partition, home, source, index);
        // Where data stay, what is written for each record is small.
        let rows = match env.choices.receive {
            Receive::InPlace => (*count_of(env, counts, slot)? - index).min(ROWS),
            _ => 1,
        };
        let at = |i| dispatch_record(shape, self.partition, home, source, index + i);
        let next = Phase::CopyOut { slot, index: index + rows, row: row + rows, token, part: Part::Triple };
        match part {
            Part::Triple => {
                let first = if index == 0 { 0 } else { token };
                let triples = |i| triple_of(shape, at(i));
                let token =
                    steps::copy_triples(shape, fabric, (rows, triples), (home, source), (row, first))?;
                self.go(Phase::CopyOut { slot, index, row, token, part: Part::Data })
            }
            Part::Data => {
                match env.choices.receive {
                    Receive::Copy => {
                        fabric.deliver(outputs::expand_x(shape, row), record, shape.payload_bytes())?;
                    }
                    Receive::InPlace => {
                        let mut entries = [[0; row_table::ENTRY as usize]; ROWS as usize];
                        for (i, entry) in (0..rows).zip(&mut entries) {
                            *entry = row_table::entry(at(i));
                        }
                        write_first(fabric, outputs::row_table(row), &entries, rows)?;
                    }
                    Receive::Direct { .. } => {
                        return Err(internal("direct placement has machines of its own"));
                    }
                }
                self.go(match shape.quant_mode() {
                    QuantMode::None => Self::behind_own_parts(env, self.phase, next),
                    QuantMode::Dynamic => Phase::CopyOut { slot, index, row, token, part: Part::Scale },
                })
            }
            Part::Scale => {
                steps::copy_scales(fabric, (rows, |i| scale_of(shape, at(i))), row)?;
                self.go(Self::behind_own_parts(env, self.phase, next))
            }
            Part::Peer => {
                self.put_at_peer(env, fabric, ub, record, row)?;
                self.go(next)
            }
        }
    }
}

const fn first_record(slot: u32, row: u32) -> Phase {
    Phase::CopyOut { slot, index: 0, row, token: 0, part: Part::Triple }
}

/// The next record to copy out: `index` of `slot`, or the first one of a later slot that has any.
fn next_record<V>(
    env: &Env<'_, V>,
    counts: &mut [u32],
    mut slot: u32,
    mut index: u32,
) -> Result<(u32, u32), ProtocolError> {
    while slot < env.work.slots.end && index >= *count_of(env, counts, slot)? {
        slot += 1;
        index = 0;
    }
    Ok((slot, index))
}
