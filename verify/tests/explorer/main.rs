//! Models that the explorer finds safe, and twins that it catches.

mod verdict;

mod a2;
mod agreement;
mod argument;
mod blocks;
mod busy;
mod domains;
mod flags;
mod forty;
mod gates;
mod halves;
mod hierarchy;
mod liveness;
mod museum;
mod orders;
mod receive;
mod refinement;
mod small;
mod twins;
mod windows;
