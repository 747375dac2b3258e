//! Polynomials with integer coefficients over numbered natural variables.

use std::collections::BTreeMap;

/// A variable, by its number.
pub type Atom = usize;

/// A product of variables, in the order of their numbers; the empty one is 1.
pub type Monomial = Vec<Atom>;

/// A sum of monomials with coefficients other than 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Poly(BTreeMap<Monomial, i128>);

impl Poly {
    pub fn number(number: i128) -> Self {
        Self::default().plus(&Monomial::new(), number)
    }

    pub fn atom(atom: Atom) -> Self {
        Self::default().plus(&vec![atom], 1)
    }

    fn plus(mut self, monomial: &Monomial, by: i128) -> Self {
        let coefficient = self.0.entry(monomial.clone()).or_default();
        *coefficient += by;
        if *coefficient == 0 {
            self.0.remove(monomial);
        }
        self
    }

    pub fn terms(&self) -> impl Iterator<Item = (&Monomial, i128)> {
        self.0.iter().map(|(monomial, coefficient)| (monomial, *coefficient))
    }

    pub fn add(&self, other: &Self) -> Self {
        other.terms().fold(self.clone(), |sum, (monomial, by)| sum.plus(monomial, by))
    }

    pub fn sub(&self, other: &Self) -> Self {
        other.terms().fold(self.clone(), |sum, (monomial, by)| sum.plus(monomial, -by))
    }

    pub fn mul(&self, other: &Self) -> Self {
        let mut product = Self::default();
        for (a, by) in self.terms() {
            for (b, times) in other.terms() {
                let mut monomial = [a.as_slice(), b].concat();
                monomial.sort_unstable();
                product = product.plus(&monomial, by * times);
            }
        }
        product
    }

    /// The quotient, if every coefficient is a multiple.
    pub fn divided(&self, by: i128) -> Option<Self> {
        let whole = self.0.values().all(|coefficient| coefficient % by == 0);
        let terms = self.0.iter().map(|(monomial, coefficient)| (monomial.clone(), coefficient / by));
        whole.then(|| Self(terms.collect()))
    }

    /// Returns whether no coefficient is negative, so that no values of the variables make it negative. It may be natural without
    /// that.
    pub fn is_natural(&self) -> bool {
        self.0.values().all(|&coefficient| coefficient > 0)
    }

    /// The constant that it is.
    pub fn constant(&self) -> Option<i128> {
        match self.0.iter().next() {
            None => Some(0),
            Some((monomial, &number)) if monomial.is_empty() && self.0.len() == 1 => Some(number),
            _ => None,
        }
    }

    /// The value for these values of the variables.
    pub fn value(&self, of: &dyn Fn(Atom) -> i128) -> i128 {
        let term =
            |(monomial, by): (&Monomial, i128)| monomial.iter().fold(by, |product, &atom| product * of(atom));
        self.terms().map(term).sum()
    }
}
