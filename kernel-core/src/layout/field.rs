//! Fields: the named parts of each slot of a row of the [table](super::table), with formulas as data and as code.

use super::a2_window::FLAG1;
use super::affine::{Mode, Named};
use super::direct;
use super::expr::Expr;
use super::quantity::{Kind, Memory, Quantity, number};
use super::record::Triple;
use super::relay::{FRONT, ROW, Tail, WEIGHT_BYTES};
use super::state::LINE;
use crate::shape::sizes::{BLOCK_PAYLOAD, COMM_BLOCK, SCALE_FIELD};
use crate::shape::{Protocol, Shape};
use crate::units::Offset;

/// The length in bytes of a word.
const WORD: u64 = 8;

named! {
    /// The name of a field.
    FieldName {
        /// Flag and count of dispatch.
        Status = "status",
        /// Flag of the rows where counts have flags of their own.
        TokenFlag = "token flag",
        /// Flag of a table of counts.
        CountsTold = "counts told",
        /// Flag of a table of grants.
        GrantsTold = "grants told",
        /// Flag of rows that were put in place.
        RowsLanded = "rows landed",
        /// Word of even epochs.
        EvenEpochs = "even epochs",
        /// Word of odd epochs.
        OddEpochs = "odd epochs",
        /// Flag and number of rows.
        Rows = "rows",
        /// Number of the first of them.
        FirstRow = "first row",
        /// Row, result or sum.
        Data = "data",
        /// Scale of a row.
        Scale = "scale",
        /// Scales of the blocks of a row.
        Scales = "scales",
        /// Source, token and k index.
        Triple = "triple",
        /// Flag of the head of a window.
        Flag1 = "flag 1",
        /// Flag after the records of a stream.
        EndFlag = "end flag",
        /// Flag before a record.
        FrontFlag = "front flag",
        /// Experts of a token on a server.
        Ids = "ids",
        /// Weights of these experts.
        Weights = "weights",
        /// Scale, triple and weight after a row.
        Tail = "tail",
        /// Flag of a block or a row.
        Flag = "flag",
        /// Weight of a row.
        Weight = "weight",
        /// Word that is the whole slot, or its only used part.
        Word = "word",
        /// Payload of the first block of a record.
        Block = "block",
    }
}

/// The groups that have something, among those that have its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// All of them.
    Always,
    /// Those in which counts and rows have flags of their own.
    Separate,
    /// Those in which one flag has the count and covers the rows.
    Together,
    /// Those in which counts have flags of their own, and no blocks.
    CountsAlone,
    /// Those whose records are cut into blocks.
    Blocks,
    /// Those in which results take the places of their rows.
    Overwritten,
    /// Those in which results have places of their own.
    Kept,
    /// Those whose results travel as int8 with scales.
    ScaledResults,
}

impl When {
    /// Returns whether a group of this kind may have it.
    #[must_use]
    pub const fn may_hold(self, kind: Kind) -> bool {
        let in_blocks = matches!(kind.protocol, Protocol::FullmeshV2);
        match self {
            Self::Always | Self::ScaledResults => true,
            Self::Separate => kind.mode.separate,
            Self::Together => !kind.mode.separate && !in_blocks,
            Self::CountsAlone => kind.mode.separate && !in_blocks,
            Self::Blocks => in_blocks,
            Self::Overwritten => kind.mode.overwritten,
            Self::Kept => !kind.mode.overwritten,
        }
    }

    /// Returns whether the group of this memory has it.
    pub(super) const fn holds(self, at: &Memory<'_>) -> bool {
        match self {
            Self::ScaledResults => number::ScaledResults(at) > 0,
            _ => self.may_hold(Kind::of(at.shape, at.mode)),
        }
    }
}

/// A field in one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Its name.
    pub name: FieldName,
    /// The distance in bytes from the start of the slot.
    pub offset: Offset,
    /// The length in bytes.
    pub size: u64,
}

/// A field as formulas.
#[derive(Clone, Copy, Debug)]
pub struct FieldRow {
    /// Its name.
    pub name: FieldName,
    /// The distance in bytes from the start of the slot.
    pub offset: Expr<Quantity>,
    /// The length in bytes.
    pub size: Expr<Quantity>,
    /// The groups that have it.
    pub when: When,
}

/// Rows with the same fields.
#[derive(Clone, Copy, Debug)]
struct Group {
    rows: &'static [Named],
    fields: &'static [FieldRow],
}

/// Declares the fields of rows: name, offset, size, and which groups have it if not all. Each is data in [`GROUPS`], and its offset
/// is a function of [`offsets`] in a module with the name of the first row.
macro_rules! fields {
    ($($first:ident $(and $more:ident)* { $($name:ident $offset:tt, $size:tt $(if $when:ident)?;)* })*) => {
        const GROUPS: &[Group] = &[$(Group {
            rows: &[Named::$first $(, Named::$more)*],
            fields: &[$(FieldRow {
                name: FieldName::$name,
                offset: expr!(Quantity: $offset),
                size: expr!(Quantity: $size),
                when: fields!(@when $($when)?),
            }),*],
        }),*];

        /// The offsets of fields in their slots.
        #[allow(non_snake_case, unused_variables, dead_code)]
        pub(super) mod offsets {
            $(
                pub(in crate::layout) mod $first {
                    #[allow(unused_imports)]
                    use super::super::*;
                    $(
                        #[inline(always)]
                        pub(in crate::layout) const fn $name(at: &Memory<'_>) -> u64 { code!(at: $offset) }
                    )*
                }
            )*
        }
    };
    (@when) => { When::Always };
    (@when $when:ident) => { When::$when };
}

fields! {
    DispatchStatus {
        Status 0, {WORD};
        TokenFlag {WORD}, {WORD} if Separate;
    }
    DirectRecords {
        CountsTold 0, {WORD};
        GrantsTold {WORD}, {WORD};
        RowsLanded {2 * WORD}, {WORD};
    }
    CombineStatus and ResultsReady and BlockFlags and EndFlags and Counts and Entered and RowsDone { Word 0, {WORD}; }
    CoreWords {
        EvenEpochs 0, {WORD};
        OddEpochs {LINE}, {WORD};
    }
    TpDispatchSlots and TpCombineSlots {
        Rows 0, {WORD};
        FirstRow {WORD}, 4;
    }
    Infos {
        Scale 0, {direct::SCALE};
        Triple {direct::SCALE}, {Triple::BYTES};
    }
    WindowsIn and WindowsOut { Flag1 {FLAG1}, {WORD}; }
    StreamsIn and StreamsOut { EndFlag (StreamBytes - {WORD}), {WORD}; }
    NearSlots {
        Data {ROW}, Payload;
        Tail ({ROW} + Payload), {Tail::BYTES};
    }
    ReturnedSlots {
        Flag 0, {WORD};
        Data {ROW}, RowBytes;
        Weight ({ROW} + RowBytes), {WEIGHT_BYTES};
    }
    // With blocks the data continue after the flag of each block.
    DispatchRecords and TpRecords {
        Data 0, Payload;
        Scale RecordScale, {SCALE_FIELD};
        Triple RecordTriple, {Triple::BYTES};
        Block 0, {BLOCK_PAYLOAD} if Blocks;
        Flag {BLOCK_PAYLOAD}, {WORD} if Blocks;
    }
    WindowRecords {
        Data 0, Payload;
        Scale Payload, WindowScale;
    }
    RelayRecords and TokenRecords {
        FrontFlag 0, {FRONT};
        Data {ROW}, Payload;
        Scale ({ROW} + (up(Payload, 32))), {SCALE_FIELD};
        Ids ({ROW} + (up(Payload, 32)) + {SCALE_FIELD}), (4 * (up(K, 8)));
        Weights ({ROW} + (up(Payload, 32)) + {SCALE_FIELD} + (4 * (up(K, 8)))), (4 * (up(K, 8)));
    }
    CombineRows {
        Data 0, ((2 - ScaledResults) * Elements);
        Scales (up(Elements, 32)), (2 * (ceil(Elements, COMM_BLOCK))) if ScaledResults;
    }
}

impl Named {
    /// Returns the fields of each of its slots, as formulas.
    pub fn field_rows(self) -> impl Iterator<Item = &'static FieldRow> {
        GROUPS.iter().filter(move |group| group.rows.contains(&self)).flat_map(|group| group.fields)
    }

    /// Returns the fields of each of its slots in a memory.
    pub(super) fn fields_in(self, memory: Memory<'_>) -> impl Iterator<Item = Field> {
        let fields = self.field_rows().filter(move |field| field.when.holds(&memory));
        fields.map(move |field| Field {
            name: field.name,
            offset: memory.value(&field.offset),
            size: memory.value(&field.size),
        })
    }

    /// Returns the fields of each of its slots in a group of `shape`.
    pub fn fields(self, shape: &Shape, mode: Mode) -> impl Iterator<Item = Field> {
        self.fields_in(Memory { mode, ..Memory::of_any(shape) })
    }

    /// Returns the offset of a field that has the same place in every shape, for a constant.
    ///
    /// # Panics
    /// Does not compile if the row has not this field, or if its offset depends on a shape.
    pub(super) const fn field(self, name: FieldName) -> Offset {
        let mut groups = GROUPS;
        while let Some((group, other_groups)) = groups.split_first() {
            groups = other_groups;
            let (mut rows, mut fields) = (group.rows, group.fields);
            let mut is_of_row = false;
            while let Some((row, other_rows)) = rows.split_first() {
                is_of_row |= *row as usize == self as usize;
                rows = other_rows;
            }
            while let Some((field, other_fields)) = fields.split_first() {
                if is_of_row && field.name as usize == name as usize {
                    return field.offset.constant().expect("an offset for all shapes");
                }
                fields = other_fields;
            }
        }
        panic!("a field of the row")
    }
}
