//! Any numbers: work that is split over the cores of a rank or over servers, rows that sources divide, partitions.
//!
//! The formulas are those of `kernel-core`. A test gives a function another one, with a mistake.

use super::poly::Poly;
use super::script::Script;
use super::theory::{Aux, Formula, Meaning, Theory};
use veriep_core::layout::expr::Expr;
use veriep_core::plan::counts::Stretch;
use veriep_core::plan::relay::Forwarded;
use veriep_core::plan::split::{
    COUNT_CORES, EVEN_EACH, EVEN_LENGTH, EVEN_REST, EVEN_START, MOE_END, PUBLISH_END, SHARED_CORES, Shared,
    Staff,
};

/// Questions about the numbers of a theory. Each must have the answer *unsat*.
pub struct Questions {
    pub theory: Theory,
    all: Vec<(&'static str, Vec<Formula>)>,
}

impl Questions {
    fn new(theory: Theory) -> Self {
        Self { theory, all: Vec::new() }
    }

    /// Asks whether all of this can be.
    fn ask(&mut self, name: &'static str, refuted: impl IntoIterator<Item = Formula>) {
        self.all.push((name, refuted.into_iter().collect()));
    }

    /// The questions for a solver, which knows products of variables by what is assumed of them.
    pub fn script(&self) -> String {
        let mut script = Script::new(&self.theory);
        self.all.iter().for_each(|(name, refuted)| script.ask(&self.theory, name, refuted, ""));
        script.text
    }

    /// The questions with real products and no variable above `most`, each with the values of all variables.
    pub fn counterexamples(&self, most: i128) -> String {
        let mut theory = self.theory.clone();
        let names: Vec<_> = theory.variables.iter().map(|variable| variable.name.as_str()).collect();
        let then = format!("(get-value ({}))\n", names.join(" "));
        let bounds = (0..theory.variables.len())
            .map(|variable| Formula::at_most(&Poly::atom(variable), &Poly::number(most)));
        theory.facts.extend(bounds);
        let mut script = Script::exact(&theory);
        self.all.iter().for_each(|(name, refuted)| script.ask(&theory, name, refuted, &then));
        script.text
    }
}

/// Two numbers that are not the same.
fn differ(a: &Poly, b: &Poly) -> Formula {
    Formula::Any(vec![Formula::below(a, b), Formula::below(b, a)])
}

/// The quotients of a theory, each with what it is divided by.
fn quotients(theory: &Theory) -> Vec<(Poly, Poly)> {
    let quotients = theory.variables.iter().enumerate().filter_map(|(atom, variable)| {
        let Meaning::Aux(Aux::Over(_, by)) = &variable.is else { return None };
        Some((Poly::atom(atom), by.clone()))
    });
    quotients.collect()
}

/// Any numbers of items and cores.
struct Split {
    items: Poly,
    cores: Poly,
}

impl Split {
    fn of(theory: &mut Theory) -> Self {
        Self { items: theory.quantity_of("items", 0), cores: theory.quantity_of("cores", 1) }
    }

    /// A formula of this core, or of this item.
    fn value(&self, theory: &mut Theory, formula: &Expr<Shared>, number: &Poly) -> Poly {
        theory.poly_of(formula, &mut |_, of| match of {
            Shared::Items => self.items.clone(),
            Shared::Cores => self.cores.clone(),
            Shared::Core | Shared::Item => number.clone(),
        })
    }
}

/// [`Even`](veriep_core::plan::split::even) shares of any number of items over any number of cores follow each other from the first
/// item to the last, and differ by one at most. `length` is the formula of a share's items.
pub fn shares(length: &Expr<Shared>) -> Questions {
    let mut theory = Theory::bare();
    let one = Poly::number(1);
    let split = Split::of(&mut theory);
    let core = theory.index("core".to_owned(), &split.cores);
    let other = theory.index("other".to_owned(), &split.cores);
    let mut share = |core: &Poly| [&EVEN_START, length].map(|of| split.value(&mut theory, of, core));
    let [first, _] = share(&Poly::default());
    let [[start, length], [next, _]] = [share(&core), share(&core.add(&one))];
    let [last, rest] = share(&split.cores.sub(&one));
    let [_, others] = share(&other);
    let mut questions = Questions::new(theory);
    questions.ask("the first share begins with the first item", [differ(&first, &Poly::default())]);
    questions.ask("the next share begins where a share ends", [differ(&start.add(&length), &next)]);
    questions.ask("the last share ends with the last item", [differ(&last.add(&rest), &split.items)]);
    questions.ask(
        "no share is longer than another by more than one",
        [Formula::below(&others.add(&one), &length)],
    );
    questions
}

/// The owner of an item is a core whose [`even`](veriep_core::plan::split::even) share has the item. `owner` is the formula of its
/// number.
pub fn owners(owner: &Expr<Shared>) -> Questions {
    let mut theory = Theory::bare();
    let (none, one) = (Poly::default(), Poly::number(1));
    let split = Split::of(&mut theory);
    let item = theory.index("item".to_owned(), &split.items);
    let owner = split.value(&mut theory, owner, &item);
    let [each, rest] = [EVEN_EACH, EVEN_REST].map(|of| split.value(&mut theory, &of, &Poly::default()));
    // What quotients are compared with, times the length of a share.
    for (quotient, by) in quotients(&theory) {
        for difference in [
            quotient.sub(&one),
            quotient.sub(&rest),
            quotient.sub(&rest).sub(&one),
            rest.sub(&quotient).sub(&one),
        ] {
            theory.facts.push(Formula::product(&difference, &by));
        }
        theory.facts.extend([by.sub(&each), each.sub(&by)].map(|more| Formula::product(&quotient, &more)));
        theory.facts.push(Formula::product(&quotient.sub(&split.cores.sub(&rest)), &each));
        theory.facts.push(Formula::product(&none.sub(&each), &quotient));
    }
    // Fewer items than cores.
    theory.facts.extend([&rest, &split.cores].map(|by| Formula::product(&none.sub(&each), by)));
    let [start, length] = [&EVEN_START, &EVEN_LENGTH].map(|of| split.value(&mut theory, of, &owner));
    let mut questions = Questions::new(theory);
    questions.ask("the owner of an item is a core", [Formula::at_most(&split.cores, &owner)]);
    questions.ask("its share begins with the item or before", [Formula::below(&item, &start)]);
    questions.ask("its share ends behind the item", [Formula::at_most(&start.add(&length), &item)]);
    questions
}

/// The formulas of the roles of cores.
#[derive(Clone, Copy)]
pub struct Roles {
    /// Those that publish counts and send nothing; none but in fullmesh_v2.
    pub count_cores: Expr<Staff>,
    pub shared_cores: Expr<Staff>,
    pub publish_end: Expr<Staff>,
    pub moe_end: Expr<Staff>,
}

impl Roles {
    /// Those of the core, for a layout in which some cores only count, or for one without.
    pub const fn of(has_count_cores: bool) -> Self {
        Self {
            count_cores: if has_count_cores { COUNT_CORES } else { Expr::Number(0) },
            shared_cores: SHARED_CORES,
            publish_end: PUBLISH_END,
            moe_end: MOE_END,
        }
    }
}

/// The numbers from which roles follow.
struct Rank {
    cores: Poly,
    count_cores: Poly,
    shared_cores: Poly,
    k: Poly,
    shared_experts: Poly,
}

impl Rank {
    fn value(&self, theory: &mut Theory, formula: &Expr<Staff>) -> Poly {
        theory.poly_of(formula, &mut |_, of| match of {
            Staff::Cores => self.cores.clone(),
            Staff::CountCores => self.count_cores.clone(),
            Staff::SharedCores => self.shared_cores.clone(),
            Staff::K => self.k.clone(),
            Staff::SharedExperts => self.shared_experts.clone(),
        })
    }
}

/// Cores publish counts, send to MoE experts, and send to shared experts if there are any. Each task has cores, so that their
/// [shares] cover it, and each core has a task.
pub fn roles(roles: &Roles) -> Questions {
    let mut theory = Theory::bare();
    let (none, one) = (Poly::default(), Poly::number(1));
    let mut rank = Rank {
        cores: theory.quantity_of("cores", 1),
        count_cores: Poly::default(),
        shared_cores: Poly::default(),
        k: theory.quantity_of("k", 1),
        shared_experts: theory.quantity_of("shared_experts", 0),
    };
    rank.count_cores = rank.value(&mut theory, &roles.count_cores);
    let senders = Expr::Less(&Expr::Of(Staff::Cores), &Expr::Of(Staff::CountCores));
    let senders = rank.value(&mut theory, &senders);
    rank.shared_cores = rank.value(&mut theory, &roles.shared_cores);
    let [publish_end, moe_end] = [&roles.publish_end, &roles.moe_end].map(|of| rank.value(&mut theory, of));
    // A quotient by K + S is below the cores that send, and 0 without shared experts.
    for (quotient, by) in quotients(&theory) {
        for difference in [quotient.sub(&senders), quotient.sub(&one)] {
            theory.facts.push(Formula::product(&difference, &by));
        }
    }
    theory.facts.push(Formula::product(&senders.sub(&one), &rank.k.sub(&one)));
    theory.facts.push(Formula::product(&none.sub(&rank.shared_experts), &senders));
    // All cores publish counts if none counts alone.
    let none_counts = Expr::Less(&Expr::Number(1), &Expr::Of(Staff::CountCores));
    let none_counts = rank.value(&mut theory, &none_counts);
    for difference in [none.sub(&none_counts), none_counts.sub(&one)] {
        theory.facts.push(Formula::product(&difference, &rank.cores));
    }
    let Rank { cores, count_cores, shared_cores, shared_experts, .. } = rank;
    let shared_start = cores.sub(&shared_cores);
    let mut questions = Questions::new(theory);
    questions.ask("some core sends", [Formula::at_most(&cores, &count_cores)]);
    questions.ask(
        "some core publishes counts",
        [Formula::Any(vec![Formula::below(&publish_end, &one), Formula::below(&cores, &publish_end)])],
    );
    questions.ask(
        "some core sends to MoE experts",
        [Formula::Any(vec![Formula::at_most(&moe_end, &count_cores), Formula::below(&cores, &moe_end)])],
    );
    questions.ask("those that send to shared experts send", [Formula::below(&senders, &shared_cores)]);
    questions.ask(
        "some core sends to shared experts if there are any",
        [Formula::at_most(&one, &shared_experts), Formula::below(&shared_cores, &one)],
    );
    questions.ask(
        "no core sends to shared experts if there are none",
        [Formula::below(&shared_experts, &one), Formula::at_most(&one, &shared_cores)],
    );
    questions.ask(
        "no core sends to both if several send",
        [Formula::at_most(&Poly::number(2), &senders), Formula::below(&shared_start, &moe_end)],
    );
    questions.ask(
        "no core sends that only counts",
        [Formula::at_most(&one, &count_cores), Formula::below(&count_cores, &publish_end)],
    );
    questions.ask(
        "each core has a task",
        [Formula::Any(vec![
            Formula::below(&publish_end, &count_cores),
            Formula::below(&moe_end, &shared_start),
        ])],
    );
    questions
}

/// The near experts of a server to which a core of a relay forwards are those whose numbers its share has: a share of all servers'
/// experts is cut where a server's begin, and `end` is the formula of both ends of a part.
pub fn forwards(end: &Expr<Forwarded>) -> Questions {
    let mut theory = Theory::bare();
    let near_experts = theory.quantity_of("near_experts", 1);
    let server = theory.quantity_of("server", 0);
    let expert = theory.index("expert".to_owned(), &near_experts);
    let [start_of_share, end_of_share] = ["start", "end"].map(|name| theory.quantity_of(name, 0));
    let [first, last] = [&start_of_share, &end_of_share].map(|of_share| {
        theory.poly_of(end, &mut |_, of| match of {
            Forwarded::End => of_share.clone(),
            Forwarded::Server => server.clone(),
            Forwarded::NearExperts => near_experts.clone(),
        })
    });
    let number = server.mul(&near_experts).add(&expert);
    let is_in = |number: &Poly, start: &Poly, end: &Poly| {
        Formula::All(vec![Formula::at_most(start, number), Formula::below(number, end)])
    };
    let is_outside = |number: &Poly, start: &Poly, end: &Poly| {
        Formula::Any(vec![Formula::below(number, start), Formula::at_most(end, number)])
    };
    let mut questions = Questions::new(theory);
    questions.ask(
        "an expert in the share is in the server's part",
        [is_in(&number, &start_of_share, &end_of_share), is_outside(&expert, &first, &last)],
    );
    questions.ask(
        "an expert in the server's part is in the share",
        [is_in(&expert, &first, &last), is_outside(&number, &start_of_share, &end_of_share)],
    );
    questions.ask("no part has an expert that the server has not", [Formula::below(&near_experts, &last)]);
    questions
}

/// Stretches of rows follow each other, one for each local expert and source: `next` is the formula of the first row of the next
/// one. By induction over stretches: if all before one end where it begins or earlier, this holds for the next as well. A core
/// that adds up its own stretches from 0, behind the sums of the cores before it, finds the same rows.
pub fn stretches(next: &Expr<Stretch>) -> Questions {
    let mut theory = Theory::bare();
    let one = Poly::number(1);
    let [earlier, earlier_rows, first, rows, sum] =
        ["earlier", "earlier_rows", "first", "rows", "sum"].map(|name| theory.quantity_of(name, 0));
    let [sources, most] = ["sources", "most"].map(|name| theory.quantity_of(name, 0));
    let earlier_end = earlier.add(&earlier_rows);
    theory.facts.push(Formula::at_most(&earlier_end, &first));
    theory.facts.push(Formula::at_most(&rows, &most));
    let mut follows = |first: &Poly| {
        theory.poly_of(next, &mut |_, of| match of {
            Stretch::First => first.clone(),
            Stretch::Rows => rows.clone(),
        })
    };
    let (after, end) = (follows(&first), first.add(&rows));
    let [of_core, alone] = [follows(&first.add(&sum)), first.add(&follows(&sum))];
    let all = most.mul(&sources.add(&one));
    let mut questions = Questions::new(theory);
    questions.ask("a stretch ends before the next begins", [Formula::below(&after, &end)]);
    questions.ask("and so does each before it", [Formula::below(&after, &earlier_end)]);
    questions.ask("no row is between two stretches", [Formula::below(&end, &after)]);
    questions.ask("the sums of cores follow each other as stretches do", [differ(&of_core, &alone)]);
    questions.ask(
        "the rows of all sources are at most as many as each can send, times the sources",
        [Formula::at_most(&first, &most.mul(&sources)), Formula::below(&all, &after)],
    );
    questions
}

/// Questions about the partition of an operator, by its number among those of its kind. The theorem's, the number modulo two, is what
/// a record holds that begins with 0 and is replaced by `flipped` of itself, and is what those have that count: `counted` is what
/// they have for 0 and 1, and they look at nothing but whether a number is even.
pub fn partitions(flipped: [u32; 2], counted: [u32; 2]) -> String {
    let ([of_0, of_1], [even, odd]) = (flipped, counted);
    format!(
        "(set-logic QF_LIA)
(declare-const n Int) (assert (<= 0 n)) ; the number of an operator among those of its kind
(declare-const held Int) (assert (= held (mod n 2)))
(push 1) ; the first operator has what memory is zeroed to
(assert (not (= 0 (mod 0 2)))) (check-sat) (pop 1)
(push 1) ; the next one has what the record is replaced by
(assert (not (= (ite (= held 0) {of_0} {of_1}) (mod (+ n 1) 2)))) (check-sat) (pop 1)
(push 1) ; one that is counted has the same
(assert (not (= held (ite (= (mod n 2) 0) {even} {odd})))) (check-sat) (pop 1)
"
    )
}
