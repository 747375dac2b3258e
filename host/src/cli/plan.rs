//! What `veriep plan` can be asked.

use super::{ConfigArgs, ModeArgs, OrderArg};
use crate::generate::{MaskKind, Routing};
use clap::{Args, ValueEnum};
use veriep_core::plan::shared::SharedSplit;

/// How tokens are spread over the replicas of a shared expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SharedArg {
    /// All tokens of a rank to one replica: what the operators do.
    #[default]
    AllIn,
    /// Evenly over all replicas, as before; only a plan.
    Even,
}

impl From<SharedArg> for SharedSplit {
    fn from(split: SharedArg) -> Self {
        match split {
            SharedArg::AllIn => Self::AllIn,
            SharedArg::Even => Self::Even,
        }
    }
}

/// `veriep plan`
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Configuration; of a case the experts are known.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Choose experts as `gen` does with that seed; left out: a case's own, else they are not known.
    #[arg(long)]
    pub seed: Option<u64>,
    /// How tokens choose experts; the preset's own if left out, else uniform.
    #[arg(long, value_enum, requires = "seed")]
    pub routing: Option<Routing>,
    /// Active masks as `gen` makes them.
    #[arg(long, value_enum, default_value_t, requires = "seed")]
    pub mask: MaskKind,
    /// Whose plan; left out: a summary of all ranks.
    #[arg(long)]
    pub rank: Option<u32>,
    /// Which core of that rank; on A2 left out: all of them.
    #[arg(long, requires = "rank")]
    pub core: Option<u32>,
    /// In which order cores send.
    #[arg(long, value_enum, default_value_t)]
    pub order: OrderArg,
    /// How tokens are spread over the replicas of a shared expert.
    #[arg(long, value_enum, default_value_t)]
    pub shared: SharedArg,
    /// Choices of the group.
    #[command(flatten)]
    pub mode: ModeArgs,
    /// The step whose packets are counted by port.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub step: u32,
}
