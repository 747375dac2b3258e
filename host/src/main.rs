//! veriep
fn main() {}
