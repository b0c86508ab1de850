//! Waggle
fn main() {}
