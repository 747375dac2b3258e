//! Duties of a group of processes that can be left out, to see that somebody notices. Tests name one in `VERIEP_TWIN`; builds
//! without debug assertions leave out none.

/// A duty.
#[derive(Clone, Copy, Debug)]
pub(super) enum Duty {
    /// A process says that it runs, whatever its workers do.
    Beat,
    /// A process dies with its parent.
    DieWithParent,
    /// Whoever watches looks who has ended.
    Look,
}

impl Duty {
    pub(super) fn is_left_out(self) -> bool {
        let name = match self {
            Self::Beat => "beat",
            Self::DieWithParent => "die-with-parent",
            Self::Look => "look",
        };
        cfg!(debug_assertions) && std::env::var_os("VERIEP_TWIN").is_some_and(|twin| twin == name)
    }
}
