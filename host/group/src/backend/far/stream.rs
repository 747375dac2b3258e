//! A stream of entries from one process to another, cut into chunks.
//!
//! A chunk says who sent it, its number, and how many entries of the other direction its sender has applied. Entries may be
//! cut anywhere. What comes from a wire is foreign: a chunk that is not the next one, or says what cannot be, is refused.

use core::ops::RangeInclusive;
use veriep_core::place::{Place, Region};
use veriep_core::units::RankId;

/// Bytes of a chunk before its entries.
pub(super) const CHUNK_HEAD: usize = 32;
/// Bytes of an entry before what it writes.
const ENTRY_HEAD: usize = 24;
const MAGIC: u64 = u64::from_le_bytes(*b"VeriEP/1");
/// Regions that others reach, by their numbers in an entry.
const REGIONS: [Region; 4] = [Region::State, Region::Window, Region::TpState, Region::TpWindow];

/// How an entry lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As bytes that a later word speaks for.
    Row,
    /// As words, one after the other, each of which speaks for all before it.
    Words,
    /// For the driver of the group, not into memory. Its tag is in place of a member.
    Note,
    /// Nothing: the sender sends no more.
    End,
}

/// Where an entry lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    /// Whose memory, by number.
    pub(super) member: RankId,
    pub(super) at: Place,
    /// Bytes.
    pub(super) len: u64,
}

impl Entry {
    fn head(self) -> [u8; ENTRY_HEAD] {
        let region = REGIONS.iter().position(|&region| region == self.at.region).unwrap_or(REGIONS.len());
        let first = (self.kind as u64) << 40 | (region as u64) << 32 | u64::from(self.member.0);
        let mut head = [0; ENTRY_HEAD];
        let words = [first, self.at.offset, self.len];
        head.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        head
    }

    fn read(head: &[u8; ENTRY_HEAD]) -> Option<Self> {
        let [first, offset, len] = words(head);
        let kind = [Kind::Row, Kind::Words, Kind::Note, Kind::End]
            .into_iter()
            .find(|&kind| kind as u64 == first >> 40)?;
        let region = *REGIONS.get((first >> 32 & 0xff) as usize)?;
        Some(Self { kind, member: RankId(first as u32), at: Place { region, offset }, len })
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    words.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, word)| *to = u64::from_le_bytes(*word));
    words
}

/// The way to another process.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Begins with room for a head; empty if there is nothing to send.
    chunk: Vec<u8>,
    /// Chunks sent.
    chunks: u64,
    /// Entries begun.
    pub(super) entries: u64,
    /// Entries that the other one has applied.
    pub(super) applied: u64,
}

impl Outgoing {
    /// Adds an entry of the bytes of `parts`, and hands each chunk that is full to `ship`.
    pub(super) fn add(
        &mut self,
        (entry, parts): (Entry, [&[u8]; 2]),
        most: usize,
        ship: &mut dyn FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.entries += 1;
        for mut part in [&entry.head()[..], parts[0], parts[1]] {
            while !part.is_empty() {
                self.open();
                let (now, later) = part.split_at(part.len().min(CHUNK_HEAD + most - self.chunk.len()));
                self.chunk.extend_from_slice(now);
                part = later;
                if self.chunk.len() == CHUNK_HEAD + most {
                    ship(self)?;
                }
            }
        }
        Ok(())
    }

    /// Makes room for a head, if there is none.
    fn open(&mut self) {
        if self.chunk.is_empty() {
            self.chunk.resize(CHUNK_HEAD, 0);
        }
    }

    /// Whether there is something to send.
    pub(super) fn is_open(&self) -> bool {
        !self.chunk.is_empty()
    }

    /// The chunk as it is, even without an entry, which tells that so many of the other direction have been applied.
    pub(super) fn close(&mut self, me: usize, applied: u64) -> Vec<u8> {
        self.open();
        self.chunks += 1;
        let mut chunk = core::mem::take(&mut self.chunk);
        let head = [MAGIC, me as u64, self.chunks, applied];
        chunk.as_chunks_mut().0.iter_mut().zip(head).for_each(|(to, word)| *to = word.to_le_bytes());
        chunk
    }
}

/// Writes an entry into memory.
pub(super) type Apply<'a> = dyn FnMut(Entry, &[u8]) -> Result<(), String> + 'a;

/// The way from another process.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    chunks: u64,
    /// Entries applied.
    pub(super) applied: u64,
    /// How many of these the other one has been told of.
    pub(super) told: u64,
    /// It sends no more.
    pub(super) ended: bool,
    /// The beginning of an entry whose end has not come.
    rest: Vec<u8>,
}

impl Incoming {
    /// Takes the next chunk of process `from`, hands each entry that is whole to `apply`, and returns how many entries of the
    /// other direction that process has applied, which must be one of `legal`.
    pub(super) fn take(
        &mut self,
        from: usize,
        chunk: &[u8],
        most: u64,
        legal: RangeInclusive<u64>,
        apply: &mut Apply<'_>,
    ) -> Result<u64, String> {
        let Some((head, mut data)) = chunk.split_at_checked(CHUNK_HEAD) else {
            return Err(format!("a chunk of {} bytes: must have {CHUNK_HEAD} at least", chunk.len()));
        };
        let [magic, sender, number, applied] = words(head);
        if (magic, sender) != (MAGIC, from as u64) {
            return Err(format!(
                "a chunk of {magic:#x} of process {sender}: not one of this program and process"
            ));
        }
        if number != self.chunks + 1 {
            return Err(format!("chunk {number}: must be {}", self.chunks + 1));
        }
        if !legal.contains(&applied) {
            return Err(format!("entries applied = {applied}: must be in {legal:?}"));
        }
        self.chunks = number;
        let joined;
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(data);
            joined = core::mem::take(&mut self.rest);
            data = &joined;
        }
        while let Some((head, behind)) = data.split_first_chunk() {
            let entry = Entry::read(head)
                .ok_or_else(|| format!("an entry of {:#x}: no such kind", words::<1>(head)[0]))?;
            if entry.len > most {
                return Err(format!("an entry of {} bytes: must have {most} at most", entry.len));
            }
            let Some((bytes, next)) = behind.split_at_checked(entry.len as usize) else { break };
            apply(entry, bytes)?;
            self.applied += 1;
            data = next;
        }
        self.rest = data.to_vec();
        Ok(applied)
    }
}
