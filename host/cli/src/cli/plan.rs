//! The options of `veriep plan`.

use super::help::{INPUT, OUTPUT, PROTOCOL};
use super::{ByName, ConfigArgs, ModeArgs};
use clap::Args;
use veriep_case::generate::{MaskKind, Routing};
use veriep_core::plan::order::SendOrder;
use veriep_spread::shared::SharedSplit;

#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Configuration; of a case the experts are known.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Choose experts as `gen` does with this seed. By default those of a case; of a configuration they are unknown.
    #[arg(long, help_heading = INPUT)]
    pub seed: Option<u64>,
    /// Distribution of tokens over experts; by default that of the preset, else uniform.
    #[arg(long, value_parser = Routing::parser(), requires = "seed", help_heading = INPUT)]
    pub routing: Option<Routing>,
    /// Make active masks as `gen` does.
    #[arg(long, value_parser = MaskKind::parser(), default_value = "none", requires = "seed", help_heading = INPUT)]
    pub mask: MaskKind,
    /// Rank whose plan is printed; by default a summary of all ranks.
    #[arg(long, help_heading = OUTPUT)]
    pub rank: Option<u32>,
    /// Core of that rank; on A2 all of them by default.
    #[arg(long, requires = "rank", help_heading = OUTPUT)]
    pub core: Option<u32>,
    /// Order in which a core sends its items.
    #[arg(long, value_parser = SendOrder::parser(), default_value = "staggered", help_heading = PROTOCOL)]
    pub order: SendOrder,
    /// Distribution of tokens over the replicas of a shared expert.
    #[arg(long, value_parser = SharedSplit::parser(), default_value = "all-in", help_heading = PROTOCOL)]
    pub shared: SharedSplit,
    #[command(flatten)]
    pub mode: ModeArgs,
    /// The step whose packets are counted by port.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = OUTPUT)]
    pub step: u32,
}
