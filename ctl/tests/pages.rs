//! The man pages that the package has.

use std::fs;
use std::process::Command;

const SANCTL: &str = env!("CARGO_BIN_EXE_sanctl");

#[test]
fn each_page_has_the_sections_that_readers_look_for() {
    let folder = std::env::temp_dir().join(format!("sanshim-pages-{}", std::process::id()));
    let made = Command::new(SANCTL).arg("generate").arg(&folder).status().expect("sanctl runs");
    assert!(made.success());
    let page = |name: &str| fs::read_to_string(folder.join("man").join(name)).expect("the page");
    for command in [
        "sanctl",
        "sanctl-run",
        "sanctl-status",
        "sanctl-top",
        "sanctl-why",
        "sanctl-trace",
        "sanctl-export",
        "sanctl-detach",
        "sanctl-systemd",
        "sanctl-check",
        "sanctl-providers",
    ] {
        let page = page(&format!("{command}.1"));
        for section in ["NAME", "SYNOPSIS", "ENVIRONMENT", "FILES", "EXAMPLES", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {section}\n")), "{command} has no {section}");
        }
        assert!(!page.contains("EXTRA") && page.contains("sanshim.toml"), "{command}");
        let example = page.rsplit_once(".SH EXAMPLES\n").expect("examples").1;
        let own = command.replacen('-', " ", 1);
        assert!(example.contains(&format!("\\fB{own}")), "{command}: {example}");
    }
    assert!(page("sanctl-run.1").contains(".SH \"EXIT STATUS\"\nthe program"));
    let rules = page("sanshim.toml.5");
    for name in ["allow_users", "move_after", "spin_microseconds", "[[rule]]", "san = true"] {
        assert!(rules.contains(name), "{name}");
    }
    fs::remove_dir_all(&folder).expect("its end");
}
