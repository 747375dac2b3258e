//! `verify/CLAIMS.md` says what is checked, and is made of what the checks themselves say: the searches of the explorer as
//! `explorer/counts.txt` has them, which each search asserts of itself, and the calls in the sources of all other tests.

use core::fmt::Write;
use snapbox::Data;
use snapbox::data::DataFormat;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use veriep_verify::defects::{DEFECTS, Loom, Row};

/// A test, and what it says.
#[derive(Default)]
struct Test {
    /// `file::name`.
    name: String,
    /// Or a helper of tests.
    is_test: bool,
    by_command: bool,
    literals: Vec<String>,
    /// The value of each local variable, by name.
    variables: BTreeMap<String, syn::Expr>,
    calls: Vec<Call>,
}

/// A call in which loom runs a model, or a helper does.
struct Call {
    function: String,
    /// The name of the model, if it is there.
    name: Option<String>,
    bound: Option<String>,
    /// How many executions it must have, if that is there.
    executions: Option<String>,
}

impl Test {
    /// Returns the value of a local variable, and any other expression unchanged.
    fn known<'e>(&'e self, of: &'e syn::Expr) -> &'e syn::Expr {
        match of {
            syn::Expr::Reference(of) => self.known(&of.expr),
            syn::Expr::Path(_) => self.variables.get(&text(of)).unwrap_or(of),
            _ => of,
        }
    }
}

impl Visit<'_> for Test {
    fn visit_lit_str(&mut self, literal: &syn::LitStr) {
        self.literals.push(literal.value());
    }

    fn visit_macro(&mut self, of: &syn::Macro) {
        if !of.path.is_ident("assert") {
            arguments(of).iter().for_each(|argument| self.visit_expr(argument));
        }
    }

    fn visit_local(&mut self, local: &syn::Local) {
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            self.variables.insert(name.ident.to_string(), (*init.expr).clone());
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        // Its argument is the message of a failure, not a model's name.
        if call.method != "contains" {
            visit::visit_expr_method_call(self, call);
        }
    }

    fn visit_expr_call(&mut self, call: &syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func
            && let Some(function) = path.path.get_ident()
        {
            let given: Vec<_> = call.args.iter().map(|argument| self.known(argument)).collect();
            let name = given.first().filter(|first| matches!(first, syn::Expr::Lit(_) | syn::Expr::Macro(_)));
            let bound = given.iter().map(|argument| text(argument)).find(|text| is_bound(text));
            let executions = given.iter().find(|argument| matches!(argument, syn::Expr::Range(_)));
            self.calls.push(Call {
                function: function.to_string(),
                name: name.map(|name| plain(&text(name))),
                bound,
                executions: executions.map(|range| text(range)),
            });
        }
        visit::visit_expr_call(self, call);
    }
}

fn is_bound(text: &str) -> bool {
    text == COMPLETE || text.ends_with(" preemptions")
}

const COMPLETE: &str = "every execution";

/// A literal with `{..}` in it as a reader of a table wants it.
fn plain(text: &str) -> String {
    text.replace(":?", "").replace(['{', '}'], "")
}

/// What `format!` and `vec!` hold.
fn arguments(of: &syn::Macro) -> Vec<syn::Expr> {
    let parsed = of.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated);
    parsed.into_iter().flatten().collect()
}

/// An argument as a reader of a table wants it.
fn text(argument: &syn::Expr) -> String {
    match argument {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => text.value(),
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_digits().to_owned(),
        syn::Expr::Reference(reference) => text(&reference.expr),
        syn::Expr::Macro(of) => arguments(&of.mac).first().map_or("?".to_owned(), text),
        syn::Expr::Range(range) => {
            let end = |end: &Option<Box<syn::Expr>>| end.as_deref().map_or(String::new(), text);
            format!("{} to {}", end(&range.start), end(&range.end))
        }
        syn::Expr::Path(path) => {
            let last = path.path.segments.last().unwrap().ident.to_string();
            if last == "Complete" { COMPLETE.to_owned() } else { last }
        }
        syn::Expr::Call(call) => match text(&call.func).as_str() {
            "Preemptions" => format!("{} preemptions", call.args.first().map_or(String::new(), text)),
            other => other.to_owned(),
        },
        _ => "?".to_owned(),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether a literal with `{..}` in it could have become the beginning of `name`.
fn made(literal: &str, name: &str) -> bool {
    let mut parts = literal.split('{').map(|part| part.rsplit('}').next().unwrap());
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap()) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = if part.is_empty() { "" } else { &rest[at + part.len()..] };
    }
    rest.is_empty() || rest.starts_with(", ")
}

/// The length of what is in a literal outside `{..}`.
fn fixed(literal: &str) -> usize {
    literal.split('{').map(|part| part.rsplit('}').next().unwrap().len()).sum()
}

/// The functions of a file or folder.
fn functions(path: &Path, all: &mut Vec<Test>) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        return entries.iter().for_each(|path| functions(path, all));
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return;
    }
    let file = syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap();
    let stem = path.file_stem().unwrap().to_str().unwrap();
    for item in &file.items {
        let syn::Item::Fn(function) = item else { continue };
        let has = |name: &str| function.attrs.iter().any(|attribute| attribute.path().is_ident(name));
        let name = format!("{stem}::{}", function.sig.ident);
        let mut test = Test { name, is_test: has("test"), by_command: has("ignore"), ..Test::default() };
        test.visit_block(&function.block);
        all.push(test);
    }
}

fn tests_of(folder: &str) -> Vec<Test> {
    let all: Vec<_> = functions_of(folder).into_iter().filter(|function| function.is_test).collect();
    assert!(!all.is_empty(), "{folder}: no tests");
    all
}

fn functions_of(folder: &str) -> Vec<Test> {
    let mut all = Vec::new();
    functions(&root().join(folder), &mut all);
    all
}

/// A search, as a line of counts.txt.
struct Search<'l> {
    name: &'l str,
    states: &'l str,
    cells: [&'l str; 6],
    broken: &'l str,
    end: &'l str,
    test: &'l str,
}

fn searches<'l>(counts: &'l str, tests: &'l [Test]) -> Vec<Search<'l>> {
    let rows = counts.lines().filter(|line| !line.starts_with('#'));
    let search = |line: &'l str| {
        let mut cells = line.split(" | ");
        let (name, size) = cells.next().unwrap().rsplit_once(": ").unwrap();
        let states = size.split_once(" states").unwrap().0;
        let [protocol, size, operators, memory, traffic, reuse, broken, end] = cells.collect::<Vec<_>>()[..]
        else {
            panic!("{line}: not as the head of counts.txt says; it also tells how lines are written anew")
        };
        let by = tests.iter().flat_map(|test| test.literals.iter().map(move |literal| (literal, test)));
        let by = by.filter(|(literal, test)| !test.by_command && made(literal, name));
        let longest = by.rev().max_by_key(|(literal, _)| fixed(literal));
        let test = longest.unwrap_or_else(|| panic!("{name}: no test makes such a search")).1;
        Search {
            name,
            states,
            cells: [protocol, size, operators, memory, traffic, reuse],
            broken,
            end,
            test: &test.name,
        }
    };
    rows.map(search).collect()
}

/// The first sentence of what a defect leaves out or bends.
fn sentence(row: &Row) -> &str {
    let first = row.what.trim().split_inclusive(['.', ';', ':']).next().unwrap();
    first.trim_end_matches(['.', ';', ':'])
}

/// A name of a test as a sentence.
fn words(test: &str) -> String {
    test.rsplit("::").next().unwrap().replace('_', " ")
}

const HEAD: &str = "# What is checked, and what was broken to see it fail

Every search, model, proof and negative test with its bounds. `cargo test -p veriep-verify --test claims` generates this
page and fails when it is stale; `SNAPSHOTS=overwrite` before it writes the page. [verified.md](../docs/doubt/verified.md)
says what the tools can and cannot see.

A test is `file::name`. Each part has the command that runs one of its tests; with `-- --nocapture` behind it, it prints what it has
looked at. A search of the explorer prints its model with the number of states and how it ends, a negative test's the shortest counterexample:

```text
explorer  2 ranks x 1 core, DC for any number of rounds, weak          10032 states, 20696 moves, 9 traffic matrices, 0.3 s: safe
explorer  no quiet, 1 core, weak                       780 states, 1324 moves, 9 traffic matrices, 0.0 s: UNSAFE after 16 events: ...
```

**N + 2** says whether an operator of the search reuses the memory of operator N; a *no* shows nothing about reuse.
Memory: *strong* lands effects at once, *weak* late and in any order that the contract leaves open. Traffic: *all* is every matrix of one
token a rank, idle ranks and own experts included. Every search of the first two tables asserts its row: the model, the states that it
visits, and how it ends.
";

fn page() -> String {
    let of_explorer = tests_of("verify/tests/explorer");
    let counts = fs::read_to_string(root().join("verify/tests/explorer/counts.txt")).unwrap();
    let searches = searches(&counts, &of_explorer);
    let mut page = HEAD.to_owned();
    matrix(&mut page, &searches);
    explorer(&mut page, &searches, &of_explorer);
    twins(&mut page, &searches);
    loom(&mut page);
    others(&mut page);
    around(&mut page);
    page
}

/// What is claimed of a part around the machines, and the test that carries it.
struct Around {
    claim: &'static str,
    bound: &'static str,
    file: &'static str,
    test: &'static str,
}

/// Each claim has one row: the test that falls first when it is broken.
const AROUND: [Around; 18] = [
    Around {
        claim: "slots and their fields do not overlap, lie in their memory, are aligned and found again from a place; no formula overflows",
        bound: "every legal shape, all protocols",
        file: "verify/tests/smt_layout/main.rs",
        test: "the_memory_of_every_legal_shape_of_fullmesh_v1_is_as_the_table_says",
    },
    Around {
        claim: "cores, relays and grants divide work and rows: each item is of one, none is left out",
        bound: "any numbers of cores, items, experts and rows; a rank's counts are taken as they are",
        file: "verify/tests/smt_layout/shares.rs",
        test: "no_row_is_of_two_sources_or_of_two_experts_and_none_is_left_out",
    },
    Around {
        claim: "each C call answers the code of its arguments, and a refusal changes nothing",
        bound: "97 000 calls over objects in every state; null, misaligned, short and foreign arguments",
        file: "kernel-core/capi/src/tests/model/mod.rs",
        test: "each_call_answers_as_the_model_has_it_and_a_refused_one_changes_nothing",
    },
    Around {
        claim: "numbers beyond 4 GiB pass through the C functions whole",
        bound: "one core over 9 GiB of sparse memory",
        file: "kernel-core/capi/src/tests/large.rs",
        test: "a_core_of_c_puts_rows_beyond_4_gib",
    },
    Around {
        claim: "every place of the largest configurations is in range",
        bound: "11 configurations of which no number can be raised, all modes",
        file: "kernel-core/src/layout/largest.rs",
        test: "every_place_of_the_largest_shapes_is_in_range_and_an_exact_number",
    },
    Around {
        claim: "groups at all limits compute what the reference says",
        bound: "a round of each layout over sparse memory",
        file: "host/group/tests/rounds/large.rs",
        test: "rounds_at_all_limits_of_a3_come_back",
    },
    Around {
        claim: "a fabric over raw memory reaches what each call names",
        bound: "each call, every region, own, near and far ranks",
        file: "kernel-core/src/fabric/raw/tests.rs",
        test: "every_call_reaches_the_memory_of_the_rank_and_region_that_it_names",
    },
    Around {
        claim: "the rules are those of a second account",
        bound: "100 000 configurations near bounds",
        file: "kernel-core/tests/rules_again.rs",
        test: "rules_and_predicate_agree_near_every_bound",
    },
    Around {
        claim: "exported numbers are the core's beyond 4 GiB, too",
        bound: "one configuration of 32-bit size in JSON and C",
        file: "host/cli/tests/program/export.rs",
        test: "places_beyond_4_gib_are_whole_in_json_and_in_c",
    },
    Around {
        claim: "a silent rank is named in time",
        bound: "cores per worker, silent rank and word, over threads",
        file: "host/group/tests/rounds/hangs.rs",
        test: "a_silent_rank_is_named_at_the_deadline_however_many_cores_a_worker_has",
    },
    Around {
        claim: "a killed or silent process is named in time, and SIGTERM ends a run at any time",
        bound: "2 to 4 processes",
        file: "host/cli/tests/program/hangs.rs",
        test: "a_term_ends_a_run_at_any_time",
    },
    Around {
        claim: "all processes that died are named",
        bound: "a second death while the others settle",
        file: "host/group/src/world/joined/tests.rs",
        test: "who_dies_shortly_after_another_is_named_with_it",
    },
    Around {
        claim: "ranks of a live group that call different operators are named, on every rank",
        bound: "3 ranks as threads; another operator, layer, tensor; numbers of calls are counted by each rank",
        file: "host/group/tests/rounds/live.rs",
        test: "calls_that_differ_are_named_on_every_rank",
    },
    Around {
        claim: "layers of other sizes share one memory",
        bound: "A3, three layers, 18 rounds on 4 ranks, one batch in flight",
        file: "host/group/tests/rounds/live.rs",
        test: "layers_of_other_sizes_share_one_memory",
    },
    Around {
        claim: "a batch of a loose group is combined twice or never with right sums",
        bound: "A3, 6 batches on 2 ranks",
        file: "host/group/tests/rounds/live.rs",
        test: "a_loose_group_combines_a_batch_twice_or_never",
    },
    Around {
        claim: "no verdict is yes where a search was cut, input incomplete or evidence ambiguous",
        bound: "one row for each such request of each subcommand",
        file: "host/cli/tests/program/verdicts.rs",
        test: "every_subcommand_has_the_verdict_that_its_situation_allows",
    },
    Around {
        claim: "dumps that contradict themselves or each other name no culprit",
        bound: "zeroed ranks, wrong experts, another case, unstated options",
        file: "host/cli/tests/program/contradictions.rs",
        test: "a_key_of_another_job_names_no_innocent",
    },
    Around {
        claim: "a record is believed only as far as its events bear it out",
        bound: "schedules, rounds, dead ranks, rows read, sums",
        file: "host/cli/tests/program/conform.rs",
        test: "a_header_that_the_record_does_not_bear_out_is_not_believed",
    },
];

fn around(page: &mut String) {
    page.push_str(
        "\n## Around the machines\n\nThe C interface, the host, layouts and rules. [seeded.md](../docs/doubt/seeded.md) has the bugs \
         that these tests were seen to catch.\n\n| claim | bound | test |\n|---|---|---|\n",
    );
    for Around { claim, bound, file, test } in AROUND {
        // Some are in a module of their file.
        let has_it = fs::read_to_string(root().join(file)).unwrap().contains(&format!("fn {test}("));
        assert!(has_it, "{file}: no test {test}");
        writeln!(page, "| {claim} | {bound} | `{test}` in `{file}` |").unwrap();
    }
}

/// A question of the matrix: which searches answer it.
struct Column {
    name: &'static str,
    answers: fn(&Asked<'_>) -> bool,
}

/// The parts of a search's cells.
struct Asked<'l> {
    ranks: &'l str,
    /// The order of the operators, without what is said of the model besides.
    order: &'l str,
    besides: &'l str,
}

const COLUMNS: [Column; 10] = [
    Column { name: "DC, 1 core", answers: |of| of.is_plain("2 x 1", "DC") },
    Column { name: "DC, 2 cores", answers: |of| of.is_plain("2 x 2", "DC") },
    Column { name: "DDCC, 1 core", answers: |of| of.is_plain("2 x 1", "DDCC") },
    Column { name: "DDCC, 2 cores", answers: |of| of.is_plain("2 x 2", "DDCC") },
    Column { name: "DC, 3 ranks", answers: |of| of.is_plain("3 x 1", "DC") },
    Column { name: "DDCC, 3 ranks", answers: |of| of.is_plain("3 x 1", "DDCC") },
    Column { name: "halves", answers: |of| of.order.contains("Ds") },
    Column { name: "numbered calls", answers: |of| of.besides.contains("calls numbered") },
    Column { name: "busy memory", answers: |of| of.besides.contains("busy") },
    Column { name: "steps of the proved model", answers: |of| of.besides.contains("the theorem's model") },
];

impl Asked<'_> {
    fn is_plain(&self, ranks: &str, order: &str) -> bool {
        self.ranks == ranks && self.order == order && self.besides.is_empty()
    }
}

const MATRIX: &str = "
## One screen

Searches of the explorer over weak memory that find nothing wrong: the most rounds of any. **any**: any number of rounds, since no new state
turns up; **3**: three rounds; *-*: not searched. A star: not every routing, as the table below says. Two ranks unless the column says more; one token and one expert a rank, or a few. Fewer than three rounds of `DC` on A3 use no memory again.

";

/// What is searched of each protocol, and how far.
fn matrix(page: &mut String, searches: &[Search<'_>]) {
    // By protocol and column: the most rounds, and whether with every routing.
    let mut rows: BTreeMap<&str, [(u32, bool); COLUMNS.len()]> = BTreeMap::new();
    for search in searches.iter().filter(|s| s.broken == "None" && s.end == "safe") {
        let [protocol, ranks, operators, memory, routing, _] = search.cells;
        if protocol.contains("partitions") || !memory.starts_with("weak") {
            continue;
        }
        let (what, besides) = operators.split_once(", ").unwrap_or((operators, ""));
        let (order, rounds) = match what.strip_suffix(" for any number of rounds") {
            Some(order) => (order, u32::MAX),
            None => what.rsplit_once(" x ").map(|(order, times)| (order, times.parse().unwrap())).unwrap(),
        };
        let row = rows.entry(protocol.split(", ").next().unwrap()).or_default();
        let asked = Asked { ranks, order, besides };
        for (most, _) in row.iter_mut().zip(&COLUMNS).filter(|(_, column)| (column.answers)(&asked)) {
            *most = (rounds, routing == "all").max(*most);
        }
    }
    let names = COLUMNS.map(|column| column.name).join(" | ");
    write!(page, "{MATRIX}| protocol | {names} |\n|---|{}\n", "---|".repeat(COLUMNS.len())).unwrap();
    for (protocol, rounds) in rows {
        let cells = rounds.map(|(most, every_routing)| {
            let star = if most == 0 || every_routing { "" } else { "\\*" };
            match most {
                0 => "-".to_owned(),
                u32::MAX => format!("any{star}"),
                most => format!("{most}{star}"),
            }
        });
        writeln!(page, "| {protocol} | {} |", cells.join(" | ")).unwrap();
    }
    page.push_str(
        "\nProved for any number of ranks and rounds of a model of whole operators, not of halves, all protocols: if a gate comes between \
         two uses of a slot, no row or flag is overwritten, lost or read early, and some rank can go on ([theorem](#any-number-of-ranks-z3-over-a-model-of-operators-flags-and-rows)). Proved for every \
         legal shape: areas do not overlap ([memory](#any-legal-shape-z3-and-cvc5-over-the-table-of-the-memory)). Searched for \
         orderings of processors: [loom](#loom-every-execution-or-those-with-few-preemptions). Assumed: the \
         [contract of the memory](#the-contract-of-a-memory).\n",
    );
}

fn explorer(page: &mut String, searches: &[Search<'_>], tests: &[Test]) {
    page.push_str("\n## Explorer: every state\n\n`cargo test -p veriep-verify --test explorer TEST`. Nothing is overwritten, lost, read early, \
        stuck, wrong, or circling without end.\n\n| protocol | ranks x cores | operators | memory | traffic | N + 2 | states | test |\n\
        |---|---|---|---|---|---|---|---|\n");
    let mut rows: Vec<_> = searches.iter().filter(|s| s.broken == "None" && s.end == "safe").collect();
    // The same model may be searched for another reason, too.
    let aside = |s: &Search<'_>| {
        ["agreement", "museum", "orders", "small"].iter().any(|file| s.test.starts_with(file))
    };
    rows.sort_by_key(|s| (s.cells, aside(s), s.test));
    rows.dedup_by_key(|s| s.cells);
    for s in rows {
        let cells = s.cells.join(" | ");
        writeln!(page, "| {cells} | {} | `{}` |", s.states, s.test).unwrap();
    }
    page.push_str("\nBy command only (`-- --ignored --nocapture TEST`), so without a number here:\n\n");
    for test in tests.iter().filter(|test| test.by_command) {
        let mut names: Vec<_> =
            test.literals.iter().filter(|text| text.contains(", ")).map(|text| plain(text)).collect();
        names.dedup();
        writeln!(page, "- `{}`: {}", test.name, names.join("; ")).unwrap();
    }
}

fn twins(page: &mut String, searches: &[Search<'_>]) {
    page.push_str("\n## Explorer: negative tests\n\nThe protocol, the memory or the driver with one required step left out, or with too few partitions. *Harmless* are \
        the models in which nothing of it is seen.\n");
    let docs: BTreeMap<_, _> = DEFECTS.iter().map(|row| (row.name(), sentence(row))).collect();
    let mut by_twin: BTreeMap<&str, Vec<&Search<'_>>> = BTreeMap::new();
    for search in searches.iter().filter(|s| s.broken != "None" || s.end != "safe") {
        by_twin.entry(search.broken).or_default().push(search);
    }
    for (twin, mut searches) in by_twin {
        let (name, what) = match twin {
            "None" => ("Too few partitions, or areas", "As many partitions as the table says"),
            _ => (twin, docs[twin]),
        };
        assert!(searches.iter().any(|s| s.end != "safe"), "{twin}: nothing catches it");
        write!(page, "\n### {name}\n\n{what}.\n\n| protocol | ranks x cores | operators | memory | traffic | found | test |\n").unwrap();
        page.push_str("|---|---|---|---|---|---|---|\n");
        searches.sort_by_key(|s| (s.end == "safe", s.cells, s.test));
        searches.dedup_by_key(|s| (s.cells, s.end));
        for s in searches {
            let [protocol, size, operators, memory, traffic, _] = s.cells;
            let end = if s.end == "safe" { "harmless" } else { s.end };
            let cells = [protocol, size, operators, memory, traffic, end].join(" | ");
            writeln!(page, "| {cells} | `{}` |", s.test).unwrap();
            assert!(["safe", "not"].contains(&s.end) || s.end.starts_with(char::is_uppercase), "{}", s.name);
        }
    }
}

fn loom(page: &mut String) {
    page.push_str("\n## Loom: every execution, or those with few preemptions\n\n`cargo test -p veriep-verify --test loom TEST`. A name says \
        operators and traffic; each test demands that a model has as many executions. Not under loom: the A2 hierarchy, dispatch of \
        TP domains with several EP ranks or cores, \
        shared experts, masks of pairs, elastic domains.\n\n| model | bound | executions | run | test |\n\
        |---|---|---|---|---|\n");
    let all = functions_of("verify/tests/loom");
    let is_twin = |test: &&&Test| test.name.contains("catches");
    let tests: Vec<_> = all.iter().filter(|function| function.is_test).collect();
    for test in tests.iter().filter(|test| !is_twin(test)) {
        let run = if test.by_command { "by command" } else { "by default" };
        let mut row = |name: &str, bound: &str, executions: Option<&str>| {
            let executions = executions.unwrap_or("as the test says");
            writeln!(page, "| {name} | {bound} | {executions} | {run} | `{}` |", test.name).unwrap();
        };
        let models = models(test, &all, "model");
        for (call, bound) in &models {
            if let Some(name) = &call.name {
                row(name, bound, call.executions.as_deref());
            }
        }
        let tables: Vec<_> = models.into_iter().filter(|(call, _)| call.name.is_none()).collect();
        if !tables.is_empty() {
            row(&cases(test), &bounds(tables), None);
        }
    }
    page.push_str("\nTwins, each seen failing:\n\n| test | models | bound |\n|---|---|---|\n");
    for test in tests.iter().filter(is_twin) {
        let bounds = bounds(models(test, &all, "failure"));
        writeln!(page, "| `{}` | {} | {bounds} |", test.name, cases(test)).unwrap();
    }
}

/// The calls of a test by which loom finds out that a model holds (`model`) or not (`failure`), each with its bound, which stands
/// there or in the helper that is called.
fn models<'t>(test: &'t Test, all: &[Test], what: &str) -> Vec<(&'t Call, String)> {
    let file = test.name.split_once("::").unwrap().0;
    let of = |call: &'t Call| {
        let is_it = |helper: &&Test| helper.name.rsplit("::").next().unwrap() == call.function;
        let helpers: Vec<_> = all.iter().filter(|function| !function.is_test).filter(is_it).collect();
        let helper = helpers.iter().find(|helper| helper.name.starts_with(file)).or(helpers.first());
        let inner = helper.and_then(|helper| helper.calls.iter().find(|call| call.function == what));
        let bound = call.bound.as_ref().or_else(|| inner?.bound.as_ref());
        let runs = call.function == what || inner.is_some();
        runs.then(|| {
            (call, bound.unwrap_or_else(|| panic!("{}: {}: no bound", test.name, call.function)).clone())
        })
    };
    let models: Vec<_> = test.calls.iter().filter_map(of).collect();
    assert!(!models.is_empty(), "{}: no {what}", test.name);
    models
}

fn bounds(models: Vec<(&Call, String)>) -> String {
    let mut bounds: Vec<_> = models.into_iter().map(|(_, bound)| bound).collect();
    bounds.dedup();
    bounds.join(", ")
}

/// The names of a test's models: what it says in words, without the schedules in letters.
fn cases(test: &Test) -> String {
    let is_name = |text: &&String| !text.trim_matches(['D', 'C']).is_empty();
    let mut kept: Vec<_> = test.literals.iter().filter(is_name).map(|text| plain(text)).collect();
    kept.dedup();
    if kept.is_empty() { words(&test.name) } else { kept.join("; ") }
}

fn others(page: &mut String) {
    for (title, target, path) in [
        (
            "Any number of ranks: z3, over a model of operators, flags and rows",
            "veriep-verify --test smt",
            "verify/tests/smt.rs",
        ),
        (
            "Any legal shape: z3 and cvc5, over the table of the memory",
            "veriep-verify --test smt_layout",
            "verify/tests/smt_layout",
        ),
        (
            "Runs of the machines, held against that model",
            "veriep-verify --test smt_traces",
            "verify/tests/smt_traces/main.rs",
        ),
        (
            "The contract of a memory",
            "veriep-group --test rounds conformance",
            "host/group/tests/rounds/conformance.rs",
        ),
        ("The C interface", "veriep-capi --lib", "kernel-core/capi/src/tests"),
    ] {
        write!(page, "\n## {title}\n\n`cargo test -p {target} TEST`, the name without its file.\n\n")
            .unwrap();
        for test in tests_of(path) {
            writeln!(page, "- `{}`: {}", test.name, words(&test.name)).unwrap();
        }
    }
    page.push_str("\n## Negative tests of samples\n");
    for (folder, target) in [
        ("host/group/tests/rounds", "veriep-group --test rounds"),
        ("kernel-core/src/protocol", "veriep-core --lib"),
    ] {
        write!(page, "\n`cargo test -p {target} TEST`, the name without its file:\n\n").unwrap();
        for test in tests_of(folder)
            .iter()
            // The exam of memories has a list of its own.
            .filter(|test| !test.name.starts_with("conformance::"))
            .filter(|test| test.name.contains("caught") || test.name.contains("catches"))
        {
            writeln!(page, "- `{}` in `{folder}`: {}", test.name, words(&test.name)).unwrap();
        }
    }
}

#[test]
fn the_page_of_claims_is_what_the_checks_say() {
    let (page, path) = (page(), root().join("verify/CLAIMS.md"));
    snapbox::assert_data_eq!(page, Data::read_from(&path, Some(DataFormat::Text)).raw());
}

/// The sources of a folder's files, in one.
fn sources(folder: &str) -> String {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn each_defect_ends_in_the_explorer_as_its_row_says_and_in_nothing_else() {
    let counts = fs::read_to_string(root().join("verify/tests/explorer/counts.txt")).unwrap();
    let mut ends = BTreeMap::<&str, BTreeSet<&str>>::new();
    for row in counts.lines().filter(|line| !line.starts_with('#')) {
        let [.., defect, end] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        if end.starts_with(char::is_uppercase) {
            ends.entry(defect).or_default().insert(end);
        }
    }
    for row in DEFECTS {
        let said = row.explorer.iter().copied().collect();
        assert_eq!(ends.get(row.name()).unwrap_or(&BTreeSet::new()), &said, "{}", row.name());
    }
}

#[test]
fn each_defect_has_tests_of_the_tools_that_its_row_names() {
    let of_loom = sources("verify/tests/loom");
    for row in DEFECTS {
        let is_used = of_loom.contains(&format!("Defect::{}", row.name()));
        assert_eq!(is_used, row.loom != Loom::No, "{} in verify/tests/loom", row.name());
        assert!(is_used || !row.explorer.is_empty() || !row.sim.is_empty(), "{}: no tool", row.name());
    }
}

#[test]
fn the_duties_of_the_simulator_are_those_of_the_defects() {
    let file = fs::read_to_string(root().join("kernel-core/src/sim/duty.rs")).unwrap();
    let duties = syn::parse_file(&file).unwrap().items.into_iter().find_map(|item| match item {
        syn::Item::Enum(of) if of.ident == "Duty" => Some(of.variants),
        _ => None,
    });
    let duties: BTreeSet<_> = duties.unwrap().iter().map(|duty| duty.ident.to_string()).collect();
    let named = DEFECTS.iter().flat_map(|row| row.sim).map(|duty| duty.split('(').next().unwrap().trim());
    assert_eq!(named.map(str::to_owned).collect::<BTreeSet<_>>(), duties);
}
