//! The inputs of a fuzz target that were worth keeping: `fuzz/seeds/NAME` has them one after the other, each behind its length (four
//! bytes, little-endian). `scripts/fuzz` writes the files.

/// Calls `target` with each; how many there are.
pub(crate) fn each(name: &str, target: impl Fn(&[u8])) -> usize {
    let path = format!("{}/../fuzz/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
    let all = std::fs::read(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
    let (mut rest, mut count) = (all.as_slice(), 0);
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (input, next) = behind.split_at(u32::from_le_bytes(*length) as usize);
        target(input);
        (rest, count) = (next, count + 1);
    }
    assert!(rest.is_empty(), "{path}: cut off");
    count
}
