//! What is to be done, as data: who sends what, where, in which order. Iterators and indices of small `Copy`
//! items; the machines interpret them, a kernel generator prints them. Nothing here touches memory of others.

pub mod counts;
pub mod experts;
pub mod incast;
pub mod order;
pub mod permute;
pub mod port;
pub mod relay;
pub mod returns;
pub mod route;
pub mod shared;
pub mod split;
pub mod table;
