//! Places in memory: a region of a rank and an offset in it.

use crate::units::Offset;
use core::fmt;

named! {
    /// An output tensor of an operator.
    #[repr(u8)]
    Tensor {
        /// `expand_x`, received rows as they travel.
        ExpandX = "expand_x",
        /// `dynamic_scales`, f32 per row.
        DynamicScales = "dynamic_scales",
        /// `assist_info_for_combine`, three i32 per row.
        AssistInfo = "assist_info_for_combine",
        /// `expand_idx`, i32 per (token, k).
        ExpandIdx = "expand_idx",
        /// `expert_token_nums`, i64 per local expert.
        ExpertTokenNums = "expert_token_nums",
        /// `ep_recv_counts`, i32 per (local expert, source rank).
        EpRecvCounts = "ep_recv_counts",
        /// `x_out`, rows of dtype.
        XOut = "x_out",
        /// `x` of AddRmsNorm, rows of dtype: the result plus the residual.
        X = "x",
        /// `rstd` of AddRmsNorm, f32 per token.
        Rstd = "rstd",
        /// `y` of AddRmsNorm, rows of dtype.
        Y = "y",
        /// `tp_recv_counts`, i32 per TP rank.
        TpRecvCounts = "tp_recv_counts",
        /// The row table of in-place receive, u64 per row: see [`row_table`](crate::layout::row_table).
        RowTable = "row_table",
        /// `sent_rows` of direct placement, i32 per (token, k) and then per (token, shared expert): the pair's row at its
        /// expert's rank, -1 if the pair is not sent.
        SentRows = "sent_rows",
        /// `expand_scales`, f32 per row (A2 hierarchy).
        ExpandScales = "expand_scales",
    }
}

impl Tensor {
    /// Returns whether the tensor has an entry for each received row. Only the entries of rows that came are written.
    #[must_use]
    pub const fn is_of_received_rows(self) -> bool {
        matches!(
            self,
            Self::ExpandX | Self::DynamicScales | Self::AssistInfo | Self::ExpandScales | Self::RowTable
        )
    }

    /// Returns whether combine writes the tensor. Dispatch writes the others.
    #[must_use]
    pub const fn is_of_combine(self) -> bool {
        matches!(self, Self::XOut) || self.is_of_norm()
    }

    /// Returns whether only combine with AddRmsNorm writes the tensor.
    #[must_use]
    pub const fn is_of_norm(self) -> bool {
        matches!(self, Self::X | Self::Rstd | Self::Y)
    }
}

/// A stretch of memory that a rank owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Flags, selectors and core words; 1 MiB, zeroed when the group is created.
    State,
    /// The data region, `hccl_buffsize_mb`. On A2 it is WindowsIn.
    Window,
    /// A2's WindowsOut: data for peers, as large as WindowsIn. Only this rank writes it; tasks read it.
    WindowOut,
    /// Slots and selectors of the TP domain; 1 MiB, zeroed when the group is created.
    TpState,
    /// Rows that TP peers lend each other.
    TpWindow,
    /// A result of the running operator; only this rank's cores touch it.
    Output(Tensor),
}

impl Region {
    /// Returns whether ranks are numbered within the TP domain when this region is addressed.
    #[must_use]
    pub const fn is_of_tp(self) -> bool {
        matches!(self, Self::TpState | Self::TpWindow)
    }

    /// Returns the region's name in maps and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Window => "window",
            Self::WindowOut => "window_out",
            Self::TpState => "tp_state",
            Self::TpWindow => "tp_window",
            Self::Output(tensor) => tensor.name(),
        }
    }
}

/// A position in a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The region.
    pub region: Region,
    /// The distance in bytes from the region's start.
    pub offset: Offset,
}

impl Place {
    /// Creates a place in the state region.
    #[must_use]
    pub const fn state(offset: Offset) -> Self {
        Self { region: Region::State, offset }
    }

    /// Creates a place in the data region.
    #[must_use]
    pub const fn window(offset: Offset) -> Self {
        Self { region: Region::Window, offset }
    }

    /// Creates a place in A2's WindowsOut.
    #[must_use]
    pub const fn window_out(offset: Offset) -> Self {
        Self { region: Region::WindowOut, offset }
    }

    /// Creates a place in an output tensor.
    #[must_use]
    pub const fn output(tensor: Tensor, offset: Offset) -> Self {
        Self { region: Region::Output(tensor), offset }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.region.name(), self.offset)
    }
}
