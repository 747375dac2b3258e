//! The ways in which a process leaves its group.

use core::fmt;

/// How a process has left its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Killed by that signal.
    Signal(i32),
    /// Ended by itself with that status, without a word.
    Exit(i32),
    /// It does not run.
    Silent,
    /// By itself, before the others could go on without it.
    Left,
    /// It runs no more; how that came is not known.
    Ended,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Exit(status) => write!(f, "exit {status}"),
            Self::Silent => f.write_str("silent"),
            Self::Left => f.write_str("left"),
            Self::Ended => f.write_str("ended"),
        }
    }
}

impl How {
    pub(super) const fn word(self) -> u64 {
        let (kind, number) = match self {
            Self::Signal(signal) => (1, signal),
            Self::Exit(status) => (2, status),
            Self::Silent => (3, 0),
            Self::Left => (4, 0),
            Self::Ended => (5, 0),
        };
        kind | (number.cast_unsigned() as u64) << 32
    }

    pub(super) const fn of_word(word: u64) -> Option<Self> {
        let number = ((word >> 32) as u32).cast_signed();
        match word as u32 {
            1 => Some(Self::Signal(number)),
            2 => Some(Self::Exit(number)),
            3 => Some(Self::Silent),
            4 => Some(Self::Left),
            5 => Some(Self::Ended),
            _ => None,
        }
    }
}
