//! The numbers of any legal shape of one kind, as polynomials over variables, and what is known of them.
//!
//! A quantity that follows from others is replaced by its formula until only what a configuration says is left. A rounding, a
//! quotient, a minimum or a maximum is a variable of its own with the inequalities that define it. Products of variables stay
//! products of variables: [`script`](super::script) says how solvers without them are asked.

use super::poly::{Atom, Poly};
use core::fmt;
use std::collections::BTreeMap;
use veriep_core::layout::affine::{Mode, Named};
use veriep_core::layout::expr::Expr;
use veriep_core::layout::quantity::{Kind, Quantity};
use veriep_core::layout::rules::{self, Rule};
use veriep_core::shape::{Product, Protocol};

/// A statement about natural variables.
#[derive(Clone, Debug)]
pub enum Formula {
    /// It is at least 0.
    Natural(Poly),
    All(Vec<Self>),
    Any(Vec<Self>),
    /// If the first two are natural, so is their product, which is the third.
    Product(Poly, Poly, Poly),
}

impl Formula {
    pub fn at_most(small: &Poly, large: &Poly) -> Self {
        Self::Natural(large.sub(small))
    }

    pub fn below(small: &Poly, large: &Poly) -> Self {
        Self::at_most(&small.add(&Poly::number(1)), large)
    }

    pub fn equal(a: &Poly, b: &Poly) -> Self {
        Self::All(vec![Self::at_most(a, b), Self::at_most(b, a)])
    }

    pub fn product(a: &Poly, b: &Poly) -> Self {
        Self::Product(a.clone(), b.clone(), a.mul(b))
    }

    /// The polynomials in it.
    pub fn polys(&self) -> Vec<&Poly> {
        match self {
            Self::Natural(poly) => vec![poly],
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::polys).collect(),
            Self::Product(a, b, product) => vec![a, b, product],
        }
    }
}

/// The definition of a variable that stands for a formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aux {
    Ceil(Poly, u64),
    Over(Poly, Poly),
    Min(Poly, Poly),
    Max(Poly, Poly),
    Less(Poly, Poly),
}

impl Aux {
    /// Its value for these values of other variables.
    pub fn value(&self, of: &dyn Fn(Atom) -> i128) -> i128 {
        match self {
            Self::Ceil(a, unit) => (a.value(of) + i128::from(*unit) - 1).div_euclid(i128::from(*unit)),
            Self::Over(a, b) => a.value(of).checked_div(b.value(of)).unwrap_or(0),
            Self::Min(a, b) => a.value(of).min(b.value(of)),
            Self::Max(a, b) => a.value(of).max(b.value(of)),
            Self::Less(a, b) => (a.value(of) - b.value(of)).max(0),
        }
    }

    /// The polynomials that define the variable by being natural. A minimum or a maximum is one of its two as well.
    fn bounds(&self, atom: &Poly) -> Vec<Poly> {
        let one = Poly::number(1);
        match self {
            Self::Ceil(a, unit) => {
                let up = atom.mul(&Poly::number((*unit).into()));
                vec![up.sub(a), a.add(&Poly::number(i128::from(*unit) - 1)).sub(&up)]
            }
            Self::Over(a, b) => {
                let down = atom.mul(b);
                vec![a.sub(&down), down.add(b).sub(a).sub(&one)]
            }
            Self::Min(a, b) => vec![a.sub(atom), b.sub(atom)],
            Self::Max(a, b) => vec![atom.sub(a), atom.sub(b)],
            Self::Less(a, b) => vec![atom.add(b).sub(a)],
        }
    }
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    /// The smallest and the largest value, as far as limits name them.
    pub least: u64,
    pub most: Option<u64>,
    pub is: Meaning,
}

#[derive(Clone, Debug)]
pub enum Meaning {
    Quantity(Quantity),
    Aux(Aux),
    /// An index of a place.
    Index,
}

/// One of the values that rules leave to a quantity.
pub type Choice = (Quantity, Expr<Quantity>);

/// The variables and facts about all shapes of a kind with these choices.
#[derive(Clone, Debug)]
pub struct Theory {
    pub kind: Kind,
    pub choices: Vec<Choice>,
    pub variables: Vec<Variable>,
    pub facts: Vec<Formula>,
    known: BTreeMap<Quantity, Poly>,
}

impl fmt::Display for Theory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kind { protocol, has_tp, mode } = self.kind;
        write!(f, "{protocol:?}")?;
        let words = [
            (has_tp, "tp"),
            (mode.landings > 0, "direct"),
            (mode.overwritten, "overwritten"),
            (mode.streams, "streams"),
        ];
        words.iter().filter(|(is, _)| *is).try_for_each(|(_, word)| write!(f, " {word}"))?;
        let of_many = |choice: &&Choice| split(self.kind).contains(&choice.0);
        self.choices.iter().filter(of_many).try_for_each(|(quantity, value)| match value {
            Expr::Of(other) => write!(f, ", {} = {}", quantity.name(), other.name()),
            Expr::Number(number) => write!(f, ", {} = {number}", quantity.name()),
            _ => Ok(()),
        })
    }
}

/// The quantities of which each value is looked at on its own: products with them are then products of others.
fn split(kind: Kind) -> &'static [Quantity] {
    match kind.protocol.product() {
        Product::A3 => &[Quantity::Quantised, Quantity::LocalExperts],
        Product::A2 => &[Quantity::Quantised],
    }
}

impl Theory {
    /// All combinations of the choices that the rules leave.
    pub fn cases(kind: Kind) -> Vec<Self> {
        let mut all = vec![Vec::new()];
        for rule in rules::rules(kind) {
            let Rule::OneOf(quantity, values) = rule else { continue };
            if values.len() == 1 || split(kind).contains(&quantity) {
                let with = |value: &Expr<Quantity>| {
                    let choice = (quantity, *value);
                    all.iter()
                        .map(move |choices| [choices.as_slice(), &[choice]].concat())
                        .collect::<Vec<_>>()
                };
                all = values.iter().flat_map(with).collect();
            }
        }
        all.into_iter().map(|choices| Self::new(kind, choices)).collect()
    }

    fn new(kind: Kind, choices: Vec<Choice>) -> Self {
        let mut theory = Self { kind, choices, ..Self::bare() };
        for rule in rules::rules(kind) {
            let fact = match rule {
                Rule::AtMost(small, large) => Formula::at_most(&theory.poly(&small), &theory.poly(&large)),
                Rule::OneOf(quantity, values) => {
                    let seen = theory.quantity(quantity);
                    Formula::Any(
                        values.iter().map(|value| Formula::equal(&seen, &theory.poly(value))).collect(),
                    )
                }
            };
            theory.facts.push(fact);
        }
        // Products of what the rules compare, which grow with something else.
        let [ranks, first, owners, steps] =
            [Quantity::Ranks, Quantity::FirstOwner, Quantity::Owners, Quantity::PortSteps]
                .map(|of| theory.quantity(of));
        theory.facts.push(Formula::product(&ranks.sub(&first).sub(&owners), &steps));
        let [capacity, tokens, k, elements] =
            [Quantity::Capacity, Quantity::Tokens, Quantity::K, Quantity::ElementSteps]
                .map(|of| theory.quantity(of));
        theory.facts.extend([&k, &elements].map(|by| Formula::product(&capacity.sub(&tokens), by)));
        if Named::SharedSentRows.is_of(kind) {
            let [columns, shared] =
                [Quantity::Columns, Quantity::SharedExperts].map(|of| theory.quantity(of));
            theory.facts.push(Formula::product(&columns.sub(&k).sub(&shared), &tokens));
        }
        if kind.protocol == Protocol::Hierarchy {
            let [pitch, of_combine] =
                [Quantity::RelayPitch, Quantity::PartialBytes].map(|of| theory.quantity(of));
            theory.facts.push(Formula::product(&pitch.sub(&of_combine), &capacity));
        }
        theory
    }

    /// A theory in which nothing is known of any shape.
    pub fn bare() -> Self {
        let kind = Kind { protocol: Protocol::FullmeshV1, has_tp: false, mode: Mode::default() };
        Self { kind, choices: Vec::new(), variables: Vec::new(), facts: Vec::new(), known: BTreeMap::new() }
    }

    /// A new number of at least `least`.
    pub fn quantity_of(&mut self, name: &str, least: u64) -> Poly {
        self.declare(Variable { name: name.to_owned(), least, most: None, is: Meaning::Index })
    }

    fn declare(&mut self, variable: Variable) -> Poly {
        self.variables.push(variable);
        Poly::atom(self.variables.len() - 1)
    }

    /// A new index below `extent`.
    pub fn index(&mut self, name: String, extent: &Poly) -> Poly {
        let index = self.declare(Variable { name, least: 0, most: None, is: Meaning::Index });
        self.facts.push(Formula::below(&index, extent));
        index
    }

    fn aux(&mut self, aux: Aux) -> Poly {
        let is_same = |variable: &Variable| matches!(&variable.is, Meaning::Aux(other) if *other == aux);
        if let Some(atom) = self.variables.iter().position(is_same) {
            return Poly::atom(atom);
        }
        let name = format!("part{}", self.variables.len());
        let is = Meaning::Aux(aux.clone());
        // A difference is at most what it is taken from.
        let most = match &aux {
            Aux::Less(a, _) => a.constant().and_then(|most| u64::try_from(most).ok()),
            _ => None,
        };
        let atom = self.declare(Variable { name, least: 0, most, is });
        self.facts.extend(aux.bounds(&atom).into_iter().map(Formula::Natural));
        match &aux {
            Aux::Min(a, b) | Aux::Max(a, b) => {
                self.facts.push(Formula::Any(vec![Formula::equal(&atom, a), Formula::equal(&atom, b)]));
            }
            Aux::Less(a, b) => {
                let nothing = Formula::equal(&atom, &Poly::default());
                self.facts.push(Formula::Any(vec![nothing, Formula::equal(&atom, &a.sub(b))]));
            }
            // The dividend is at least the quotient.
            Aux::Over(_, by) => self.facts.push(Formula::product(&by.sub(&Poly::number(1)), &atom)),
            Aux::Ceil(..) => {}
        }
        atom
    }

    /// Gives a quantity that nothing has asked for yet this value.
    pub fn set(&mut self, quantity: Quantity, value: u64) {
        self.known.insert(quantity, Poly::number(value.into()));
    }

    /// A quantity, by those that a configuration says.
    pub fn quantity(&mut self, quantity: Quantity) -> Poly {
        if let Some(poly) = self.known.get(&quantity) {
            return poly.clone();
        }
        let chosen = self.choices.iter().find(|(of, _)| *of == quantity).map(|(_, value)| *value);
        let range = quantity.range(self.kind);
        let poly = match (chosen.or_else(|| quantity.definition(self.kind)), &range) {
            (Some(formula), _) => self.poly(&formula),
            (None, Some(range)) if range.start() == range.end() => Poly::number((*range.start()).into()),
            (None, range) => self.declare(Variable {
                name: quantity.name().to_owned(),
                least: range.as_ref().map_or(0, |range| *range.start()),
                most: range.as_ref().map(|range| *range.end()),
                is: Meaning::Quantity(quantity),
            }),
        };
        if let (Some(_), Some(range)) = (chosen, range) {
            let [least, most] = [range.start(), range.end()].map(|&end| Poly::number(end.into()));
            self.facts.push(Formula::at_most(&least, &poly));
            self.facts.push(Formula::at_most(&poly, &most));
        }
        self.known.insert(quantity, poly.clone());
        poly
    }

    /// An expression over quantities as a polynomial.
    pub fn poly(&mut self, expr: &Expr<Quantity>) -> Poly {
        self.poly_of(expr, &mut Self::quantity)
    }

    /// The quotient by a constant, rounded up.
    pub fn ceil(&mut self, a: Poly, unit: u64) -> Poly {
        a.divided(unit.into()).unwrap_or_else(|| self.aux(Aux::Ceil(a, unit)))
    }

    /// An expression as a polynomial, given those of its variables.
    pub fn poly_of<V: Copy>(&mut self, expr: &Expr<V>, of: &mut dyn FnMut(&mut Self, V) -> Poly) -> Poly {
        let mut pair = |a, b| [self.poly_of(a, of), self.poly_of(b, of)];
        match *expr {
            Expr::Number(number) => Poly::number(number.into()),
            Expr::Of(variable) => of(self, variable),
            Expr::Sum(a, b) => {
                let [a, b] = pair(a, b);
                a.add(&b)
            }
            Expr::Product(a, b) => {
                let [a, b] = pair(a, b);
                a.mul(&b)
            }
            Expr::Less(a, b) => {
                let [a, b] = pair(a, b);
                let rest = a.sub(&b);
                if rest.is_natural() { rest } else { self.aux(Aux::Less(a, b)) }
            }
            Expr::Over(a, b) => {
                let [a, b] = pair(a, b);
                let whole = b.constant().and_then(|by| a.divided(by));
                whole.unwrap_or_else(|| self.aux(Aux::Over(a, b)))
            }
            Expr::Ceil(a, unit) => {
                let a = self.poly_of(a, of);
                self.ceil(a, unit)
            }
            Expr::Min(a, b) => {
                let [a, b] = pair(a, b);
                match [a.sub(&b), b.sub(&a)].map(|more| more.is_natural()) {
                    [true, _] => b,
                    [_, true] => a,
                    _ => self.aux(Aux::Min(a, b)),
                }
            }
            Expr::Max(a, b) => {
                let [a, b] = pair(a, b);
                match [a.sub(&b), b.sub(&a)].map(|more| more.is_natural()) {
                    [true, _] => a,
                    [_, true] => b,
                    _ => self.aux(Aux::Max(a, b)),
                }
            }
        }
    }

    /// Every product of two naturals that may help with these monomials: a range or a definition, and what a monomial has beside
    /// the variable of that range or definition.
    pub fn lemmas(&self, monomial: &[Atom]) -> Vec<Formula> {
        let mut all = Vec::new();
        for (n, &atom) in monomial.iter().enumerate() {
            if n > 0 && monomial[n - 1] == atom {
                continue;
            }
            let mut rest = monomial.to_vec();
            rest.remove(n);
            let rest = rest.iter().fold(Poly::number(1), |product, &other| product.mul(&Poly::atom(other)));
            let (variable, atom) = (&self.variables[atom], Poly::atom(atom));
            let mut factors = Vec::new();
            if variable.least > 0 {
                factors.push(atom.sub(&Poly::number(variable.least.into())));
            }
            factors.extend(variable.most.map(|most| Poly::number(most.into()).sub(&atom)));
            if let Meaning::Aux(aux) = &variable.is {
                if let Aux::Ceil(a, unit) = aux {
                    // One unit is enough, or it is not.
                    let one = Poly::number(1);
                    factors.extend([one.sub(&atom), a.sub(&Poly::number((*unit).into())).sub(&one)]);
                }
                factors.extend(aux.bounds(&atom));
                factors.extend(self.others(aux).map(|other| other.sub(&atom)));
            }
            all.extend(factors.iter().map(|factor| Formula::product(factor, &rest)));
        }
        all
    }

    /// The other variables that are rounded to the same unit.
    fn others(&self, aux: &Aux) -> impl Iterator<Item = Poly> {
        let unit = match aux {
            Aux::Ceil(_, unit) => Some(*unit),
            _ => None,
        };
        let is_alike = move |variable: &Variable| match &variable.is {
            Meaning::Aux(Aux::Ceil(_, other)) => unit == Some(*other),
            _ => false,
        };
        let alike = self.variables.iter().enumerate().filter(move |(_, variable)| is_alike(variable));
        alike.map(|(atom, _)| Poly::atom(atom))
    }

    /// A quotient by a variable is at least any multiple that fits as often.
    pub fn quotients(&self) -> Vec<Formula> {
        let mut all = Vec::new();
        for (quotient, variable) in self.variables.iter().enumerate() {
            let Meaning::Aux(Aux::Over(_, by)) = &variable.is else { continue };
            if by.constant().is_some() {
                continue;
            }
            for (atom, variable) in self.variables.iter().enumerate() {
                if let Meaning::Aux(Aux::Ceil(_, unit)) = variable.is {
                    let multiple = Poly::atom(atom).mul(&Poly::number(unit.into()));
                    let more = multiple.sub(&Poly::atom(quotient)).sub(&Poly::number(1));
                    all.push(Formula::product(&more, by));
                }
            }
        }
        all
    }

    /// The values of all variables for a shape's quantities; indices are 0.
    pub fn values(&self, of: &dyn Fn(Quantity) -> u64) -> Vec<i128> {
        self.variables.iter().fold(Vec::new(), |mut values, variable| {
            let value = match &variable.is {
                Meaning::Quantity(quantity) => of(*quantity).into(),
                Meaning::Aux(aux) => aux.value(&|atom| values[atom]),
                Meaning::Index => 0,
            };
            values.push(value);
            values
        })
    }
}
