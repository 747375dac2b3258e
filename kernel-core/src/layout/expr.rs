//! Formulas as data: expressions over named quantities, for everything that must read a formula and not only compute it.

/// A natural number as an expression over variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expr<V: 'static> {
    /// A constant.
    Number(u64),
    /// A variable.
    Of(V),
    /// A sum.
    Sum(&'static Self, &'static Self),
    /// A product.
    Product(&'static Self, &'static Self),
    /// The first less the second, at least 0.
    Less(&'static Self, &'static Self),
    /// The quotient, rounded down.
    Over(&'static Self, &'static Self),
    /// The quotient by a positive number, rounded up.
    Ceil(&'static Self, u64),
    /// The smaller one.
    Min(&'static Self, &'static Self),
    /// The larger one.
    Max(&'static Self, &'static Self),
}

impl<V> Expr<V> {
    /// Returns the value of a formula without variables; `None` if it has one. For constants: no machine calls it.
    #[must_use]
    pub const fn constant(&self) -> Option<u64> {
        let (a, b) = match self {
            Self::Number(number) => return Some(*number),
            Self::Of(_) => return None,
            Self::Ceil(a, unit) => (a.constant(), Some(*unit)),
            Self::Sum(a, b)
            | Self::Product(a, b)
            | Self::Less(a, b)
            | Self::Over(a, b)
            | Self::Min(a, b)
            | Self::Max(a, b) => (a.constant(), b.constant()),
        };
        let (Some(a), Some(b)) = (a, b) else { return None };
        Some(match self {
            Self::Sum(..) => a + b,
            Self::Product(..) => a * b,
            Self::Less(..) => less(a, b),
            Self::Over(..) => over(a, b),
            Self::Ceil(..) => crate::units::div_ceil(a, b),
            Self::Max(..) => max(a, b),
            _ => min(a, b),
        })
    }
}

impl<V: Copy> Expr<V> {
    /// Returns the value for these values of the variables. A quotient by 0 is 0.
    pub fn value(&self, of: &dyn Fn(V) -> u64) -> u64 {
        let value = |expr: &Self| expr.value(of);
        match *self {
            Self::Number(number) => number,
            Self::Of(variable) => of(variable),
            Self::Sum(a, b) => value(a) + value(b),
            Self::Product(a, b) => value(a) * value(b),
            Self::Less(a, b) => value(a).saturating_sub(value(b)),
            Self::Over(a, b) => value(a).checked_div(value(b)).unwrap_or(0),
            Self::Ceil(a, unit) => crate::units::div_ceil(value(a), unit),
            Self::Min(a, b) => value(a).min(value(b)),
            Self::Max(a, b) => value(a).max(value(b)),
        }
    }
}

/// Writes an expression as a formula: `(a + b)`, `(a * b)`, `(a - b)` that ends at 0, `(a / b)` rounded down, `up(a, unit)`
/// rounded up to a multiple, `ceil(a, unit)` the number of units, `min(a, b)`, `max(a, b)`. An operand is a number, a constant
/// in braces, a variable, or a formula in parentheses; of `+` and `*` there may be several in a row.
macro_rules! expr {
    ($type:ident: $number:literal) => { Expr::Number($number) };
    ($type:ident: { $constant:expr }) => { Expr::Number($constant) };
    ($type:ident: $variable:ident) => { Expr::Of($type::$variable) };
    ($type:ident: ($($inner:tt)+)) => { expr!($type: $($inner)+) };
    ($type:ident: $a:tt + $($b:tt)+) => { Expr::Sum(&expr!($type: $a), &expr!($type: $($b)+)) };
    ($type:ident: $a:tt * $($b:tt)+) => { Expr::Product(&expr!($type: $a), &expr!($type: $($b)+)) };
    ($type:ident: $a:tt - $b:tt) => { Expr::Less(&expr!($type: $a), &expr!($type: $b)) };
    ($type:ident: $a:tt / $b:tt) => { Expr::Over(&expr!($type: $a), &expr!($type: $b)) };
    ($type:ident: ceil($a:tt, $unit:expr)) => { Expr::Ceil(&expr!($type: $a), $unit) };
    ($type:ident: up($a:tt, $unit:expr)) => {
        Expr::Product(&Expr::Ceil(&expr!($type: $a), $unit), &Expr::Number($unit))
    };
    ($type:ident: min($a:tt, $b:tt)) => { Expr::Min(&expr!($type: $a), &expr!($type: $b)) };
    ($type:ident: max($a:tt, $b:tt)) => { Expr::Max(&expr!($type: $a), &expr!($type: $b)) };
}

/// Computes a formula of [`expr`](expr!) over the functions that a module `number` in scope has for its variables. It is straight
/// code: no step of a machine reads data for a formula.
macro_rules! code {
    ($at:ident: $number:literal) => { $number };
    ($at:ident: { $constant:expr }) => { $constant };
    ($at:ident: $variable:ident) => { number::$variable($at) };
    ($at:ident: ($($inner:tt)+)) => { code!($at: $($inner)+) };
    ($at:ident: $a:tt + $($b:tt)+) => { (code!($at: $a) + code!($at: $($b)+)) };
    ($at:ident: $a:tt * $($b:tt)+) => { (code!($at: $a) * code!($at: $($b)+)) };
    ($at:ident: $a:tt - $b:tt) => { $crate::layout::expr::less(code!($at: $a), code!($at: $b)) };
    ($at:ident: $a:tt / $b:tt) => { $crate::layout::expr::over(code!($at: $a), code!($at: $b)) };
    ($at:ident: ceil($a:tt, $unit:expr)) => { $crate::units::div_ceil(code!($at: $a), $unit) };
    ($at:ident: up($a:tt, $unit:expr)) => { $crate::units::align_up(code!($at: $a), $unit) };
    ($at:ident: min($a:tt, $b:tt)) => { $crate::layout::expr::min(code!($at: $a), code!($at: $b)) };
    ($at:ident: max($a:tt, $b:tt)) => { $crate::layout::expr::max(code!($at: $a), code!($at: $b)) };
}

/// Returns `a - b`, at least 0.
#[inline(always)]
pub(super) const fn less(a: u64, b: u64) -> u64 {
    a.saturating_sub(b)
}

/// Returns `a / b` rounded down; 0 when `b` is 0.
#[inline(always)]
pub(super) const fn over(a: u64, b: u64) -> u64 {
    match a.checked_div(b) {
        Some(quotient) => quotient,
        None => 0,
    }
}

#[inline(always)]
pub(super) const fn min(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

#[inline(always)]
pub(super) const fn max(a: u64, b: u64) -> u64 {
    if a < b { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Side {
        A,
        B,
    }

    fn value(expr: Expr<Side>, a: u64, b: u64) -> u64 {
        expr.value(&|side| match side {
            Side::A => a,
            Side::B => b,
        })
    }

    #[test]
    fn a_formula_has_the_value_of_its_text() {
        const SEVEN: u64 = 7;
        assert_eq!(value(expr!(Side: A + (B * 2) + {SEVEN}), 3, 5), 20);
        assert_eq!([4, 5, 6].map(|a| value(expr!(Side: A - B), a, 5)), [0, 0, 1]);
        assert_eq!([9, 10, 11].map(|a| value(expr!(Side: A / B), a, 5)), [1, 2, 2]);
        assert_eq!(value(expr!(Side: A / B), 9, 0), 0);
        assert_eq!([0, 1, 32, 33].map(|a| value(expr!(Side: up((A + B), 32)), a, 0)), [0, 32, 32, 64]);
        assert_eq!([0, 1, 32, 33].map(|a| value(expr!(Side: ceil(A, 32)), a, 0)), [0, 1, 1, 2]);
        assert_eq!([2, 9].map(|a| value(expr!(Side: min(A, B)), a, 5)), [2, 5]);
        assert_eq!([2, 9].map(|a| value(expr!(Side: max(A, B)), a, 5)), [5, 9]);
    }
}
