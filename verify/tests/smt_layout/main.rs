//! The memory of every legal shape: the table is proved right by two solvers, and a table that is wrong is refuted by a shape
//! that `kernel-core` confirms.

mod eval;
mod shares;
mod stream;

use eval::{Values, assertions, holds, mistakes, model, number, read};
use std::collections::BTreeMap;
use veriep_core::layout::affine::{Index, Mode, Named};
use veriep_core::layout::expr::Expr;
use veriep_core::layout::field::FieldRow;
use veriep_core::layout::quantity::{Kind, Memory, Quantity};
use veriep_core::layout::table::{Axis, Row, TABLE, Writer};
use veriep_core::protocol::Choices;
use veriep_core::shape::{BatchSizes, Buffer, Config, Limits, Protocol, Shape};
use veriep_core::units::RankId;
use veriep_verify::report;
use veriep_verify::smt::layout::poly::Poly;
use veriep_verify::smt::layout::script::{Script, term};
use veriep_verify::smt::layout::theory::{Formula, Theory};
use veriep_verify::smt::layout::{Claim, claims, kinds, questions, rows};
use veriep_verify::smt::z3::{self, Solver, Verdict};

/// Asks a solver for all claims about one kind of group, and returns those that it does not prove, of how many.
fn open_claims(solver: Solver, theory: &Theory) -> (Vec<(String, Verdict)>, usize) {
    let kind = theory.kind;
    let claims = claims(kind, &rows(kind));
    let answer = z3::run_by(solver, &questions(theory, &claims)).unwrap_or_else(|why| panic!("{why}"));
    let all = claims.len();
    assert_eq!(answer.verdicts.len(), all, "{theory}: {} answers too few", solver.name());
    let open = claims.iter().zip(answer.verdicts).filter(|(_, verdict)| *verdict != Verdict::Unsat);
    let open: Vec<_> = open.map(|(claim, verdict)| (claim.to_string(), verdict)).collect();
    let result = format!("{} of {all} claims, {:.1?}", all - open.len(), answer.took);
    report::line(solver.name(), &format!("memory of {theory}"), &result);
    (open, all)
}

fn prove_all(protocol: Protocol) {
    for theory in kinds().into_iter().filter(|kind| kind.protocol == protocol).flat_map(Theory::cases) {
        let (open, _) = open_claims(Solver::Z3, &theory);
        assert!(open.is_empty(), "{theory}: not proved: {open:#?}");
    }
}

#[test]
fn the_memory_of_every_legal_shape_of_fullmesh_v1_is_as_the_table_says() {
    prove_all(Protocol::FullmeshV1);
}

#[test]
fn the_memory_of_every_legal_shape_of_fullmesh_v2_is_as_the_table_says() {
    prove_all(Protocol::FullmeshV2);
}

#[test]
fn the_memory_of_every_legal_shape_of_a2_is_as_the_table_says() {
    prove_all(Protocol::Fullmesh);
}

#[test]
fn the_memory_of_every_legal_shape_of_the_hierarchy_is_as_the_table_says() {
    prove_all(Protocol::Hierarchy);
}

/// It has three seconds for each claim, and finds some of them hard.
#[test]
fn another_solver_refutes_no_claim_of_the_memory_and_proves_nearly_all() {
    for theory in kinds().into_iter().flat_map(Theory::cases) {
        let (open, all) = open_claims(Solver::Cvc5, &theory);
        assert!(open.iter().all(|(_, verdict)| *verdict == Verdict::Unknown), "{theory}: {open:#?}");
        assert!(20 * open.len() < all, "{theory}: {open:#?}");
    }
}

/// Different writers then have different slots, which are apart.
#[test]
fn each_writer_of_a_slot_is_named_by_an_index_or_by_what_was_routed() {
    let mut routed = Vec::new();
    for row in TABLE {
        let outer = row.named.inside().iter().filter_map(|outer| outer.row());
        let indices = outer.chain([row]).flat_map(|row| row.axes).map(|axis| axis.index);
        match row.writer {
            Writer::By(index) => assert!(indices.clone().any(|of| of == index), "{row:?}"),
            Writer::Own | Writer::TpPeer => {}
            // The pair of a slot has one expert, a granted row one source.
            Writer::Expert | Writer::Granted => routed.push(row.named),
        }
    }
    let pairs = [Named::CombineStatus, Named::CombineRows, Named::ReturnedSlots];
    let granted = [Named::Rows, Named::Infos, Named::OverwrittenRows];
    assert_eq!(routed.len(), pairs.len() + granted.len());
    assert!(pairs.iter().chain(&granted).all(|named| routed.contains(named)), "{routed:?}");
}

/// Random numbers, xorshift.
struct Random(u64);

impl Random {
    fn pick(&mut self, from: i64, to: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from + ((self.0 >> 20) % (to - from + 1).cast_unsigned()).cast_signed()
    }

    /// A number of any magnitude.
    fn spread(&mut self, to: i64) -> i64 {
        let bits = self.pick(0, i64::from(to.ilog2()));
        self.pick(1, to.min((2 << bits) - 1))
    }
}

/// A legal shape of any protocol, if the numbers make one.
fn any_shape(random: &mut Random) -> Option<Shape> {
    let alg = [Protocol::FullmeshV1, Protocol::FullmeshV2, Protocol::Fullmesh, Protocol::Hierarchy];
    let comm_alg = alg[random.pick(0, 3) as usize];
    let is_a3 = matches!(comm_alg, Protocol::FullmeshV1 | Protocol::FullmeshV2);
    let shared = if is_a3 { random.pick(0, 4) } else { 0 };
    let shared_ranks = shared * random.pick(0, 3);
    let near = random.pick(1, 8);
    let moe_ranks =
        if comm_alg == Protocol::Hierarchy { near * random.spread(8) } else { random.spread(200) };
    let local = random.spread(24);
    let k = random.pick(1, 16).min(moe_ranks * local);
    let h = random.spread(20_000);
    let config = Config {
        comm_alg,
        ep_world_size: moe_ranks + shared_ranks,
        server_ranks: near,
        moe_expert_num: moe_ranks * local,
        shared_expert_num: if shared_ranks == 0 { 0 } else { shared },
        shared_expert_rank_num: shared_ranks,
        tp_world_size: if local == 1 && comm_alg == Protocol::FullmeshV1 { random.pick(1, 2) } else { 0 },
        k,
        h: if is_a3 { h } else { 8 * (h / 8 + 1) },
        bs: BatchSizes::Uniform(random.spread(600)),
        quant_mode: 2 * random.pick(0, 1),
        comm_quant_mode: 2 * random.pick(0, 1),
        port_offset: if is_a3 { 512 * random.pick(0, 3) } else { 0 },
        aiv_num: random.pick(1, 48),
        ..Config::default()
    };
    let required_mb = Buffer::with(&config, Limits::None).required_mb;
    let hccl_buffsize_mb = i64::try_from(required_mb).ok()? + random.pick(0, 2);
    Shape::new(&Config { hccl_buffsize_mb, ..config }, Limits::None).ok()
}

/// What a printed script says, with the terms of a theory's formulas.
struct Printed {
    theory: Theory,
    script: Vec<eval::Tree>,
    terms: Vec<(Expr<Quantity>, eval::Tree)>,
}

impl Printed {
    fn new(mut theory: Theory) -> Self {
        let kind = theory.kind;
        let mut formulas: Vec<_> = Quantity::ALL.into_iter().filter_map(|of| of.definition(kind)).collect();
        for row in rows(kind) {
            formulas.extend([row.base, row.bytes, row.named.room()]);
            formulas.extend(row.axes.iter().flat_map(|axis| [axis.extent, axis.stride]));
            formulas.extend(row.named.field_rows().flat_map(|field| [field.offset, field.size]));
        }
        let term_of = |formula: &Expr<Quantity>, theory: &mut Theory| {
            let poly = theory.poly(formula);
            read(&term(theory, &poly)).remove(0)
        };
        let terms = formulas.iter().map(|formula| (*formula, term_of(formula, &mut theory))).collect();
        Self { script: read(&Script::new(&theory).text), theory, terms }
    }

    /// Whether a memory is of the kind and the choices of the theory.
    fn is_of(&self, memory: &Memory<'_>) -> bool {
        let chosen =
            |(quantity, value): &(Quantity, Expr<Quantity>)| quantity.value(memory) == memory.value(value);
        Kind { mode: Mode { separate: false, ..memory.mode }, ..Kind::of(memory.shape, memory.mode) }
            == self.theory.kind
            && self.theory.choices.iter().all(chosen)
    }

    /// The variables of the script for a memory.
    fn values(&self, memory: &Memory<'_>) -> Values {
        let numbers = self.theory.values(&|quantity| quantity.value(memory));
        self.theory.variables.iter().map(|variable| variable.name.clone()).zip(numbers).collect()
    }

    /// Compares every term with the number of `kernel-core`, and finds everything true that the script assumes; returns how many
    /// terms there are.
    fn agrees(&self, memory: &Memory<'_>) -> usize {
        let values = self.values(memory);
        for (formula, term) in &self.terms {
            let (printed, of_core) = (number(term, &values), memory.value(formula).into());
            assert_eq!(printed, of_core, "{formula:?} of {:?}", memory.shape);
        }
        for assertion in assertions(&self.script) {
            assert!(holds(assertion, &values), "{assertion:?} of {:?}", memory.shape);
        }
        self.terms.len()
    }
}

#[test]
fn printed_terms_are_what_the_core_computes_and_all_that_is_assumed_holds() {
    let all: Vec<_> = kinds().into_iter().flat_map(Theory::cases).map(Printed::new).collect();
    let (mut random, mut shapes, mut terms) = (Random(0x5EED_5EED), 0, 0);
    let mut seen = vec![0; all.len()];
    while shapes < 3000 {
        let Some(shape) = any_shape(&mut random) else { continue };
        shapes += 1;
        let modes: Vec<_> = Choices::all(&shape).map(|choices| choices.mode()).collect();
        let mode = modes[random.pick(0, modes.len() as i64 - 1) as usize];
        for rank in [0, shape.ep_world_size() - 1].map(RankId) {
            // A memory may be of several theories: with one expert on each rank, for example.
            let memory =
                Memory { shape: &shape, mode: Mode { landings: mode.landings.min(1), ..mode }, rank };
            let of: Vec<_> = (0..all.len()).filter(|&n| all[n].is_of(&memory)).collect();
            assert!(!of.is_empty(), "no theory has {shape:?} with {mode:?}");
            for n in of {
                terms += all[n].agrees(&memory);
                seen[n] += 1;
            }
        }
    }
    report::line(
        "printer",
        "terms of the memory",
        &format!("{terms} compared, of {shapes} shapes; by theory {seen:?}"),
    );
    assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
}

/// A term with a mistake has another value than the formula for some shape, except for at most 1 %. Assumptions with a mistake
/// are counted: false for some shape, or true for all, which does not show that they are weaker than they were.
#[test]
fn mistakes_of_the_printer_are_seen() {
    let all: Vec<_> = kinds().into_iter().flat_map(Theory::cases).map(Printed::new).collect();
    let mut random = Random(0x0B5E_55ED);
    let shapes: Vec<_> = (0..4000).filter_map(|_| any_shape(&mut random)).collect();
    let (mut terms, mut assumptions, mut true_for_all) = (BTreeMap::new(), BTreeMap::new(), 0);
    let mut unseen = Vec::new();
    for printed in &all {
        let mut samples = Vec::new();
        for shape in &shapes {
            let modes = Choices::all(shape).map(|choices| choices.mode());
            let memories = modes.map(|mode| {
                let mode = Mode { landings: mode.landings.min(1), ..mode };
                Memory { shape, mode, rank: RankId(shape.ep_world_size() - 1) }
            });
            samples.extend(memories.filter(|memory| printed.is_of(memory)).take(1));
        }
        samples.truncate(60);
        assert!(samples.len() > 5, "{}: {} shapes", printed.theory, samples.len());
        let samples: Vec<_> = samples.iter().map(|memory| (memory, printed.values(memory))).collect();
        for (formula, term) in &printed.terms {
            for (kind, wrong) in mistakes(term) {
                let differs = |(memory, values): &(&Memory<'_>, Values)| {
                    number(&wrong, values) != i128::from(memory.value(formula))
                };
                match samples.iter().any(differs) {
                    true => *terms.entry(kind).or_insert(0) += 1,
                    false => unseen.push(format!("{}: {kind}: {formula:?} as {wrong:?}", printed.theory)),
                }
            }
        }
        for assertion in assertions(&printed.script) {
            for (kind, wrong) in mistakes(assertion) {
                if samples.iter().any(|(_, values)| !holds(&wrong, values)) {
                    *assumptions.entry(kind).or_insert(0) += 1;
                } else {
                    true_for_all += 1;
                }
            }
        }
    }
    report::line("printer", "mistakes in terms, seen", &format!("{terms:?}"));
    report::line(
        "printer",
        "mistakes in assumptions, seen",
        &format!("{assumptions:?}; true for all {true_for_all}"),
    );
    // A factor may be the same in all shapes of a theory.
    let seen: usize = terms.values().sum();
    report::line("printer", "mistakes in terms, not seen", &format!("{} of {seen}", unseen.len()));
    assert!(100 * unseen.len() < seen, "{unseen:#?}");
    assert!(terms.len() > 5 && assumptions.len() > 6, "{terms:?} {assumptions:?}");
}

/// A table with a mistake, and the rows of the claim that it breaks.
struct Twin {
    name: &'static str,
    kind: usize,
    row: Named,
    change: fn(&mut Row),
    breaks: [Named; 2],
}

/// Changes one index of a row.
fn axis(row: &mut Row, index: Index, change: impl Fn(&mut Axis)) {
    let mut axes = row.axes.to_vec();
    axes.iter_mut().filter(|axis| axis.index == index).for_each(change);
    row.axes = axes.leak();
}

const TWINS: &[Twin] = &[
    Twin {
        name: "records one unit too close",
        kind: 0,
        row: Named::DispatchRecords,
        change: |row| {
            axis(row, Index::Slot, |axis| {
                axis.stride = Expr::Less(&Expr::Of(Quantity::RecordPitch), &Expr::Number(512));
            });
        },
        breaks: [Named::DispatchRecords; 2],
    },
    Twin {
        name: "records of an expert without room for max_bs",
        kind: 0,
        row: Named::DispatchRecords,
        change: |row| axis(row, Index::LocalExpert, |axis| axis.stride = Expr::Of(Quantity::RecordPitch)),
        breaks: [Named::DispatchRecords; 2],
    },
    Twin {
        name: "records where the rows of combine are",
        kind: 0,
        row: Named::DispatchRecords,
        change: |row| row.base = Expr::Number(0),
        breaks: [Named::CombineRows, Named::DispatchRecords],
    },
    Twin {
        name: "status of combine without shared columns",
        kind: 0,
        row: Named::CombineStatus,
        change: |row| axis(row, Index::Token, |axis| axis.stride = Expr::Number(32)),
        breaks: [Named::CombineStatus; 2],
    },
    Twin {
        name: "selectors of combine moved down",
        kind: 0,
        row: Named::CombineSelectors,
        change: |row| row.base = Expr::Number(780 << 10),
        breaks: [Named::DispatchSelectors, Named::CombineSelectors],
    },
    Twin {
        name: "infos begin before the rows end",
        kind: 2,
        row: Named::Infos,
        change: |row| row.base = Expr::Less(&Expr::Of(Quantity::LandingInfos), &Expr::Number(16)),
        breaks: [Named::Rows, Named::Infos],
    },
    Twin {
        name: "windows of peers one unit too close",
        kind: 5,
        row: Named::WindowsIn,
        change: |row| {
            axis(row, Index::Peer, |axis| {
                axis.stride = Expr::Less(&Expr::Of(Quantity::RankWindow), &Expr::Number(512));
            });
        },
        breaks: [Named::WindowsIn; 2],
    },
    Twin {
        name: "near slots of a source without room for max_bs",
        kind: 6,
        row: Named::NearSlots,
        change: |row| axis(row, Index::Source, |axis| axis.stride = Expr::Of(Quantity::NearSlot)),
        breaks: [Named::NearSlots; 2],
    },
    Twin {
        name: "streams one byte too close",
        kind: 7,
        row: Named::StreamsIn,
        change: |row| {
            axis(row, Index::Server, |axis| {
                axis.stride = Expr::Less(&Expr::Of(Quantity::StreamBytes), &Expr::Number(1));
            });
        },
        breaks: [Named::StreamsIn; 2],
    },
    Twin {
        name: "entries of sent pairs without room for k",
        kind: 2,
        row: Named::SentRows,
        change: |row| axis(row, Index::Token, |axis| axis.stride = Expr::Number(4)),
        breaks: [Named::SentRows; 2],
    },
    Twin {
        name: "entries of pairs with shared experts behind one entry for each token",
        kind: 2,
        row: Named::SharedSentRows,
        change: |row| row.base = Expr::Product(&Expr::Of(Quantity::Tokens), &Expr::Number(4)),
        breaks: [Named::SentRows, Named::SharedSentRows],
    },
    Twin {
        name: "counts of the TP peer one entry early",
        kind: 1,
        row: Named::PeerRecvCounts,
        change: |row| row.base = Expr::Less(Box::leak(Box::new(row.base)), &Expr::Number(4)),
        breaks: [Named::EpRecvCounts, Named::PeerRecvCounts],
    },
];

/// What keeps a refuting shape small, so that real products are found, and its configuration plain: no port offset, and a shared
/// expert only if one is asked for. How long rows are, how large the window and how many the cores, is left to the solver.
fn small(theory: &mut Theory, has_shared: bool) -> Vec<Formula> {
    let mut facts = Vec::new();
    let shared = i128::from(has_shared);
    let fixed = [
        (Quantity::Ranks, 2 + shared),
        (Quantity::Owners, 2),
        (Quantity::LocalExpertNum, if theory.kind.has_tp { 1 } else { 2 }),
        (Quantity::Capacity, 3),
        (Quantity::K, 2),
        (Quantity::Columns, 2 + shared),
        (Quantity::ServerRanks, 1),
        (Quantity::PortSteps, 0),
        (Quantity::PortGap, 0),
        (Quantity::FirstOwner, shared),
        (Quantity::Areas, 1),
    ];
    for (quantity, value) in fixed {
        facts.push(Formula::equal(&theory.quantity(quantity), &Poly::number(value)));
    }
    facts.push(Formula::at_most(&theory.quantity(Quantity::ElementSteps), &Poly::number(1000)));
    let [tokens, capacity] = [Quantity::Tokens, Quantity::Capacity].map(|quantity| theory.quantity(quantity));
    facts.push(Formula::equal(&tokens, &capacity));
    let rows = theory.quantity(Quantity::ToPeer).mul(&theory.quantity(Quantity::Ranks));
    let most = theory.quantity(Quantity::RowsMax);
    facts.push(Formula::equal(&most, &rows));
    facts
}

/// The shape of a model.
fn shape_of(theory: &Theory, values: &Values) -> Shape {
    let get = |quantity: Quantity, other: i64| values.get(quantity.name()).map_or(other, |&n| n as i64);
    let near = get(Quantity::ServerRanks, 1);
    let ranks = get(Quantity::Ranks, near * get(Quantity::Servers, 1));
    let shared = get(Quantity::FirstOwner, 0);
    let is_quantised =
        theory.choices.iter().any(|choice| matches!(choice, (Quantity::Quantised, Expr::Number(1))));
    let steps = if matches!(theory.kind.protocol, Protocol::Fullmesh | Protocol::Hierarchy) { 8 } else { 1 };
    let config = Config {
        comm_alg: theory.kind.protocol,
        ep_world_size: ranks,
        server_ranks: near,
        moe_expert_num: (ranks - shared) * get(Quantity::LocalExpertNum, 1),
        shared_expert_num: shared,
        shared_expert_rank_num: shared,
        tp_world_size: if theory.kind.has_tp { 2 } else { 0 },
        k: get(Quantity::K, 1),
        h: steps * get(Quantity::ElementSteps, 1),
        bs: BatchSizes::Uniform(get(Quantity::Capacity, 1)),
        quant_mode: if is_quantised { 2 } else { 0 },
        hccl_buffsize_mb: get(Quantity::WindowMib, 1),
        aiv_num: get(Quantity::Cores, 1),
        ..Config::default()
    };
    Shape::new(&config, Limits::None).unwrap_or_else(|why| panic!("{config:?}: {why}"))
}

/// The bytes of a slot of a row at the indices of a model.
fn bytes(memory: &Memory<'_>, row: &Row, mark: &str, values: &Values) -> core::ops::Range<u64> {
    let mut at = memory.value(&row.base);
    for axis in row.axes {
        let mark = if axis.index == Index::Owner { "" } else { mark };
        let index = values[&format!("i_{}{mark}", axis.index.name())] as u64;
        assert!(index < memory.value(&axis.extent), "{axis:?}");
        at += index * memory.value(&axis.stride);
    }
    at..at + memory.value(&row.bytes)
}

/// The numbers of a small shape that refutes a claim, and its theory.
fn refuting(kind: Kind, name: &str, claim: &Claim, has_shared: bool) -> (Values, Theory) {
    // With as many experts on each rank as there are.
    let of_moe = |theory: &Theory| {
        !theory.choices.iter().any(|choice| matches!(choice, (Quantity::LocalExperts, Expr::Number(1))))
    };
    let found = Theory::cases(kind).into_iter().filter(of_moe).find_map(|mut theory| {
        let mut facts = small(&mut theory, has_shared);
        facts.extend(claim.refuted(&mut theory));
        let mut script = Script::exact(&theory);
        let names: Vec<_> = theory.variables.iter().map(|variable| variable.name.as_str()).collect();
        script.ask(&theory, name, &facts, &format!("(get-value ({}))\n", names.join(" ")));
        let answer = z3::run(&script.text).unwrap_or_else(|why| panic!("{why}"));
        (answer.verdicts == [Verdict::Sat]).then(|| (model(&answer.text), theory))
    });
    found.unwrap_or_else(|| panic!("{name}: not refuted"))
}

#[test]
fn tables_with_a_mistake_are_refuted_by_shapes_that_the_core_confirms() {
    for twin in TWINS {
        let kind = kinds()[twin.kind];
        let mut rows = rows(kind);
        rows.iter_mut().filter(|row| row.named == twin.row).for_each(twin.change);
        let is_broken =
            |claim: &Claim| matches!(claim, Claim::Apart(a, b) if [a.named, b.named] == twin.breaks);
        let claim = claims(kind, &rows).into_iter().find(is_broken).unwrap();
        let has_shared = twin.breaks.contains(&Named::SharedSentRows);
        let (values, theory) = refuting(kind, twin.name, &claim, has_shared);
        let shape = shape_of(&theory, &values);
        let memory = Memory { shape: &shape, mode: kind.mode, rank: RankId(shape.ep_world_size() - 1) };
        let Claim::Apart(a, b) = claim else { unreachable!() };
        let (one, two) = (bytes(&memory, &a, "_a", &values), bytes(&memory, &b, "_b", &values));
        report::line(
            "z3",
            &format!("twin: {}", twin.name),
            &format!("bytes {one:?} and {two:?}, h {}", shape.h()),
        );
        // What other ranks write is whole words.
        let end = |row: &Row, slot: &core::ops::Range<u64>| match row.writer {
            Writer::Own => slot.end,
            _ => slot.end.next_multiple_of(8),
        };
        assert!(one.start < end(&b, &two) && two.start < end(&a, &one), "{}: {one:?}, {two:?}", twin.name);
    }
}

/// Plants a mistake in a row, and says which claim must fall.
type Planted = (&'static str, fn(&mut Row), fn(Row) -> Claim);

const PLANTED: [Planted; 3] = [
    (
        "slots one byte too close",
        |row| {
            let shorter = Expr::Less(Box::leak(Box::new(row.bytes)), &Expr::Number(1));
            let innermost = row.axes.last().map(|axis| axis.index);
            innermost.into_iter().for_each(|index| axis(row, index, |axis| axis.stride = shorter));
        },
        |row| Claim::Apart(row, row),
    ),
    ("behind its memory", |row| row.base = row.named.room(), Claim::Within),
    (
        "one byte further",
        |row| row.base = Expr::Sum(Box::leak(Box::new(row.base)), &Expr::Number(1)),
        |row| Claim::Aligned(row, row.named.alignment()),
    ),
];

#[test]
fn no_row_with_a_planted_mistake_is_proved() {
    let mut seen = 0;
    for kind in kinds() {
        let theory = Theory::cases(kind).pop().unwrap();
        let has_several = |row: &Row| {
            let extents = row.axes.last().map(|axis| theory.clone().poly(&axis.extent).constant());
            extents.is_some_and(|extent| extent != Some(1))
        };
        let mut broken = Vec::new();
        for (row, (name, plant, claim)) in
            rows(kind).into_iter().flat_map(|row| PLANTED.map(|planted| (row, planted)))
        {
            let mut planted = row;
            plant(&mut planted);
            // Where there is one slot there is no second one, and any byte is a multiple of one.
            let is_mistake = match claim(planted) {
                Claim::Apart(..) => has_several(&row),
                Claim::Aligned(_, unit) => unit > 1,
                _ => true,
            };
            if is_mistake {
                broken.push((format!("{}: {name}", row.named.name()), claim(planted)));
            }
        }
        let (names, claims): (Vec<_>, Vec<_>) = broken.into_iter().unzip();
        let answer = z3::run(&questions(&theory, &claims)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(answer.verdicts.len(), names.len(), "{theory}");
        for (name, verdict) in names.iter().zip(answer.verdicts) {
            assert_ne!(verdict, Verdict::Unsat, "{theory}: {name}");
            seen += 1;
        }
    }
    report::line("z3", "mistakes planted in rows", &format!("{seen}, none of them proved"));
    assert!(seen > 300, "{seen}");
}

/// Claims about fields that have a mistake: after the slot, on the field before it, a word one byte further.
fn planted_in_fields(claim: &Claim) -> Option<(String, Claim)> {
    let moved = |field: &FieldRow, offset| FieldRow { offset, ..*field };
    let (name, planted) = match claim {
        Claim::Inside(row, field, results) => {
            ("behind the slot", Claim::Inside(*row, moved(field, row.bytes), *results))
        }
        Claim::Beside(row, [a, b]) => ("on another", Claim::Beside(*row, [*a, moved(b, a.offset)])),
        Claim::Words(row, field) => {
            let further = Expr::Sum(Box::leak(Box::new(field.offset)), &Expr::Number(1));
            ("one byte further", Claim::Words(*row, moved(field, further)))
        }
        _ => return None,
    };
    Some((format!("{claim}: {name}"), planted))
}

#[test]
fn no_field_with_a_planted_mistake_is_proved() {
    let mut seen = 0;
    for kind in kinds() {
        let theory = Theory::cases(kind).pop().unwrap();
        let broken = claims(kind, &rows(kind)).iter().filter_map(planted_in_fields).collect::<Vec<_>>();
        let (names, claims): (Vec<_>, Vec<_>) = broken.into_iter().unzip();
        let answer = z3::run(&questions(&theory, &claims)).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(answer.verdicts.len(), names.len(), "{theory}");
        for (name, verdict) in names.iter().zip(answer.verdicts) {
            assert_ne!(verdict, Verdict::Unsat, "{theory}: {name}");
            seen += 1;
        }
    }
    report::line("z3", "mistakes planted in fields", &format!("{seen}, none of them proved"));
    assert!(seen > 100, "{seen}");
}
