//! Hands the linker the order of the library's code and words. GNU ld and lld understand it; gold and mold do not.

fn main() {
    let order = concat!(env!("CARGO_MANIFEST_DIR"), "/order.ld");
    println!("cargo:rerun-if-changed={order}");
    println!("cargo:rustc-cdylib-link-arg=-T{order}");
}
