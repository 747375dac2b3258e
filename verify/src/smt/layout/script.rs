//! A theory and claims as SMT-LIB.
//!
//! Solvers are asked without products: each product of variables is a variable of its own, of which is known what follows from
//! `p >= 0` and `q >= 0`: that `p * q >= 0`, with the product multiplied out. That is less than what is true, so an *unsat* is a
//! proof for real products too. A *sat* may be none: [`exact`](Script::exact) scripts say what the products are.

use super::poly::{Monomial, Poly};
use super::theory::{Formula, Theory};
use core::fmt::Write;
use std::collections::BTreeSet;

/// The text of a script, and the products that it has declared.
pub struct Script {
    pub text: String,
    exact: bool,
    declared: usize,
    stated: usize,
    /// The products that are declared, and those about which there are lemmas.
    products: BTreeSet<Monomial>,
    explained: BTreeSet<Monomial>,
}

/// The rounds of products: those of what is said, and those of what the lemmas about them say.
const ROUNDS: usize = 2;

impl Script {
    pub fn new(theory: &Theory) -> Self {
        Self::of(theory, false)
    }

    /// With real products, for finding a shape that refutes a claim.
    pub fn exact(theory: &Theory) -> Self {
        Self::of(theory, true)
    }

    fn of(theory: &Theory, exact: bool) -> Self {
        let logic = if exact { "QF_NIA" } else { "QF_LIA" };
        let mut script = Self {
            text: format!("; {theory}\n(set-logic {logic})\n"),
            exact,
            declared: 0,
            stated: 0,
            products: BTreeSet::new(),
            explained: BTreeSet::new(),
        };
        script.assume(theory, &[]);
        script
    }

    /// States what the theory has beyond what was stated, and these facts.
    fn assume(&mut self, theory: &Theory, more: &[Formula]) {
        for variable in &theory.variables[self.declared..] {
            let name = &variable.name;
            let _ = writeln!(self.text, "(declare-const {name} Int) (assert (<= {} {name}))", variable.least);
            if let Some(most) = variable.most {
                let _ = writeln!(self.text, "(assert (<= {name} {most}))");
            }
        }
        self.declared = theory.variables.len();
        let mut facts: Vec<Formula> = theory.facts[self.stated..].iter().chain(more).cloned().collect();
        if !self.exact {
            facts.extend(theory.quotients());
        }
        self.stated = theory.facts.len();
        self.declare(theory, &facts);
        for fact in &facts {
            let _ = writeln!(self.text, "(assert {})", formula(theory, fact));
        }
        let mut said = facts;
        for _ in 0..if self.exact { 0 } else { ROUNDS } {
            let fresh: Vec<_> =
                products(&said).into_iter().filter(|of| !self.explained.contains(of)).collect();
            said = fresh.iter().flat_map(|product| theory.lemmas(product)).collect();
            self.explained.extend(fresh);
            self.declare(theory, &said);
            for lemma in &said {
                let _ = writeln!(self.text, "(assert {})", formula(theory, lemma));
            }
        }
    }

    /// Declares the products in these formulas that are new.
    fn declare(&mut self, theory: &Theory, formulas: &[Formula]) {
        for product in products(formulas)
            .into_iter()
            .filter(|product| !self.products.contains(product))
            .collect::<Vec<_>>()
        {
            let name = name(theory, &product);
            let _ = writeln!(self.text, "(declare-const {name} Int) (assert (<= 0 {name}))");
            if self.exact {
                let factors: Vec<_> =
                    product.iter().map(|&atom| theory.variables[atom].name.as_str()).collect();
                let _ = writeln!(self.text, "(assert (= {name} (* {})))", factors.join(" "));
            }
            self.products.insert(product);
        }
    }

    /// Asks whether all of `assumed` can be, with what `theory` has beyond that of the script. `then` is what the solver is told
    /// after its answer: nothing, or to print values.
    pub fn ask(&mut self, theory: &Theory, name: &str, assumed: &[Formula], then: &str) {
        let before = (self.declared, self.stated, self.products.clone(), self.explained.clone());
        let _ = writeln!(self.text, "(push 1) ; {name}");
        self.assume(theory, assumed);
        let _ = writeln!(self.text, "(check-sat)\n{then}(pop 1)");
        (self.declared, self.stated, self.products, self.explained) = before;
    }
}

/// The products of variables in formulas.
fn products(formulas: &[Formula]) -> BTreeSet<Monomial> {
    let terms = formulas.iter().flat_map(Formula::polys).flat_map(Poly::terms);
    terms.map(|(monomial, _)| monomial).filter(|monomial| monomial.len() > 1).cloned().collect()
}

/// The name of a product.
fn name(theory: &Theory, product: &[usize]) -> String {
    let names: Vec<_> = product.iter().map(|&atom| theory.variables[atom].name.as_str()).collect();
    names.join("*")
}

fn formula(theory: &Theory, of: &Formula) -> String {
    let list = |word: &str, parts: &[Formula]| {
        let parts: Vec<_> = parts.iter().map(|part| formula(theory, part)).collect();
        format!("({word} {})", parts.join(" "))
    };
    let natural = |poly: &Poly| format!("(<= 0 {})", term(theory, poly));
    match of {
        Formula::Natural(poly) => natural(poly),
        Formula::All(parts) => list("and", parts),
        Formula::Any(parts) => list("or", parts),
        Formula::Product(a, b, product) => {
            format!("(=> (and {} {}) {})", natural(a), natural(b), natural(product))
        }
    }
}

/// A polynomial as a term.
pub fn term(theory: &Theory, poly: &Poly) -> String {
    let number = |number: i128| if number < 0 { format!("(- {})", -number) } else { number.to_string() };
    let one = |(monomial, by): (&Monomial, i128)| match (monomial.is_empty(), by) {
        (true, by) => number(by),
        (false, 1) => name(theory, monomial),
        (false, by) => format!("(* {} {})", number(by), name(theory, monomial)),
    };
    let terms: Vec<_> = poly.terms().map(one).collect();
    match terms.len() {
        0 => "0".to_owned(),
        1 => terms.concat(),
        _ => format!("(+ {})", terms.join(" ")),
    }
}
