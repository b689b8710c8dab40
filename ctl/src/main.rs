//! sanctl
fn main() {}
