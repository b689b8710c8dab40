"""The lines of a suite, and the table of all of them in docs/figures/foreign.md."""
import collections
import datetime
import os
import pathlib
import platform
import re
import subprocess

import known
import modes
import results
import runner


# So many tests of a program to which the same happened are named.
NAMED = 6

# Suites that cannot be had from the registries, or not be built or run here, and what was tried.
NOT_RUN = (
    "mio: no published crate of it (0.6.23, 0.7.14, 0.8.11, 1.2.5) has its tests; polling's and async-io's run instead",
)


def totals(result, mode):
    """Passed, failed (hung and died among them) and skipped of the first runs in a mode; connections, and those on the SAN."""
    counts, known_ones, on_san = collections.Counter(), 0, 0
    for each in result.runs.values():
        if mode not in each:
            return None
        counts.update(runner.tally(each[mode][0].outcomes))
        known_ones += each[mode][0].known
        on_san += each[mode][0].on_san
    failed = counts["failed"] + counts["hung"] + counts["died"]
    return counts["passed"], failed, counts["skipped"], known_ones, on_san


def verdict(suite, one):
    return "known" if one.kind in ("differs", "differed once") and known.expected(suite.name, one) else one.kind


def how_often(outcomes):
    counts = collections.Counter(outcomes)
    return " and ".join(
        kind if len(counts) == 1 else f"{n} of {len(outcomes)} {kind}" for kind, n in counts.most_common()
    )


def sentences(suite, result):
    """What differs, with the tests of a program together to which the same happened."""
    alike = collections.defaultdict(list)
    for one in result.differences:
        busy = f", on a busy machine {how_often(one.busy)}" if one.busy else ""
        what = f"natively {how_often(one.native)}{busy}; {one.mode}: {how_often(one.logged + one.plain)}"
        alike[verdict(suite, one), one.unit, what].append(one.test)
    for (kind, unit, what), tests in alike.items():
        more = f" and {len(tests) - NAMED} more" if len(tests) > NAMED else ""
        yield f"{kind}: {unit}: {', '.join(tests[:NAMED])}{more}: {what}"


def lines(suite, version, result):
    parts = []
    for mode in (modes.NATIVE, *modes.of(suite)):
        found = totals(result, mode)
        if found is None:
            continue
        passed, failed, skipped, connections, on_san = found
        carried = "" if mode == modes.NATIVE else f", {on_san} of {connections} connections on the SAN"
        parts.append(f"{mode}: {passed} passed, {failed} failed, {skipped} skipped{carried}")
    yield f"{suite.title} {version}: {'; '.join(parts)}"
    for each in sentences(suite, result):
        yield f"  {each}"


def row(suite, version, date, result):
    cells = [suite.title, version, date, str(len(result.runs))]
    for mode in (modes.NATIVE, modes.SHIM, modes.EAGER, modes.SUSPEND):
        found = totals(result, mode)
        if found is None:
            cells += [""] if mode == modes.NATIVE else ["", ""]
            continue
        passed, failed, skipped, connections, on_san = found
        cells.append(f"{passed} / {failed} / {skipped}")
        if mode != modes.NATIVE:
            cells.append(f"{on_san} of {connections}")
    return "| " + " | ".join(cells) + " |"


HEAD = """| suite | version | run | programs | natively | shim | SAN | at once | SAN | suspended | SAN |
| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |"""


def machine():
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} cores, {system[1] if system else 'unknown'}, Linux {platform.release()}"


def earlier(path, title):
    """A suite's row and differences on the page as it is."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [line for line in lines if line.startswith(f"| {title} |")]
    return rows, [line for line in lines if line.startswith(f"- {title}, ")]


def write(path, target, every, sanctl):
    """From what the last run of each suite left; one that did not run here keeps its row."""
    version = subprocess.run([sanctl, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    rows, differing, missing = [], [], []
    for name, suite in every.items():
        saved = results.load(target / name)
        if saved is None:
            kept, differences = earlier(path, suite.title)
            rows += kept
            differing += differences
            missing += [] if kept else [suite.title]
            continue
        result = results.revive(saved)
        date = datetime.date.fromtimestamp((target / name / "results.json").stat().st_mtime).isoformat()
        rows.append(row(suite, saved["version"], date, result))
        differing += [f"- {suite.title}, {each}" for each in sentences(suite, result)]
    text = (
        "# Other projects' test suites, natively and under the shim\n\n"
        f"{datetime.date.today().isoformat()}, {version.replace('sanctl', 'sanshim')}, {machine()}. Made by `scripts/foreign`.\n\n"
        "Passed / failed / skipped tests of one run: natively, under `sanctl run` as users have it, with `SANSHIM_MOVE_AFTER=0`\n"
        "(every connection goes to the SAN at once), and, where programs fork, with `swap = \"suspend\"` in addition. SAN: how many of the connections that\n"
        "the log tells of, those that were busy, were on it at some time. Both ends are under the shim, in a network namespace with `lo` alone. What fails\n"
        "natively too is the suite's or the machine's: it wants a network, another user, or hardware.\n\n"
        + "\n".join([HEAD, *rows])
        + "\n\n## What differs\n\n"
        "Each was run five times more natively and under the shim, in turn (twice where a program's tests cannot be chosen); what differed\n"
        f"sometimes, at the end natively on a busy machine, up to {runner.BUSY_RUNS} times. Once: in none of all those again. With a log: it sees\n"
        "the log that counts connections, by its descriptor or by what a child says that may not write there.\n\n"
        + ("\n".join(differing) or "Nothing.")
        + "\n\n## Not run, and what was tried\n\n"
        + "\n".join(f"- {each}" for each in (*NOT_RUN, *(f"{title}: no run of it was kept" for title in missing)))
        + "\n"
    )
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)
