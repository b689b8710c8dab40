//! What `libsanshim.so` needs of a host.

use std::path::{Path, PathBuf};
use std::process::Command;

use sanshim_tests::behaviour::shim_library;

/// Nothing but the C library: libibverbs and the like belong to provider libraries.
const LIBRARIES: [&str; 3] = ["ld-linux-x86-64.so.2", "libc.so.6", "libgcc_s.so.1"];

type Version = (u32, u32);

fn readelf(option: &str) -> String {
    let library: PathBuf = shim_library().expect("the library");
    let output = Command::new("readelf").args([option, "--wide"]).arg(library).output();
    let output = output.expect("readelf runs; see scripts/install");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The version after "glibc " or "GLIBC_", without further parts.
fn version(text: &str) -> Option<Version> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[test]
fn it_needs_the_c_library_alone() {
    let section = readelf("--dynamic");
    let needed = section.lines().filter(|line| line.contains("(NEEDED)"));
    let mut needed: Vec<&str> = needed.filter_map(|line| line.split(['[', ']']).nth(1)).collect();
    needed.sort_unstable();
    assert_eq!(needed, LIBRARIES);
}

#[test]
fn it_needs_no_newer_glibc_than_documented() {
    let section = readelf("--version-info");
    let newest = section.split("GLIBC_").skip(1).filter_map(version).max();
    let newest = newest.unwrap_or_else(|| panic!("no versions: {section}"));
    let limitations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/limitations.md");
    let limitations = std::fs::read_to_string(limitations).expect("docs/limitations.md");
    let documented = limitations.split("glibc ").skip(1).find_map(version);
    let documented = documented.expect("docs/limitations.md says which glibc is needed");
    assert!(newest <= documented, "needs {newest:?}, documented {documented:?}");
}

/// A new hook is a new way to change errno.
#[test]
fn errno_is_looked_at_after_each_hook() {
    const NEVER_COME_BACK: [&str; 2] = ["_exit", "_Exit"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("behaviour");
    let cases = std::fs::read_to_string(folder.join("errno.c")).expect("its cases");
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let named: Vec<&str> = cases.split(|letter| !is_word(letter)).collect();
    let symbols = readelf("--dyn-syms");
    // Num: Value Size Type Bind Vis Ndx Name
    let hooks: Vec<&str> = symbols
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() == 8 && words[3] == "FUNC" && words[6] != "UND")
        .map(|words| words[7])
        .collect();
    assert!(hooks.len() > 100, "{symbols}");
    for hook in hooks {
        let is_looked_at = named.contains(&hook) || NEVER_COME_BACK.contains(&hook);
        assert!(is_looked_at, "tests/behaviour/errno.c has no case of {hook}");
    }
}

/// Without it each process that a program forks for a connection pays for a dozen pages more.
#[test]
fn what_a_fork_child_touches_lies_together() {
    let order = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shim/order.ld");
    let order = std::fs::read_to_string(order).expect("shim/order.ld");
    let sections = readelf("--section-headers");
    let symbols = readelf("--symbols");
    // With room for what comes: two windows of sixteen pages and more than half of one, which lie in three; two pages.
    for (section, prefixes, most) in [
        (".text.near", [".text.*", ".text._"], 0x29000),
        (".data.near", [".data._*", ".bss._*"], 0x2000),
    ] {
        // [Nr] Name Type Address Off Size
        let header: Vec<&str> = sections
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix('['))
            .map(|line| line.split([' ', ']']).filter(|word| !word.is_empty()).collect())
            .find(|words: &Vec<&str>| words[1] == section)
            .unwrap_or_else(|| panic!("no {section}: {sections}"));
        let size = usize::from_str_radix(header[5], 16).expect("a size");
        assert!(size <= most, "{section}: {size:#x}");
        // Num: Value Size Type Bind Vis Ndx Name
        let names: Vec<&str> = symbols
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.len() == 8 && words[6] == header[0])
            .map(|words| words[7])
            .collect();
        let written = order.split_once(&format!("{section} :")).expect("its part").1;
        let written = written.split_once('}').expect("its end").0;
        let mut looked_for = 0;
        for word in written.split(['(', ')', ' ']) {
            let part = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix));
            if let Some(part) = part.map(|part| part.trim_end_matches('*')) {
                assert!(names.iter().any(|name| name.contains(part)), "{section} has no {part}");
                looked_for += 1;
            }
        }
        assert!(looked_for > 5, "{section}: {looked_for}");
        if section == ".text.near" {
            for hook in ["recv", "close", "epoll_wait", "__recv_chk"] {
                assert!(names.contains(&hook), "{hook} lies elsewhere");
            }
        }
    }
}
