//! What the documents say of the code is so: the scripts that write it would change nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn would_change_nothing(script: &str) {
    let output = Command::new(root().join("scripts").join(script))
        .arg("--check")
        .output()
        .expect("the script");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_requirement_is_in_the_code_and_in_a_test() {
    would_change_nothing("requirements");
}

#[test]
fn no_import_of_the_switch_runs_up_and_no_circle_leaves_its_room() {
    would_change_nothing("structure");
}

/// The Markdown files of a folder and those below it.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let own = files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    own.chain(folders.iter().flat_map(|folder| pages(folder))).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim());
    let kept = |heading: &str| -> String {
        let lower = heading.to_lowercase();
        lower.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect()
    };
    headings.map(|heading| kept(heading).replace(' ', "-")).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut all = pages(&root().join("docs"));
    all.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut broken = Vec::new();
    for page in &all {
        let text = std::fs::read_to_string(page).expect("the page");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let has_anchor = |page: String| anchors(&page).iter().any(|one| one == anchor);
            let is_there = file.exists()
                && (anchor.is_empty() || std::fs::read_to_string(&file).is_ok_and(has_anchor));
            if !is_there {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(all.len() > 10 && broken.is_empty(), "{broken:#?}");
}

/// What a page has in backquotes that looks like a file or a folder of the repository.
fn paths(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |one: &&str| one.contains('/') && !one.contains([' ', '*', '$', '<']);
    quoted.filter(is_path).filter(|one| !one.starts_with("target/")).collect()
}

#[test]
fn files_that_pages_for_contributors_name_exist() {
    for page in ["docs/glossary.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect("the page");
        let (there, missing): (Vec<_>, Vec<_>) =
            paths(&text).into_iter().partition(|path| root().join(path).exists());
        assert!(there.len() > 20 && missing.is_empty(), "{page}: {missing:#?}");
    }
}

#[test]
fn ten_changes_name_the_files_they_need() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page");
    let (_, part) = page.split_once("\n| change |").expect("the table");
    let (table, recipes) = part.split_once("\n\n").expect("what follows the table");
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert_eq!(rows.len(), 10, "{rows:#?}");
    let few: Vec<_> = rows.iter().filter(|row| paths(row).len() < 4).collect();
    assert!(few.is_empty(), "{few:#?}");
    for recipe in ["hook", "socket option", "session message", "reason", "lock"] {
        assert!(recipes.contains(&format!("\n## Adding a {recipe}\n")), "{recipe}");
    }
    assert!(recipes.contains("\n## Adding or renaming a configuration key\n"));
}

/// A figure of a table, whose first part counts: "2.26×", "0.08–0.47".
fn figure(cell: &str) -> Option<f64> {
    cell.split(['×', '–', ' ']).next()?.replace(',', "").parse().ok()
}

/// Times are the SAN's in multiples of the floor's, rates the other way round: more is worse in both.
#[test]
fn a_ratio_is_that_of_the_columns_its_heading_names() {
    let page = std::fs::read_to_string(root().join("docs/performance.md")).expect("the page");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let mut judged = 0;
    let mut headings: &[&str] = &[];
    for row in &rows {
        if row.iter().any(|cell| cell.contains('÷')) {
            headings = row;
            continue;
        }
        let at = |name: &str| headings.iter().position(|heading| *heading == name);
        let of = |name: &str| figure(row.get(at(name)?)?);
        let (Some(floor), Some(san)) = (of("floor"), of("SAN")) else { continue };
        for (heading, quotient) in [("SAN ÷ floor", san / floor), ("floor ÷ SAN", floor / san)] {
            // Where both are nearly the same either will do.
            if let Some(ratio) = of(heading).filter(|ratio| *ratio > 2.0) {
                assert!((ratio / quotient).ln().abs() < (ratio * quotient).ln().abs(), "{row:?}");
                judged += 1;
            }
        }
    }
    assert!(judged >= 6, "{judged}");
}

#[test]
fn the_readme_answers_for_each_service_that_users_ask_about() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the page");
    let (_, part) = readme.split_once("## My service\n").expect("the part");
    let table: Vec<_> = part.lines().filter(|line| line.starts_with("| ")).collect();
    for service in [
        "nginx in a container (Docker",
        "Go",
        "PostgreSQL as its own user",
        "Java",
        "musl images",
        "php-fpm",
        "tokio",
        "static programs",
        "node",
        "RabbitMQ",
        "`memcached -u",
        "sshd",
        "haproxy",
    ] {
        let row = table.iter().find(|line| line.starts_with(&format!("| {service}")));
        // Its name, whether it gains, and what to do.
        let cells = row.map(|row| row.split('|').filter(|cell| cell.trim().len() > 1).count());
        assert_eq!(cells, Some(3), "{service}");
    }
    // Words of those who change the library are none of its users'.
    for word in ["anchor", "doorbell", "adverse"] {
        assert!(!readme.to_lowercase().contains(word), "{word}");
    }
    assert!(readme.contains("the *SAN* (") && readme.contains("*sockmap*, by which the kernel"));
}

/// The commands of "Use it on your program", as they are written, by a shell that finds no other sanctl.
#[test]
fn what_the_readme_has_the_user_type_runs() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the page");
    let (_, part) = readme.split_once("## Use it on your program\n").expect("the part");
    let typed = part.lines().filter_map(|line| line.strip_prefix("    "));
    let typed: Vec<_> = typed.take_while(|line| !line.starts_with("sanctl run")).collect();
    // Who runs the tests has built it.
    let (builds, others): (Vec<_>, Vec<_>) =
        typed.into_iter().partition(|line| line.starts_with("cargo build"));
    assert!(builds.len() == 1 && others.len() >= 2, "{others:?}");
    // Where it was built, which need not be where the page says.
    let place = tempfile::tempdir().expect("a folder");
    let test = std::env::current_exe().expect("the test's path");
    std::fs::create_dir(place.path().join("target")).expect("mkdir");
    let own = test.ancestors().nth(2).expect("target/<profile>/deps/test");
    let named = std::env::var_os("SANCTL").map(PathBuf::from);
    let built = named.as_deref().and_then(Path::parent).unwrap_or(own);
    std::os::unix::fs::symlink(built, place.path().join("target/release")).expect("link");
    let script = format!("set -e\n{}\n", others.join("\n"));
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.path())
        .env("PATH", "/usr/bin:/bin")
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SANSHIM_LIBRARY")
        .env_remove("SANSHIM_CONFIG")
        .output()
        .expect("sh runs");
    assert!(output.status.success(), "{output:?}");
}
