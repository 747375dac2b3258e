//! What is to be done, as data: who sends what, where, in which order. Iterators and indices of small `Copy`
//! items; the machines interpret them, a kernel generator prints them. Nothing here touches memory of others.

pub mod counts;
pub mod order;
pub mod permute;
pub mod route;
pub mod split;
