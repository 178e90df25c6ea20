//! The `onceward` binary.

fn main() {}
