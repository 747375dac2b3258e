//! The numbers of calls, in the words that ranks publish.
//!
//! A rank that leaves out a call stays one behind its peers: it takes their next rows for those that it missed, and they take
//! its next flags for those that they await. Where a group [checks calls](crate::protocol::Choices::checked), each word has a
//! tag beside flag or count, in the same word, since publishes have no order. Its reader compares it with the tag of its own
//! call.
//!
//! A tag is the number of the call modulo [`CALLS`], times two, plus the operator. Callers give the number, which is the
//! same on all ranks ([`Inputs::call`](crate::inputs::Inputs::call)): then a rank that leaves out a call gives the next
//! number like all others, in a word that its peers refuse. Without a given number cores count, and a rank that leaves out
//! a call agrees with its peers again.
//!
//! | words | bits of the tag |
//! |---|---|
//! | A3: counts, token flags, flags of blocks, results, combine and the TP domain | the 12 low ones, which are 0 in the flag `1.0f` |
//! | A2 full mesh | the upper half of the flag's word |
//! | A2 hierarchy | the 12 low ones of the epoch, which counts operators in those above |

use crate::fabric::{ProtocolError, Result, Wait};
use crate::layout::state::Operator;
use crate::sync::flag::{self, FLAG};
use crate::sync::selector;
use core::fmt;

/// The number of calls that tags tell apart. A rank that is this many calls behind is not seen.
pub const CALLS: u32 = 1 << (TAG_BITS - 1);
/// The number of bits of a tag.
pub(crate) const TAG_BITS: u32 = 12;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

static_assertions::const_assert!(FLAG as u64 & TAG_MASK == 0);

/// The numbering of a core's words in an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    pub(crate) kind: Operator,
    /// The number that the caller gives.
    pub(crate) given: Option<u32>,
    /// The number of calls that tags tell apart; 0 if words have no tags.
    pub(crate) calls: u32,
}

impl Numbering {
    /// Returns whether words have tags.
    pub(crate) const fn is_checked(self) -> bool {
        self.calls > 0
    }

    /// Returns the tag of a call: the given number's, or else the one after `last`, the tag of the core's last call of this
    /// operator.
    pub(crate) const fn tag(self, last: Option<Tag>) -> Tag {
        let call = match (self.given, last) {
            (Some(call), _) => call,
            (None, Some(last)) => last.call() + 1,
            (None, None) => 0,
        };
        match call.checked_rem(self.calls) {
            Some(call) => Tag((call << 1 | self.kind as u32) as u16),
            None => Tag(0),
        }
    }
}

/// The tag of a word: the number of its call and its operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag(u16);

impl Tag {
    /// Returns the tag in the low bits of `word`.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self((word & TAG_MASK) as u16)
    }

    /// Returns the bits of the tag.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Returns the number of the call, modulo [`CALLS`].
    #[must_use]
    pub const fn call(self) -> u32 {
        self.0 as u32 >> 1
    }

    /// Returns by how many calls it comes after another tag, modulo [`CALLS`].
    #[must_use]
    pub const fn ahead_of(self, other: Self) -> u32 {
        self.call().wrapping_sub(other.call()) & (CALLS - 1)
    }

    /// Returns whether it comes after another tag of the same operator, by less than half of [`CALLS`].
    #[must_use]
    pub const fn is_later(self, other: Self) -> bool {
        let ahead = self.ahead_of(other);
        self.0 & 1 == other.0 & 1 && ahead > 0 && ahead < CALLS / 2
    }

    /// Returns the operator.
    #[must_use]
    pub const fn operator(self) -> Operator {
        if self.0 & 1 == 0 { Operator::Dispatch } else { Operator::Combine }
    }
}

/// Words of a group as they are without tags, for tools that read its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// Whether the group checks calls.
    pub checked: bool,
}

impl Untagged {
    /// Returns an A3 flag, or count and flag.
    #[must_use]
    pub const fn flag(self, word: u64) -> u64 {
        let is_flag = word as u32 & !(TAG_MASK as u32) == FLAG;
        if self.checked && is_flag { word & !TAG_MASK } else { word }
    }

    /// Returns the partition that an A3 selector names, and the half that the word of A2 does.
    #[must_use]
    pub const fn selector(self, word: u64) -> u64 {
        if self.checked { word & 1 } else { word }
    }
}

/// The call of the operator that a core has begun last, for tools that read its memory: they judge words as the core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    tag: Tag,
    /// The tag of the call before, whose words have other places.
    before: Option<Tag>,
}

impl Begun {
    /// Returns the call with this tag, of whose words the places were empty.
    #[must_use]
    pub const fn tagged(tag: Tag) -> Self {
        Self { tag, before: None }
    }

    /// Returns the call that an A3 selector says; `None` if its core has begun none, or does not check calls.
    #[must_use]
    pub fn of_selector(word: u64) -> Option<Self> {
        let (tag, before) = selector::last_two(word)?;
        Some(Self { tag, before })
    }

    /// Returns the tag of its words.
    #[must_use]
    pub const fn tag(self) -> Tag {
        self.tag
    }

    /// Returns a word of A3 without its tag; `None` if nothing has arrived yet. The selector of an operator that runs does not keep
    /// the tag of the former use of its places: any number less than that of the call before is taken for it.
    ///
    /// # Errors
    /// The word is another call's, or none.
    pub fn read(self, seen: u64, awaited: Wait) -> Result<Option<u64>> {
        self.tags(Tag::of(seen)).read(seen, awaited)
    }

    /// Returns whether a word of an A2 window is this call's flag.
    ///
    /// # Errors
    /// It is another call's flag.
    pub fn in_window(self, seen: u64, awaited: Wait) -> Result<bool> {
        flag::window(seen, self.tags(Tag::of(seen >> 32)), || awaited)
    }

    fn tags(self, seen: Tag) -> Tags {
        let is_former = self.before.is_some_and(|before| before.is_later(seen));
        Tags { tag: self.tag, former: is_former.then_some(seen), is_checked: true }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operator().name(), self.call())
    }
}

/// The tags by which a core judges words in an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tags {
    /// The tag of the operator's words; 0 if words have no tags.
    pub(crate) tag: Tag,
    /// The tag of the words that used the same places before, if there were any: a word with this tag means "nothing yet".
    pub(crate) former: Option<Tag>,
    pub(crate) is_checked: bool,
}

impl Tags {
    /// Returns the tags where words have none.
    pub(crate) const NONE: Self = Self { tag: Tag(0), former: None, is_checked: false };

    /// Returns `word`, which has no tag, with the operator's.
    #[inline(always)]
    pub(crate) const fn with(self, word: u64) -> u64 {
        word | self.tag.bits()
    }

    /// Returns a word of A3 without its tag; `None` if nothing has arrived yet.
    ///
    /// # Errors
    /// The word is another call's.
    #[inline(always)]
    pub(crate) fn read(self, seen: u64, awaited: Wait) -> Result<Option<u64>> {
        if seen == 0 {
            return Ok(None);
        }
        let bare = seen ^ self.tag.bits();
        if bare & TAG_MASK == 0 { Ok(Some(bare)) } else { self.not_this_call(seen, awaited).map(|()| None) }
    }

    /// Refuses a word without this call's tag, unless it is that of the former use.
    #[cold]
    #[inline(never)]
    fn not_this_call(self, seen: u64, awaited: Wait) -> Result<()> {
        let is_flag = seen as u32 & !(TAG_MASK as u32) == FLAG;
        if !self.is_checked || !is_flag {
            return Err(awaited.refused(seen));
        }
        self.judge(Tag::of(seen), || awaited).map(drop)
    }

    /// Returns whether a flag with this tag is this call's; `false` if it is that of the former use.
    ///
    /// # Errors
    /// It is another call's.
    #[inline]
    pub(crate) fn judge(self, seen: Tag, awaited: impl FnOnce() -> Wait) -> Result<bool> {
        if seen == self.tag {
            return Ok(true);
        }
        if self.former == Some(seen) {
            return Ok(false);
        }
        Err(ProtocolError::OtherCall { awaited: awaited(), seen, expected: self.tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Flag;
    use crate::sync::flag::{ARRIVED, WINDOW_FLAG, status};
    use crate::units::RankId;

    const AWAITED: Wait = Wait::new(Flag::Combine, RankId(1), &[3, 0]);

    fn numbering(given: Option<u32>) -> Numbering {
        Numbering { kind: Operator::Combine, given, calls: CALLS }
    }

    #[test]
    fn a_tag_is_the_given_number_or_the_one_after_the_last() {
        let tag = |given, last: Option<u32>| {
            let tag = numbering(given).tag(last.map(|last| numbering(Some(last)).tag(None)));
            (tag.call(), tag.operator())
        };
        assert_eq!(tag(Some(7), Some(2)), (7, Operator::Combine));
        assert_eq!(tag(Some(CALLS + 1), None), (1, Operator::Combine));
        assert_eq!(tag(Some(u32::MAX), None), (CALLS - 1, Operator::Combine));
        assert_eq!(tag(None, None), (0, Operator::Combine));
        assert_eq!(tag(None, Some(2)), (3, Operator::Combine));
        assert_eq!(tag(None, Some(CALLS - 1)), (0, Operator::Combine));
        assert_eq!(Numbering { calls: 0, ..numbering(Some(7)) }.tag(None), Tag(0));
    }

    #[test]
    fn only_the_former_use_of_a_word_means_nothing_yet() {
        let [tag, former, other] = [5, 3, 4].map(|call| numbering(Some(call)).tag(None));
        let tags = Tags { tag, former: Some(former), is_checked: true };
        let word = |tag| Tags { tag, ..tags }.with(ARRIVED);
        assert_eq!(tags.read(0, AWAITED), Ok(None));
        assert_eq!(tags.read(word(tag), AWAITED), Ok(Some(ARRIVED)));
        assert_eq!(tags.read(tags.with(status(9)), AWAITED), Ok(Some(status(9))));
        assert_eq!(tags.read(word(former), AWAITED), Ok(None));
        let refused = ProtocolError::OtherCall { awaited: AWAITED, seen: other, expected: tag };
        assert_eq!(tags.read(word(other), AWAITED), Err(refused));
        assert_eq!(tags.read(7, AWAITED), Err(AWAITED.refused(7)));
        assert_eq!(Tags::NONE.read(word(tag), AWAITED), Err(AWAITED.refused(word(tag))));
        assert_eq!(Tags::NONE.read(ARRIVED, AWAITED), Ok(Some(ARRIVED)));
    }

    /// A tool has the selector of a core that has begun calls 4, 5 and 6, and does not know what came before.
    #[test]
    fn a_tool_judges_words_by_the_selector_as_the_core_does() {
        let tag = |call| numbering(Some(call)).tag(None);
        let word = |call| Tags { tag: tag(call), ..Tags::NONE }.with(ARRIVED);
        for first in [4, CALLS - 1, CALLS - 2] {
            let numbers = [first, first + 1, first + 2].map(|call| call % CALLS);
            let tags = numbers.map(|call| tag(call).bits() + 1);
            // Partitions 0, 1, 0: the next one is 1.
            let selector = tags[1] << 32 | tags[2] << 16 | 1;
            let begun = Begun::of_selector(selector).unwrap();
            assert_eq!(begun.tag(), tag(numbers[2]));
            assert_eq!(begun.read(0, AWAITED), Ok(None));
            assert_eq!(begun.read(word(numbers[2]), AWAITED), Ok(Some(ARRIVED)));
            assert_eq!(begun.read(word(numbers[0]), AWAITED), Ok(None));
            assert_eq!(begun.read(word((first + CALLS - 2) % CALLS), AWAITED), Ok(None));
            for other in [first + 1, first + 3, first + 40].map(|call| tag(call % CALLS)) {
                let refused =
                    ProtocolError::OtherCall { awaited: AWAITED, seen: other, expected: begun.tag() };
                assert_eq!(begun.read(word(other.call()), AWAITED), Err(refused), "{first}");
                let flag = other.bits() << 32 | u64::from(WINDOW_FLAG);
                assert_eq!(Begun::tagged(begun.tag()).in_window(flag, AWAITED), Err(refused));
            }
            assert_eq!(begun.read(7, AWAITED), Err(AWAITED.refused(7)));
        }
        // The first call of a partition, whose places are new.
        let first = Begun::of_selector((tag(4).bits() + 1) << 16 | 1).unwrap();
        assert!(first.read(word(3), AWAITED).is_err() && Begun::tagged(tag(4)) == first);
        for none in [0, 1, 2, 7 << 16] {
            assert_eq!(Begun::of_selector(none), None, "{none:#x}");
        }
    }
}
