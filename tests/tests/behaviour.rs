//! Every behaviour case natively and under the shim, with the same expectations:
//! `native::AREA::CASE` and `shim::AREA::CASE`. Those of the areas where much data moves, or moves in
//! odd ways, also with all of it going by RDMA: `shim-read::AREA::CASE`, `shim-write::..`, `shim-both::..`; and
//! those of the areas where processes share sockets also with every swap of control suspending the session, by RDMA:
//! `shim-suspend-rdma::AREA::CASE`, and where they take turns on them also in messages: `shim-suspend::..`. And all
//! with connections also over what connections between hosts use, as far as one host has it: `fabric::AREA::CASE`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use sanshim_tests::behaviour::{build, shim_library, Carrier, Case, Exercise, Mode, Program};

/// Areas whose cases run by RDMA too.
const RDMA_AREAS: [&str; 8] =
    ["endings", "flags", "forking", "interrupted", "lent_memory", "signals", "transfer", "urgent"];
/// Areas whose cases take turns on sockets.
const CONTROL_AREAS: [&str; 5] = ["control", "detach", "detach_states", "forking", "handover"];
/// Areas whose cases share sockets between processes, those above included.
const SHARING_AREAS: [&str; 11] = [
    "control",
    "detach",
    "detach_states",
    "foreign",
    "forking",
    "handover",
    "image_calls",
    "images",
    "kept_back",
    "passing",
    "steps",
];

/// Areas whose cases run over the fabric too each time. `scripts/fabric` runs those of all areas.
const OVER_FABRIC: [&str; 18] = [
    "accept",
    "batches",
    "connect",
    "control",
    "corners",
    "descriptors",
    "ended",
    "endings",
    "entries",
    "flags",
    "forking",
    "kernel_forms",
    "killed",
    "options",
    "poll",
    "rawcall",
    "refused",
    "sigio",
];

/// With a threshold at which nearly everything is large, and these operations alone.
macro_rules! by_rdma {
    ($operations:literal) => {
        concat!("rdma_threshold = 512\nrdma_operations = \"", $operations, "\"\n")
    };
}

/// Another way to run the cases of some areas under the shim.
struct Variant {
    name: &'static str,
    areas: &'static [&'static str],
    /// What the rules file says of shared memory.
    shm: &'static str,
    /// What that is there for.
    exercise: Exercise,
}

const VARIANTS: [Variant; 5] = [
    Variant {
        name: "shim-read",
        areas: &RDMA_AREAS,
        shm: by_rdma!("read"),
        exercise: Exercise::Rdma,
    },
    Variant {
        name: "shim-write",
        areas: &RDMA_AREAS,
        shm: by_rdma!("write"),
        exercise: Exercise::Rdma,
    },
    Variant {
        name: "shim-both",
        areas: &RDMA_AREAS,
        shm: by_rdma!("both"),
        exercise: Exercise::Rdma,
    },
    Variant {
        name: "shim-suspend",
        areas: &CONTROL_AREAS,
        shm: "swap = \"suspend\"\n",
        exercise: Exercise::Suspensions,
    },
    Variant {
        name: "shim-suspend-rdma",
        areas: &SHARING_AREAS,
        shm: concat!("swap = \"suspend\"\n", by_rdma!("both")),
        exercise: Exercise::Suspensions,
    },
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cases wait more than they compute.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cpus * 4);

    let programs = match build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("behaviour")) {
        Ok(programs) => programs,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let library = shim_library();
    let mut trials = Vec::new();
    for program in &programs {
        let cases = match program.cases() {
            Ok(cases) => cases,
            Err(reason) => {
                eprintln!("{reason}");
                return ExitCode::FAILURE;
            }
        };
        for case in cases {
            trials.push(native(case.clone()));
            let area = program.area.as_str();
            let varies = case.carrier != Carrier::Any;
            for variant in VARIANTS.iter().filter(|v| varies && v.areas.contains(&area)) {
                let rules = Some(format!("[shm]\n{}", variant.shm));
                let (case, library) = (case.clone(), library.clone());
                trials.push(under_shim(variant.name, case, library, rules, variant.exercise));
            }
            if varies {
                let is_ignored = !OVER_FABRIC.contains(&area);
                let (case, library) = (case.clone(), library.clone());
                let trial = under_shim("fabric", case, library, None, Exercise::Fabric);
                trials.push(trial.with_ignored_flag(is_ignored));
            }
            trials.push(under_shim("shim", case, library.clone(), None, Exercise::Nothing));
        }
    }
    trials.extend(programs.into_iter().filter(|p| p.area == "fortified").map(fortified));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn native(case: Case) -> Trial {
    let name = format!("native::{}::{}", case.program.area, case.name);
    Trial::ignorable_test(name, move || run(&case, &Mode::Native))
}

fn under_shim(
    variant: &str,
    case: Case,
    library: Result<PathBuf, String>,
    rules: Option<String>,
    exercise: Exercise,
) -> Trial {
    let name = format!("{variant}::{}::{}", case.program.area, case.name);
    Trial::ignorable_test(name, move || {
        run(&case, &Mode::Shim { library: library?, rules, exercise })
    })
}

fn run(case: &Case, mode: &Mode) -> Result<Completion, Failed> {
    Ok(case.run(mode)?.map_or(Completion::Completed, Completion::ignored_with))
}

/// The program must really call the checked entries, or its cases prove nothing about them.
fn fortified(program: Program) -> Trial {
    const ENTRIES: [&str; 6] =
        ["__read_chk", "__recv_chk", "__recvfrom_chk", "__poll_chk", "__ppoll_chk", "__fdelt_chk"];
    Trial::test("build::fortified_entries", move || {
        let bytes = std::fs::read(&program.path)?;
        for entry in ENTRIES {
            let symbol = format!("\0{entry}\0");
            if !bytes.windows(symbol.len()).any(|window| window == symbol.as_bytes()) {
                return Err(format!("{} does not call {entry}", program.path.display()).into());
            }
        }
        Ok(())
    })
}
