//! Where everything lies: one file per region, its drawing on top. Pure arithmetic; each offset formula of
//! the system stands here once.

pub mod a2_message;
pub mod a2_window;
pub mod block;
pub mod data;
pub mod direct;
pub mod map;
pub mod outputs;
pub mod record;
pub mod relay;
pub(crate) mod result;
pub mod row_table;
pub mod state;
pub mod tp;

use crate::shape::{Protocol, Shape};
use crate::units::RankId;

/// Tells `each` area of the memory of `rank`, whatever the protocol.
pub fn each_area(shape: &Shape, rank: RankId, each: &mut dyn FnMut(map::Area)) {
    match shape.protocol() {
        Protocol::Fullmesh => a2_window::areas(shape).for_each(each),
        Protocol::Hierarchy => relay::areas(shape).for_each(each),
        Protocol::FullmeshV1 | Protocol::FullmeshV2 => map::areas(shape, rank).for_each(each),
    }
}

#[cfg(test)]
mod tests;
