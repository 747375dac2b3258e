//! fullmesh_v2 against the oracle, against corruption, and what it is for.

mod blocks;
mod rounds;
