//! Tests of fullmesh_v2: whole rounds and its blocks.

mod blocks;
mod rounds;
