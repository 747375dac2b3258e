//! fullmesh_v2: dispatch whose records carry flags of their own, block by block. Combine is that of
//! [`a3`](crate::protocol::a3), and so are the constants of a core, its scratch and what the driver owes.

mod dispatch;

pub use dispatch::Dispatch;

#[cfg(test)]
mod tests;
