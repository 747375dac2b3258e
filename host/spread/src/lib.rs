//! The spread of sends: over the receivers of a step ([`incast`]), over the ports of a link ([`port`]), and over the replicas of a
//! shared expert ([`shared`]). Plans print it, simulators charge for it, and generators of kernels choose by it. No machine of
//! `veriep-core` reads it.
#![no_std]

#[cfg(test)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod incast;
pub mod port;
pub mod shared;

#[cfg(test)]
#[path = "../../../kernel-core/src/tests/random.rs"]
mod random;

#[cfg(test)]
mod testing {
    use veriep_core::shape::{Buffer, Config, Limits, Shape};

    /// The shape of a configuration with a window just large enough, without the product's limits.
    pub(crate) fn shape(config: &Config<'_>) -> Shape {
        let required_mb = Buffer::with(config, Limits::None).required_mb;
        let config = Config { hccl_buffsize_mb: required_mb.cast_signed(), ..*config };
        Shape::new(&config, Limits::None).unwrap()
    }
}
