//! Any legal shape: that the [table](veriep_core::layout::table) of the memory is right, whatever the numbers are.
//!
//! [`theory`] says what is known of the numbers of all legal shapes, from the formulas and [rules] of
//! `kernel-core` itself. A [`Claim`] says which indices would refute it; [`script`] prints it for a solver.

pub mod poly;
pub mod script;
pub mod theory;
pub mod work;

use core::fmt;
use poly::Poly;
use script::Script;
use theory::{Formula, Theory};
use veriep_core::layout::affine::{Index, Mode, Named};
use veriep_core::layout::block::{BLOCK_OF, BYTE, Streamed};
use veriep_core::layout::event::{EVENTS, Event};
use veriep_core::layout::expr::Expr;
use veriep_core::layout::field::{FieldName, FieldRow, When};
use veriep_core::layout::quantity::{Kind, Quantity};
use veriep_core::layout::rules::{self, COUNTED, Rule};
use veriep_core::layout::state::Slots;
use veriep_core::layout::table::{Axis, Row, SHARED, TABLE, Writer};
use veriep_core::place::Region;
use veriep_core::shape::Protocol;

/// Every kind of group: each protocol with the choices that move places.
pub fn kinds() -> Vec<Kind> {
    let plain = Mode::default();
    let direct = Mode { landings: 1, ..plain };
    let of = |protocol, has_tp, mode| Kind { protocol, has_tp, mode };
    vec![
        of(Protocol::FullmeshV1, false, plain),
        of(Protocol::FullmeshV1, true, plain),
        of(Protocol::FullmeshV1, false, direct),
        of(Protocol::FullmeshV1, false, Mode { overwritten: true, ..direct }),
        of(Protocol::FullmeshV2, false, plain),
        of(Protocol::Fullmesh, false, plain),
        of(Protocol::Hierarchy, false, plain),
        of(Protocol::Hierarchy, false, Mode { streams: true, ..plain }),
        of(Protocol::FullmeshV1, false, Mode { slots: Slots::Lines, ..plain }),
    ]
}

/// The rows that groups of a kind have.
pub fn rows(kind: Kind) -> Vec<Row> {
    TABLE.iter().filter(|row| row.named.is_of(kind)).copied().collect()
}

/// The form in which results travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// As rows.
    Plain,
    /// As int8 with scales.
    Scaled,
}

/// A claim about all legal shapes.
#[derive(Clone, Copy, Debug)]
pub enum Claim {
    /// No two slots of these rows have a byte in common; of a row with itself, no two different ones. Slots that other ranks
    /// write share no word of eight bytes.
    Apart(Row, Row),
    /// Every slot is within its region, or the slot that it is inside.
    Within(Row),
    /// The bytes of a slot and all that the inner indices add are at most the stride of the index at this position among the
    /// row's [axes](Row::axes): so a division finds it.
    Found(Row, usize),
    /// This divides every offset.
    Aligned(Row, u64),
    /// The field is within each slot, if results have scales or not.
    Inside(Row, FieldRow, Results),
    /// The fields have no byte of a slot in common.
    Beside(Row, [FieldRow; 2]),
    /// The field has no byte in common with any slot of the second row, which is inside each slot of the first.
    Clear(Row, FieldRow, Row),
    /// The field is whole words: its offset and its length are multiples of 8.
    Words(Row, FieldRow),
    /// The flag after any number of rows is after each of them: the second row is that of the flags.
    After(Row, Row),
    /// Each byte of the stream of a record is where this formula says in the payload of its block; the row is that of payloads.
    Carried(Row, Expr<Streamed>),
    /// A byte of the stream lies behind all bytes before it.
    Rising(Expr<Streamed>),
    /// The field of a record is in one piece where its bytes in the stream are.
    Whole(FieldRow, Expr<Streamed>),
    /// It is below this power of two.
    Fits(Expr<Quantity>, u32),
    /// If so many bits address all that the rules say is addressable, they address the row's region.
    Addressed(Row, u32),
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apart(a, b) => write!(f, "{} and {} are apart", a.named.name(), b.named.name()),
            Self::Within(row) => write!(f, "{} end within their memory", row.named.name()),
            Self::Found(row, axis) => {
                write!(f, "{}: {} is found again", row.named.name(), row.axes[*axis].index.name())
            }
            Self::Aligned(row, unit) => write!(f, "{} are at multiples of {unit}", row.named.name()),
            Self::Inside(row, field, _) => {
                write!(f, "{}: {} lies within a slot", row.named.name(), field.name.name())
            }
            Self::Beside(row, [a, b]) => {
                write!(f, "{}: {} and {} are apart", row.named.name(), a.name.name(), b.name.name())
            }
            Self::Clear(row, field, inner) => {
                write!(f, "{}: {} and {} are apart", row.named.name(), field.name.name(), inner.named.name())
            }
            Self::Words(row, field) => {
                write!(f, "{}: {} is whole words", row.named.name(), field.name.name())
            }
            Self::After(rows, flags) => {
                write!(f, "{} follow as many {}", flags.named.name(), rows.named.name())
            }
            Self::Carried(row, _) => write!(f, "{} carry each byte of a record", row.named.name()),
            Self::Rising(_) => f.write_str("a byte of a record lies behind all bytes before it"),
            Self::Whole(field, _) => write!(f, "{} is in one piece in a record", field.name.name()),
            Self::Fits(formula, bits) => write!(f, "{bits} bits hold {formula:?}"),
            Self::Addressed(row, bits) => write!(f, "{} are addressed by {bits} bits", row.named.name()),
        }
    }
}

/// A slot of a row with any indices.
struct Slot {
    indices: Vec<Poly>,
    strides: Vec<Poly>,
    offset: Poly,
    bytes: Poly,
}

impl Slot {
    fn of(theory: &mut Theory, row: &Row, mark: &str) -> Self {
        let mut slot = Self {
            indices: Vec::new(),
            strides: Vec::new(),
            offset: theory.poly(&row.base),
            bytes: theory.poly(&row.bytes),
        };
        for axis in row.axes {
            let (extent, stride) = (theory.poly(&axis.extent), theory.poly(&axis.stride));
            // The memory is one rank's.
            let mark = if axis.index == Index::Owner { "" } else { mark };
            let index = theory.index_of(&format!("i_{}{mark}", axis.index.name()), &extent);
            // What is left of the extent.
            let rest = extent.sub(&index).sub(&Poly::number(1));
            theory.facts.push(Formula::product(&rest, &stride));
            // It is 0, or at least 1.
            let [none, one] = [Poly::default(), Poly::number(1)];
            theory.facts.push(Formula::product(&none.sub(&index), &stride));
            theory.facts.push(Formula::product(&index.sub(&one), &stride));
            let by = index.mul(&stride);
            slot.offset = if axis.falls { slot.offset.sub(&by) } else { slot.offset.add(&by) };
            slot.indices.push(index);
            slot.strides.push(stride);
        }
        slot
    }

    fn end(&self) -> Poly {
        self.offset.add(&self.bytes)
    }

    /// The end of the last word of eight bytes.
    fn words_end(&self, theory: &mut Theory) -> Poly {
        let words = theory.ceil(self.bytes.clone(), 8);
        self.offset.add(&words.mul(&Poly::number(8)))
    }
}

impl Theory {
    /// The index of this name, which is new if there is none.
    fn index_of(&mut self, name: &str, extent: &Poly) -> Poly {
        match self.variables.iter().position(|variable| variable.name == name) {
            Some(atom) => Poly::atom(atom),
            None => self.index(name.to_owned(), extent),
        }
    }
}

impl Theory {
    /// The first byte of a field in its slot and the byte after the last.
    fn ends(&mut self, field: &FieldRow) -> [Poly; 2] {
        let (start, size) = (self.poly(&field.offset), self.poly(&field.size));
        let end = start.add(&size);
        [start, end]
    }

    /// Any byte of the stream of a record.
    fn byte(&mut self, name: &str) -> Poly {
        let sent = self.quantity(Quantity::SentBytes);
        self.index(name.to_owned(), &sent)
    }

    /// A formula of a byte of the stream.
    fn streamed(&mut self, formula: &Expr<Streamed>, byte: &Poly) -> Poly {
        self.poly_of(formula, &mut |_, Streamed::Byte| byte.clone())
    }

    /// Assumes that results travel so, in groups that have them.
    fn assume(&mut self, results: Results) {
        let lengths = rules::rules(self.kind).find_map(|rule| match rule {
            Rule::OneOf(Quantity::ResultBytes, [plain, scaled]) => Some([*plain, *scaled]),
            _ => None,
        });
        let Some(length) = lengths.map(|lengths| lengths[results as usize]) else { return };
        self.set(Quantity::ScaledResults, results as u64);
        let (seen, length) = (self.quantity(Quantity::ResultBytes), self.poly(&length));
        self.facts.push(Formula::equal(&seen, &length));
    }
}

/// States that two different indices are at least one stride apart.
fn compare(theory: &mut Theory, [i, j]: [&Poly; 2], stride: &Poly) {
    let one = Poly::number(1);
    for between in [i.sub(j), j.sub(i)] {
        theory.facts.push(Formula::product(&between, stride));
        theory.facts.push(Formula::product(&between.sub(&one), stride));
    }
}

impl Claim {
    /// Adds the indices to the theory, and returns what would refute the claim.
    pub fn refuted(&self, theory: &mut Theory) -> Vec<Formula> {
        match self {
            Self::Apart(a, b) => {
                let (one, two) = (Slot::of(theory, a, "_a"), Slot::of(theory, b, "_b"));
                for (n, axis) in a.axes.iter().enumerate() {
                    let same = |other: &Axis| other.index == axis.index && axis.index != Index::Owner;
                    if let Some(m) = b.axes.iter().position(same)
                        && one.strides[n] == two.strides[m]
                    {
                        compare(theory, [&one.indices[n], &two.indices[m]], &one.strides[n]);
                    }
                }
                // Where others write whole slots at multiples of words, no two slots share a word.
                let is_in_words = |row: &Row| row.named.alignment() >= 8 && row.writer != Writer::Own;
                let [one_end, two_end] = [(a, &one), (b, &two)].map(|(row, slot)| match is_in_words(row) {
                    true => slot.words_end(theory),
                    false => slot.end(),
                });
                let mut all =
                    vec![Formula::below(&one.offset, &two_end), Formula::below(&two.offset, &one_end)];
                if a.named == b.named {
                    let pairs = one.indices.iter().zip(&two.indices);
                    let differ = pairs.flat_map(|(i, j)| [Formula::below(i, j), Formula::below(j, i)]);
                    all.push(Formula::Any(differ.collect()));
                }
                all
            }
            Self::Within(row) => {
                let slot = Slot::of(theory, row, "");
                let room = theory.poly(&row.named.room());
                if let Region::Output(_) = row.region {
                    // A rank has the first entries, as many as it has tokens.
                    let tokens = theory.quantity(Quantity::Tokens);
                    let of_token = row.axes.iter().position(|axis| axis.index == Index::Token);
                    if let Some(n) = of_token {
                        theory.facts.push(Formula::below(&slot.indices[n], &tokens));
                        let rest = tokens.sub(&slot.indices[n]).sub(&Poly::number(1));
                        theory.facts.push(Formula::product(&rest, &slot.strides[n]));
                    }
                }
                let before = Formula::below(&slot.offset, &Poly::default());
                vec![Formula::Any(vec![before, Formula::below(&room, &slot.end())])]
            }
            Self::Found(row, axis) => {
                let slot = Slot::of(theory, row, "");
                let inner = (axis + 1..row.axes.len())
                    .fold(slot.bytes.clone(), |sum, n| sum.add(&slot.indices[n].mul(&slot.strides[n])));
                let extent = theory.poly(&row.axes[*axis].extent);
                vec![
                    Formula::at_most(&Poly::number(2), &extent),
                    Formula::below(&slot.strides[*axis], &inner),
                ]
            }
            Self::Aligned(row, unit) => {
                let slot = Slot::of(theory, row, "");
                let times = theory.index("times".to_owned(), &Poly::number(1 << 80));
                let rest = slot.offset.sub(&times.mul(&Poly::number((*unit).into())));
                let below = Formula::below(&rest, &Poly::number((*unit).into()));
                vec![below, Formula::below(&Poly::default(), &rest)]
            }
            Self::Inside(row, field, results) => {
                if row.named == Named::CombineRows {
                    theory.assume(*results);
                }
                let ([_, end], bytes) = (theory.ends(field), theory.poly(&row.bytes));
                vec![Formula::below(&bytes, &end)]
            }
            Self::Beside(row, [a, b]) => {
                // Results without scales have one field.
                if row.named == Named::CombineRows {
                    theory.assume(Results::Scaled);
                }
                let [[start, end], [other_start, other_end]] = [a, b].map(|field| theory.ends(field));
                vec![Formula::below(&start, &other_end), Formula::below(&other_start, &end)]
            }
            Self::Clear(_, field, inner) => {
                let [start, end] = theory.ends(field);
                let slot = Slot::of(theory, inner, "");
                vec![Formula::below(&start, &slot.end()), Formula::below(&slot.offset, &end)]
            }
            Self::Words(_, field) => {
                let [start, end] = theory.ends(field);
                let no_multiple = |theory: &mut Theory, value: &Poly, name: &str| {
                    let times = theory.index(name.to_owned(), &Poly::number(1 << 80));
                    let rest = value.sub(&times.mul(&Poly::number(8)));
                    let [none, word] = [Poly::default(), Poly::number(8)];
                    Formula::All(vec![Formula::below(&rest, &word), Formula::below(&none, &rest)])
                };
                let parts = [(start, "times_start"), (end, "times_end")];
                let parts = parts.map(|(value, name)| no_multiple(theory, &value, name));
                vec![Formula::Any(parts.into())]
            }
            Self::After(rows, flags) => {
                let (row, flag) = (Slot::of(theory, rows, ""), Slot::of(theory, flags, ""));
                let ([position], [number]) = (&row.indices[..], &flag.indices[..]) else { return Vec::new() };
                let before = number.sub(position).sub(&Poly::number(1));
                theory.facts.push(Formula::product(&before, &row.strides[0]));
                vec![Formula::below(position, number), Formula::below(&flag.offset, &row.end())]
            }
            Self::Carried(row, place) => {
                let byte = theory.byte("byte");
                let (at, number) = (theory.streamed(place, &byte), theory.streamed(&BLOCK_OF, &byte));
                let (base, bytes) = (theory.poly(&row.base), theory.poly(&row.bytes));
                let [blocks] = row.axes else { return Vec::new() };
                let (count, stride) = (theory.poly(&blocks.extent), theory.poly(&blocks.stride));
                let start = base.add(&number.mul(&stride));
                let outside = [
                    Formula::at_most(&count, &number),
                    Formula::below(&at, &start),
                    Formula::at_most(&start.add(&bytes), &at),
                ];
                vec![Formula::Any(outside.into())]
            }
            Self::Rising(place) => {
                let [before, byte] = ["before", "byte"].map(|name| theory.byte(name));
                let [first, second] = [&before, &byte].map(|byte| theory.streamed(place, byte));
                vec![Formula::below(&before, &byte), Formula::at_most(&second, &first)]
            }
            Self::Whole(field, place) => {
                // In a record that is not cut into blocks a field is where its bytes are in the stream.
                let plain = Kind { protocol: Protocol::FullmeshV1, ..theory.kind };
                let start =
                    theory.poly_of(&field.offset, &mut |theory, quantity| match quantity.definition(plain) {
                        Some(formula) => theory.poly(&formula),
                        None => theory.quantity(quantity),
                    });
                let (offset, size) = (theory.poly(&field.offset), theory.poly(&field.size));
                let inside = theory.index("inside".to_owned(), &size);
                let at = theory.streamed(place, &start.add(&inside));
                let in_field = offset.add(&inside);
                vec![Formula::Any(vec![Formula::below(&at, &in_field), Formula::below(&in_field, &at)])]
            }
            Self::Fits(formula, bits) => {
                let value = theory.poly(formula);
                vec![Formula::at_most(&Poly::number(1 << bits), &value)]
            }
            Self::Addressed(row, bits) => {
                let limit = Poly::number(1 << bits);
                let all =
                    rules::addressable(theory.kind).map(|bytes| Formula::below(&theory.poly(&bytes), &limit));
                let mut all: Vec<_> = all.collect();
                all.push(Formula::at_most(&limit, &theory.poly(&row.named.room())));
                all
            }
        }
    }
}

/// Returns whether two rows may have bytes in common.
fn may_share(a: Named, b: Named) -> bool {
    SHARED.iter().any(|sharing| sharing.rows == [a, b] || sharing.rows == [b, a])
}

/// Returns whether two rows are measured from the same place.
fn same_memory(a: &Row, b: &Row) -> bool {
    a.region == b.region && a.named.inside() == b.named.inside()
}

/// Whether a field is part of the stream that blocks carry, of which it is not one piece.
fn is_in_stream(kind: Kind, row: &Row, field: &FieldRow) -> bool {
    let is_record = row.named == Named::DispatchRecords;
    kind.protocol == Protocol::FullmeshV2
        && is_record
        && matches!(field.name, FieldName::Data | FieldName::Block)
}

/// Adds the claims about the fields of a row, and about the rows inside it.
fn of_fields(kind: Kind, row: Row, rows: &[Row], all: &mut Vec<Claim>) {
    // Those of groups in which counts have flags of their own, too.
    let kind = Kind { mode: Mode { separate: true, ..kind.mode }, ..kind };
    let fields = row.named.field_rows().filter(|field| field.when.may_hold(kind));
    let fields: Vec<_> = fields.filter(|field| !is_in_stream(kind, &row, field)).copied().collect();
    for (n, field) in fields.iter().enumerate() {
        if field.when != When::ScaledResults {
            all.push(Claim::Inside(row, *field, Results::Plain));
        }
        if row.named == Named::CombineRows {
            all.push(Claim::Inside(row, *field, Results::Scaled));
        }
        let is_word = |event: &Event| event.word == row.named && event.field == Some(field.name);
        if EVENTS.iter().any(is_word) {
            all.push(Claim::Words(row, *field));
        }
        all.extend(fields[n + 1..].iter().map(|other| Claim::Beside(row, [*field, *other])));
        // Fields of a record are in its blocks, beside their flags.
        let inner = rows.iter().filter(|inner| inner.named.inside().contains(&row.named));
        let inner = inner.filter(|inner| inner.named != Named::Blocks && !may_be_field(inner.named, field));
        all.extend(inner.map(|inner| Claim::Clear(row, *field, *inner)));
    }
}

/// Whether a row inside slots may have the bytes of a field: in a window of the other operator, or as the field itself.
fn may_be_field(inner: Named, field: &FieldRow) -> bool {
    match field.name {
        FieldName::Flag1 => matches!(inner, Named::WindowRows | Named::CombineFlags),
        FieldName::Flag => inner == Named::BlockFlags,
        _ => false,
    }
}

/// Adds every part of a formula that is computed, once.
fn parts(formula: &Expr<Quantity>, all: &mut Vec<Expr<Quantity>>) {
    match *formula {
        Expr::Number(_) | Expr::Of(_) => return,
        Expr::Ceil(a, _) => parts(a, all),
        Expr::Sum(a, b)
        | Expr::Product(a, b)
        | Expr::Less(a, b)
        | Expr::Over(a, b)
        | Expr::Min(a, b)
        | Expr::Max(a, b) => [a, b].into_iter().for_each(|part| parts(part, all)),
    }
    if !all.contains(formula) {
        all.push(*formula);
    }
}

/// All claims about these rows.
pub fn claims(kind: Kind, rows: &[Row]) -> Vec<Claim> {
    let mut all = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        all.push(Claim::Within(*row));
        // Slots of a line begin at lines, so no two of them share one.
        let unit = match row.named {
            Named::DispatchStatus | Named::CombineStatus => kind.mode.slots.bytes(),
            named => named.alignment(),
        };
        all.push(Claim::Aligned(*row, unit));
        // What is inside another is addressed with that one.
        if row.named.inside().is_empty() {
            all.push(Claim::Addressed(*row, 31));
        }
        let axes = (0..row.axes.len()).filter(|&axis| row.axes[axis].index != Index::Owner);
        all.extend(axes.map(|axis| Claim::Found(*row, axis)));
        of_fields(kind, *row, rows, &mut all);
        for other in &rows[n..] {
            // Flags that follow any number of rows are one flag of a window.
            let is_one = row.named == other.named
                && (row.axes.is_empty() || row.axes.iter().any(|axis| axis.index == Index::Rows));
            if same_memory(row, other) && !may_share(row.named, other.named) && !is_one {
                all.push(Claim::Apart(*row, *other));
            }
        }
    }
    let named = |named: Named| rows.iter().find(|row| row.named == named).copied();
    if let Some(blocks) = named(Named::Blocks) {
        all.extend([Claim::Carried(blocks, BYTE), Claim::Rising(BYTE)]);
        let fields = Named::DispatchRecords.field_rows();
        let whole = fields.filter(|field| matches!(field.name, FieldName::Scale | FieldName::Triple));
        all.extend(whole.map(|field| Claim::Whole(*field, BYTE)));
    }
    for (before, flags) in
        [(Named::WindowRecords, Named::DispatchFlags), (Named::WindowRows, Named::CombineFlags)]
    {
        all.extend(named(before).zip(named(flags)).map(|(before, flags)| Claim::After(before, flags)));
    }
    let mut formulas = Vec::new();
    for quantity in Quantity::ALL {
        quantity.definition(kind).iter().for_each(|formula| parts(formula, &mut formulas));
    }
    for row in rows {
        let axes = row.axes.iter().flat_map(|axis| [axis.extent, axis.stride]);
        let fields = row.named.field_rows().flat_map(|field| [field.offset, field.size]);
        axes.chain([row.base, row.bytes]).chain(fields).for_each(|formula| parts(&formula, &mut formulas));
    }
    all.extend(formulas.into_iter().map(|formula| Claim::Fits(formula, 64)));
    all.extend(COUNTED.iter().map(|formula| Claim::Fits(*formula, 32)));
    all
}

/// A question for each claim about all shapes of a theory, in their order. Each must have the answer *unsat*.
pub fn questions(theory: &Theory, claims: &[Claim]) -> String {
    let mut script = Script::new(theory);
    for claim in claims {
        let mut theory = theory.clone();
        let refuted = claim.refuted(&mut theory);
        script.ask(&theory, &claim.to_string(), &refuted, "");
    }
    script.text
}
