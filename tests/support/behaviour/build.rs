//! Compiles the C sources once per change and asks each program for its cases.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use super::{Carrier, Case};

/// One compiled area.
#[derive(Debug, Clone)]
pub struct Program {
    /// The source's name without `.c`, e.g. `epoll`.
    pub area: String,
    /// The executable.
    pub path: PathBuf,
}

/// Compiles every area into `folder` unless that is newer than its sources, two at a time.
///
/// # Errors
/// A missing compiler or a source that does not compile, with the compiler's words.
pub fn build(folder: &Path) -> Result<Vec<Program>, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("behaviour");
    fs::create_dir_all(folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    let entries = fs::read_dir(&sources)
        .map_err(|e| format!("cannot read the sources in {}: {e}", sources.display()))?;
    let mut areas: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_suffix(".c").filter(|area| *area != "bt").map(str::to_owned)
        })
        .collect();
    areas.sort();

    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        while let Some(area) = areas.get(next.fetch_add(1, Ordering::Relaxed)) {
            compile(&sources, area, &folder.join(area))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mine = work();
        other.join().expect("the compiling thread panicked").and(mine)
    })?;
    Ok(areas.into_iter().map(|area| Program { path: folder.join(&area), area }).collect())
}

fn compile(sources: &Path, area: &str, output: &Path) -> Result<(), String> {
    let inputs = [sources.join("bt.c"), sources.join(format!("{area}.c"))];
    let headers =
        ["bt.h", "detaching.h", "handed_on.h", "traced.h"].map(|header| sources.join(header));
    let changed = inputs.iter().chain(&headers).filter_map(|p| modified(p)).max();
    if modified(output) > changed {
        return Ok(());
    }
    // Another run may execute the old file or compile the same: replace it in one step.
    let fresh = output.with_extension(format!("{}.new", std::process::id()));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-pthread"]);
    if area == "fortified" {
        compiler.args(["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]);
    } else {
        compiler.arg("-U_FORTIFY_SOURCE");
    }
    let result = compiler.args(&inputs).arg("-o").arg(&fresh).output();
    let result = result.map_err(|e| format!("cannot run the C compiler (install gcc): {e}"))?;
    if !result.status.success() {
        return Err(format!("{area}.c: {}", String::from_utf8_lossy(&result.stderr)));
    }
    fs::rename(&fresh, output).map_err(|e| format!("cannot create {}: {e}", output.display()))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

impl Program {
    /// The cases, as the program itself lists them.
    ///
    /// # Errors
    /// The program does not run or lists nothing.
    pub fn cases(&self) -> Result<Vec<Case>, String> {
        let output = Command::new(&self.path)
            .arg("list")
            .output()
            .map_err(|e| format!("cannot run {}: {e}", self.path.display()))?;
        let mut cases = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let (name, marker) = line.split_once(' ').unwrap_or((line, ""));
            let carrier = match marker {
                "" => Carrier::Any,
                "san" => Carrier::San,
                "swaps" => Carrier::Swaps,
                "mixed" => Carrier::Mixed,
                _ => return Err(format!("{}: what is '{line}'?", self.path.display())),
            };
            cases.push(Case { program: self.clone(), name: name.to_owned(), carrier });
        }
        if !output.status.success() || cases.is_empty() {
            return Err(format!("{} lists no cases", self.path.display()));
        }
        Ok(cases)
    }
}
