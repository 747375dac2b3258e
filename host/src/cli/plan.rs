//! What `veriep plan` can be asked.

use super::help::{INPUT, OUTPUT, PROTOCOL};
use super::{ConfigArgs, ModeArgs, OrderArg};
use crate::generate::{MaskKind, Routing};
use clap::{Args, ValueEnum};
use veriep_core::plan::shared::SharedSplit;

/// How tokens are spread over the replicas of a shared expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SharedArg {
    /// All tokens of a rank go to one replica, as the operators do it.
    #[default]
    AllIn,
    /// Evenly over all replicas, the older rule; it can be planned, not run.
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

#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Configuration; of a case the experts are known.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Choose experts as `gen` does with this seed. By default those of a case; of a configuration they are unknown.
    #[arg(long, help_heading = INPUT)]
    pub seed: Option<u64>,
    /// How tokens choose experts; by default the preset's own choice, else uniform.
    #[arg(long, value_enum, requires = "seed", help_heading = INPUT)]
    pub routing: Option<Routing>,
    /// Make active masks as `gen` does.
    #[arg(long, value_enum, default_value_t, requires = "seed", help_heading = INPUT)]
    pub mask: MaskKind,
    /// Rank whose plan is printed; by default a summary of all ranks.
    #[arg(long, help_heading = OUTPUT)]
    pub rank: Option<u32>,
    /// Core of that rank; on A2 all of them by default.
    #[arg(long, requires = "rank", help_heading = OUTPUT)]
    pub core: Option<u32>,
    /// Order in which a core sends its items.
    #[arg(long, value_enum, default_value_t, help_heading = PROTOCOL)]
    pub order: OrderArg,
    /// How tokens are spread over the replicas of a shared expert.
    #[arg(long, value_enum, default_value_t, help_heading = PROTOCOL)]
    pub shared: SharedArg,
    #[command(flatten)]
    pub mode: ModeArgs,
    /// The step whose packets are counted by port.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = OUTPUT)]
    pub step: u32,
}
