//! The encoding of the words that cover data; [`layout`](crate::layout::event) has the words.

use super::{barrier, flag};
pub use crate::layout::event::{Clearer, Event, Order, Party, Readers, Value, events};
use crate::layout::relay;
use crate::plan::counts::ShareSum;

impl Value {
    /// Returns the variables of the word, in the order of [`word`](Self::word).
    #[must_use]
    pub const fn variables(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["count"],
            Self::Arrived | Self::WindowFlag => &[],
            Self::Barrier => &["epoch", "rows", "of_last_expert"],
            Self::Mark => &["epoch", "count"],
            Self::Number => &["number"],
        }
    }

    /// Returns the bit at which each variable begins, in their order.
    pub fn shifts(self) -> impl Iterator<Item = u32> {
        let constant = self.word([0; 3]);
        let with = move |n| self.word(core::array::from_fn(|i| u32::from(i == n)));
        (0..self.variables().len()).map(move |n| (with(n) ^ constant).trailing_zeros())
    }

    /// Returns the word with these variables.
    #[must_use]
    pub fn word(self, variables: [u32; 3]) -> u64 {
        let [first, second, third] = variables;
        match self {
            Self::Count => flag::status(first),
            Self::Arrived => flag::ARRIVED,
            Self::WindowFlag => flag::WINDOW_FLAG.into(),
            Self::Barrier => barrier::word(first, ShareSum { rows: second, of_last_expert: third }),
            Self::Mark => relay::mark(first.into(), second),
            Self::Number => first.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::affine::Named;
    use crate::layout::field::FieldName;
    use crate::protocol::{Choices, Flags, Receive};
    use crate::shape::{Config, Protocol};
    use crate::testing::domain::{PAIR, shape};
    use alloc::vec::Vec;

    #[test]
    fn every_word_is_its_constant_and_its_variables_at_their_bits() {
        for value in
            [Value::Count, Value::Arrived, Value::WindowFlag, Value::Barrier, Value::Mark, Value::Number]
        {
            let terms = [2, 3, 1].into_iter().zip(value.shifts());
            let sum = terms.fold(value.word([0; 3]), |sum, (variable, shift)| sum | variable << shift);
            assert_eq!(value.word([2, 3, 1]), sum, "{value:?}");
        }
        assert_eq!((Value::Count.word([5, 0, 0]), Value::Mark.word([2, 3, 0])), (0x5_3F80_0000, 0x2_0003));
    }

    #[test]
    fn one_word_covers_records_with_any_flags() {
        let tells = |config: &Config<'_>, choices: Choices| {
            let all: Vec<_> = events(&shape(config), choices.mode()).collect();
            let records = all.iter().filter(|event| event.data.contains(&Named::DispatchRecords));
            let status = all.iter().filter(|event| {
                (event.word, event.field) == (Named::DispatchStatus, Some(FieldName::Status))
            });
            (records.map(|event| event.field).collect::<Vec<_>>(), status.count())
        };
        let (plain, separate) =
            (Choices::default(), Choices { flags: Flags::Separate, ..Choices::default() });
        let config = PAIR.config();
        assert_eq!(tells(&config, plain), (alloc::vec![Some(FieldName::Status)], 1));
        assert_eq!(tells(&config, separate), (alloc::vec![Some(FieldName::TokenFlag)], 1));
        let blocks = Config { comm_alg: Protocol::FullmeshV2, ..config };
        assert_eq!(tells(&blocks, plain), (Vec::new(), 1));
        let direct = Choices { receive: Receive::Direct { areas: 1 }, ..plain };
        assert_eq!(tells(&config, direct), (Vec::new(), 0));
    }
}
