//! The writers of a rank's outputs.

use super::{Doing, Line};
use std::collections::{BTreeMap, HashMap};

/// Bytes of an output that one core has written.
#[derive(Clone, Copy, Debug)]
struct Extent {
    end: u64,
    /// The core, and its first line that writes any of them.
    by: By,
}

/// A write to an output: its core and its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) actor: usize,
    pub(super) line: usize,
}

/// What the cores of a rank have done in an operator.
#[derive(Debug, Default)]
struct Written {
    /// Extents of each output by where they begin. They do not overlap.
    outputs: HashMap<String, BTreeMap<u64, Extent>>,
    ended: usize,
}

/// The outputs of operators that not all cores of their rank have ended.
#[derive(Debug, Default)]
pub(super) struct Outputs(HashMap<(u32, Doing), Written>);

impl Outputs {
    /// A core writes bytes of an output. Returns the line where another core of its rank writes one of them in the same operator.
    pub(super) fn write(&mut self, event: &Line, doing: Doing, by: By) -> Option<usize> {
        let (start, end) = (event.offset, event.offset.saturating_add(event.length.unwrap_or(0)));
        let written = self.0.entry((event.rank, doing)).or_default();
        let extents = written.outputs.entry(event.region.clone()).or_default();
        let touched = extents.range(..end).rev().take_while(|(_, extent)| extent.end > start);
        let touched: Vec<_> = touched.map(|(start, extent)| (*start, *extent)).collect();
        if let Some((_, other)) = touched.iter().find(|(_, extent)| extent.by.actor != by.actor) {
            return Some(other.by.line);
        }
        let mut all = (start, Extent { end, by });
        for (start, extent) in touched {
            extents.remove(&start);
            all.0 = all.0.min(start);
            all.1.end = all.1.end.max(extent.end);
            all.1.by.line = all.1.by.line.min(extent.by.line);
        }
        extents.insert(all.0, all.1);
        None
    }

    /// One of so many cores of a rank ends an operator. After the last one, another operator may have the same name and number.
    pub(super) fn end(&mut self, rank: u32, doing: Doing, cores: usize) {
        let key = (rank, doing);
        let written = self.0.entry(key.clone()).or_default();
        written.ended += 1;
        if written.ended == cores {
            self.0.remove(&key);
        }
    }
}
