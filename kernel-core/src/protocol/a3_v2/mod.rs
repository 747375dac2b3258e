//! fullmesh_v2: a dispatch whose records carry a flag in each block. Combine, the constants of a core, its scratch and the
//! obligations of the driver are those of [`a3`](crate::protocol::a3).

mod dispatch;

pub use dispatch::Dispatch;

#[cfg(test)]
mod tests;
