//! The place where experts leave their results, a choice of a group.

use crate::error::Error;
use veriep_core::protocol::Receive;

/// The place where experts leave their results (with rows that are placed directly).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Experts {
    /// In memory of their own.
    #[default]
    Apart,
    /// In the places of the rows that they came from.
    Overwrite,
}

impl Experts {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Apart, Self::Overwrite];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apart => "apart",
            Self::Overwrite => "overwrite",
        }
    }

    /// Returns one sentence about it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Apart => "In memory of their own",
            Self::Overwrite => {
                "In the places of the rows that they came from; needs --receive direct and quant_mode = 0"
            }
        }
    }

    /// Returns the place that has this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|experts| experts.name() == name)
    }

    /// Returns the place that goes with a way to receive.
    #[must_use]
    pub const fn under(receive: Receive) -> Self {
        if receive.overwrites() { Self::Overwrite } else { Self::Apart }
    }

    /// Returns `receive` with results at this place.
    ///
    /// # Errors
    /// Results are to overwrite rows, and `receive` is not direct.
    pub fn of(self, receive: Receive) -> Result<Receive, Error> {
        match (self, receive) {
            (Self::Apart, _) => Ok(receive),
            (Self::Overwrite, Receive::Direct { areas } | Receive::Overwrite { areas }) => {
                Ok(Receive::Overwrite { areas })
            }
            (Self::Overwrite, _) => Err(Error::Request(format!(
                "--experts overwrite: only --receive direct has it, not {}; hint: --receive direct",
                receive.name()
            ))),
        }
    }
}
