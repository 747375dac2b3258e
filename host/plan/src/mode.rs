//! The choices that a request makes for a group, by name, and what a shape leaves of them.

use veriep_case::case::support;
use veriep_case::error::Error;
use veriep_case::experts::Experts;
use veriep_core::fabric::{Capabilities, Terms};
use veriep_core::layout::state::Slots;
use veriep_core::plan::order::SendOrder;
use veriep_core::protocol::{Choices, Flags, Receive, Stage};
use veriep_core::shape::{Protocol, Shape};
use veriep_spread::shared::SharedSplit;

/// Returns the name of an order.
#[must_use]
pub const fn order_name(order: SendOrder) -> &'static str {
    match order {
        SendOrder::Plain => "plain",
        SendOrder::Staggered => "staggered",
        SendOrder::Destinations => "destinations",
        SendOrder::Stride => "stride",
    }
}

/// Returns the name of a split of tokens over the replicas of a shared expert.
#[must_use]
pub const fn split_name(split: SharedSplit) -> &'static str {
    match split {
        SharedSplit::AllIn => "all-in",
        SharedSplit::Even => "even",
    }
}

/// The choices of a group that decide where things lie. What is left out is chosen by the shape.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub receive: Receive,
    pub experts: Experts,
    pub flags: Option<Flags>,
    /// 2 or 3.
    pub stage: Option<u32>,
    pub slots: Slots,
    /// Words have the numbers of their calls.
    pub checked: bool,
    /// In bytes.
    pub port_offset: i64,
}

impl Mode {
    /// Returns the choices of a group of `shape`.
    ///
    /// # Errors
    /// The choices exclude each other, or the shape excludes one.
    pub fn choices(&self, shape: &Shape) -> Result<Choices, Error> {
        self.receiving(shape, self.experts.of(self.receive)?)
    }

    /// Returns the choices of a group of `shape` that has `in_flight` batches in flight and sends in this order.
    ///
    /// # Errors
    /// As [`choices`](Self::choices).
    pub fn ordered(&self, shape: &Shape, in_flight: usize, order: SendOrder) -> Result<Choices, Error> {
        let receive = self.experts.of(self.receive)?.with_batches(in_flight);
        Ok(Choices { order, ..self.receiving(shape, receive)? })
    }

    /// Returns the choices of a group of `shape` that receives rows as `receive` says.
    ///
    /// # Errors
    /// As [`choices`](Self::choices).
    pub fn receiving(&self, shape: &Shape, receive: Receive) -> Result<Choices, Error> {
        support::receives(shape, receive)?;
        let (flags, stage) = (flags(shape, self.flags, receive)?, stage(shape, self.stage)?);
        let (checked, slots) = (self.checked, self.slots);
        let choices = Choices { flags, receive, stage, checked, slots, ..Choices::default() };
        choices
            .check(shape, Terms::new(Capabilities::all()))
            .map_err(|refused| Error::Request(refused.to_string()))?;
        Ok(choices)
    }
}

/// Only the hierarchy has stages.
fn stage(shape: &Shape, stage: Option<u32>) -> Result<Stage, Error> {
    match (shape.protocol(), stage) {
        (Protocol::Hierarchy, Some(2)) => Ok(Stage::Two),
        (_, None) | (Protocol::Hierarchy, Some(_)) => Ok(Stage::Three),
        (_, Some(stage)) => {
            Err(Error::Request(format!("--stage {stage}: only comm_alg = hierarchy has stages")))
        }
    }
}

/// The flags that a request asks for.
fn flags(shape: &Shape, asked: Option<Flags>, receive: Receive) -> Result<Flags, Error> {
    flags_of(shape.protocol(), asked, receive)
}

/// Returns the flags that a request asks for, of this protocol.
///
/// # Errors
/// The protocol has no such choice.
pub fn flags_of(protocol: Protocol, asked: Option<Flags>, receive: Receive) -> Result<Flags, Error> {
    let has_none = match protocol {
        Protocol::FullmeshV1 => receive.is_direct().then_some("--receive direct has counts before rows"),
        Protocol::FullmeshV2 => Some("comm_alg = fullmesh_v2 has a flag in every block"),
        _ => Some("product = a2 has flags in its windows"),
    };
    if let (Some(why), Some(_)) = (has_none, asked) {
        return Err(Error::Request(format!("--flags: {why}: must be left out")));
    }
    Ok(asked.unwrap_or_default())
}
