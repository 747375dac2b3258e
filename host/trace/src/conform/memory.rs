//! The memory of all ranks as a record shows it: the contents of each place and their writer.

use super::clock::Clock;
use super::trace::{Line, Place, Trace};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use veriep_core::shape::Protocol;

/// Bytes that were put at once, as far as nothing has overwritten them.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) line: usize,
    pub(super) actor: usize,
    /// When, by its actor's clock.
    pub(super) tick: u32,
    /// In whose memory.
    pub(super) to: u32,
    pub(super) doing: Option<(u64, String)>,
    pub(super) kind: String,
    pub(super) clock: Rc<Clock>,
    /// Who has read it, and when.
    pub(super) readers: Vec<(usize, u32)>,
    /// Which bytes of the region were read, as ranges in any order.
    pub(super) read: Vec<(u64, u64)>,
    /// Where it lies, as far as nothing has overwritten it.
    pub(super) extent: (u64, u64),
}

/// The bytes between a row and what is beside it are fewer: they fill the row up, with room for a scale.
const GAP: u64 = 64;

impl Piece {
    /// Whether it has been read, of rows that cores put but for the gap after them: what is beside a row is not the row. Of
    /// what agents carry, and of heads of windows, words alone may be read.
    pub(super) fn is_read(&self, protocol: Protocol) -> bool {
        if self.kind != "put" || protocol == Protocol::Fullmesh {
            return !self.readers.is_empty();
        }
        let mut read = self.read.clone();
        read.sort_unstable();
        let (start, end) = self.extent;
        let (mut at, mut unread) = (start, 0);
        for (from, until) in read {
            unread += from.min(end).saturating_sub(at);
            at = at.max(until);
        }
        !self.read.is_empty() && unread + end.saturating_sub(at) < GAP
    }

    /// Whether it must be read before it is overwritten: tables beside words are read with them.
    pub(super) fn is_data(&self, region: &str) -> bool {
        self.doing.is_some() && self.kind != "write" && region.contains("window")
    }
}

/// A word that was written.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) line: usize,
    pub(super) actor: usize,
    pub(super) tick: u32,
    pub(super) value: u64,
    pub(super) is_store: bool,
    pub(super) clock: Rc<Clock>,
    pub(super) observers: Vec<(usize, u32)>,
}

/// Pieces of a region by where they begin, each with its end.
type Region = BTreeMap<u64, (u64, Piece)>;

#[derive(Debug)]
pub(super) struct Memory {
    regions: HashMap<(u32, String), Region>,
    words: HashMap<Place, Vec<Word>>,
    /// Where words are that anybody clears, by region and offset: ranks have them alike.
    cleared: HashSet<(String, u64)>,
    /// The line of the last flag that was observed inside a task, and of that task.
    flags: HashMap<Place, (usize, usize)>,
}

/// How many words are remembered at a place: of more no core can see one that is not the last.
const REMEMBERED: usize = 8;

impl Memory {
    pub(super) fn new(trace: &Trace) -> Self {
        let clears = trace.events.iter().filter(|event| event.kind == "store" && event.word == Some(0));
        let cleared = clears.map(|event| (event.region.clone(), event.offset)).collect();
        Self { regions: HashMap::new(), words: HashMap::new(), cleared, flags: HashMap::new() }
    }

    /// Whether others than its rank's cores in one operator reach a region.
    pub(super) fn is_shared(region: &str) -> bool {
        region.contains("window") || region.contains("state")
    }

    pub(super) fn is_cleared(&self, event: &Line) -> bool {
        self.cleared.contains(&(event.region.clone(), event.offset))
    }

    /// A flag has been observed inside a task. Returns the line of the one before it there, if that came by another task.
    pub(super) fn flag(&mut self, place: &Place, (line, task): (usize, usize)) -> Option<usize> {
        let before = self.flags.insert(place.clone(), (line, task));
        before.filter(|before| before.1 != task).map(|before| before.0)
    }

    pub(super) fn last(&self, place: &Place) -> Option<&Word> {
        self.words.get(place)?.last()
    }

    pub(super) fn publish(&mut self, place: Place, word: Word) {
        let words = self.words.entry(place).or_default();
        if words.len() == REMEMBERED {
            words.remove(0);
        }
        words.push(word);
    }

    /// Words at a place, the last one first.
    pub(super) fn words(&mut self, place: &Place) -> impl Iterator<Item = &mut Word> {
        self.words.get_mut(place).into_iter().flat_map(|words| words.iter_mut().rev())
    }

    /// What an event touches in the memory of a rank, in the order of places.
    pub(super) fn overlapping(&mut self, rank: u32, event: &Line) -> impl Iterator<Item = &mut Piece> {
        let (start, end) = (event.offset, event.offset.saturating_add(event.length.unwrap_or(8)));
        let region = self.regions.get_mut(&(rank, event.region.clone()));
        // Pieces do not overlap: of those that begin before, the last one alone can reach into it.
        let first =
            region.as_ref().and_then(|region| Some(*region.range(..=start).next_back()?.0)).unwrap_or(start);
        let pieces = region.into_iter().flat_map(move |region| region.range_mut(first..end.max(first)));
        pieces.filter(move |(_, (until, _))| *until > start).map(|(_, (_, piece))| piece)
    }

    /// How many of the bytes that an event touches anybody has put there.
    pub(super) fn covered(&self, rank: u32, event: &Line) -> u64 {
        let (start, end) = (event.offset, event.offset.saturating_add(event.length.unwrap_or(8)));
        let Some(region) = self.regions.get(&(rank, event.region.clone())) else { return 0 };
        let before = region.range(..start).next_back();
        let pieces = before.into_iter().chain(region.range(start..end));
        pieces.map(|(&at, (until, _))| end.min(*until).saturating_sub(at.max(start))).sum()
    }

    /// What a rank has received in the dispatch of a batch.
    pub(super) fn of_batch(&mut self, rank: u32, batch: u64) -> impl Iterator<Item = &mut Piece> {
        let regions =
            self.regions.iter_mut().filter(move |((of, region), _)| *of == rank && region == "window");
        let pieces = regions.flat_map(|(_, region)| region.values_mut().map(|(_, piece)| piece));
        pieces.filter(move |piece| {
            piece.doing.as_ref().is_some_and(|doing| doing.0 == batch && doing.1 == "dispatch")
        })
    }

    /// The first line that puts a row which nothing has read at the end, but for those of dispatch where experts read them.
    pub(super) fn unread(&self, keeps_rows: bool, protocol: Protocol) -> Option<usize> {
        let all = self.regions.iter().flat_map(|((_, region), pieces)| {
            pieces.values().filter(move |(_, piece)| piece.is_data(region)).map(|(_, piece)| piece)
        });
        let is_owed = |piece: &&Piece| {
            let of_dispatch = piece.doing.as_ref().is_some_and(|(_, operator)| operator == "dispatch");
            !(piece.is_read(protocol) || keeps_rows && of_dispatch)
        };
        all.filter(is_owed).map(|piece| piece.line).min()
    }

    /// Puts a piece where an event says: what was there is cut.
    pub(super) fn put(&mut self, rank: u32, event: &Line, piece: Piece) {
        let (start, end) = (event.offset, event.offset.saturating_add(event.length.unwrap_or(8)));
        let region = self.regions.entry((rank, event.region.clone())).or_default();
        let before = region.range_mut(..start).next_back();
        let mut tail = None;
        if let Some((_, (until, old))) = before
            && *until > start
        {
            tail = (*until > end).then(|| (*until, old.clone()));
            *until = start;
            old.extent.1 = start;
        }
        while let Some((&at, (until, _))) = region.range(start..end).next() {
            let until = *until;
            if let Some((_, old)) = region.remove(&at)
                && until > end
            {
                tail = Some((until, old));
            }
        }
        if let Some((until, mut old)) = tail {
            old.extent.0 = end;
            region.insert(end, (until, old));
        }
        region.insert(start, (end, piece));
    }
}
