//! A trace in words, with the actor and the rank whose memory it touched.

use core::fmt;

/// Who does something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// What is before that.
    pub words: String,
    /// The rank; none if it is all of them.
    pub rank: Option<u32>,
    /// Its core; none of an agent.
    pub core: Option<u32>,
}

/// Something that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// In words.
    pub text: String,
    /// The rank whose memory it was done to, or read in.
    pub memory: Option<u32>,
    /// Whether it was read there.
    pub is_read: bool,
}

impl Told {
    /// An event that no memory shows.
    pub fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), memory: None, is_read: false }
    }
}

/// What one actor did without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who.
    pub who: Who,
    /// What, in order.
    pub did: Vec<Told>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.who.words)?;
        for (i, did) in self.did.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "; " }, did.text)?;
        }
        Ok(())
    }
}
