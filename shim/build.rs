//! Hands the linker the order of the library's code and words. GNU ld and lld understand it; gold and mold do not. And has it
//! bind hooks that call each other, or are handed out, at once: another preloaded library that has such a function too would
//! get between, and be called again by what it calls.

fn main() {
    let order = concat!(env!("CARGO_MANIFEST_DIR"), "/order.ld");
    println!("cargo:rerun-if-changed={order}");
    println!("cargo:rustc-cdylib-link-arg=-T{order}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
