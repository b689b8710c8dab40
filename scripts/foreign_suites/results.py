"""What the last whole run of a suite found, in its folder, for the report and for who looks for the cause."""
import dataclasses
import json
import os

import modes


def save(place, version, result, units):
    """Replaces what is there of the units that ran; of a version, what is there of its other `units` stays."""
    if not result.runs:
        return
    runs = {
        unit: {mode: [dataclasses.asdict(run) for run in each] for mode, each in modes_of.items()}
        for unit, modes_of in result.runs.items()
    }
    differences = [dataclasses.asdict(one) for one in result.differences]
    earlier = load(place)
    if earlier and earlier["version"] == version:
        stay = {unit for unit in earlier["runs"] if unit in units and unit not in runs}
        differences += [one for one in earlier["differences"] if one["unit"] in stay]
        runs |= {unit: earlier["runs"][unit] for unit in stay}
    beside = place / "results.json.new"
    beside.write_text(json.dumps({"version": version, "runs": runs, "differences": differences}, indent=1))
    os.replace(beside, place / "results.json")


def load(place):
    path = place / "results.json"
    return json.loads(path.read_text()) if path.exists() else None


def tests(earlier, unit):
    if earlier is None or unit not in earlier["runs"]:
        return []
    return sorted(earlier["runs"][unit][modes.NATIVE][0]["outcomes"])


def revive(saved):
    """A saved result as the runner made it."""
    import runner

    return runner.Result(
        {
            unit: {mode: [runner.Run(**run) for run in runs] for mode, runs in each.items()}
            for unit, each in saved["runs"].items()
        },
        [runner.Difference(**one) for one in saved["differences"]],
    )
