"""How tuned configurations are kept on disk: a JSON list of keys with their configurations.

It does not choose between files. One entry:

    {"target": "sm90", "dtype": "e4m3", "headdim": 128, "headdim_v": 128, "causal": true,
     "p_mode": "lean", "block_scale": false, "seqlen_bucket": 4096, "short_queries": false,
     "config": {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 3},
     "milliseconds": 0.31, "device": "NVIDIA H200", "triton": "3.6.0", "date": "2026-01-31"}

The last four say where the configuration comes from; nothing reads them. An entry may name under
"without" kernels that did not take part, as the calls that it was measured for do not take them
(q and k in two parts, rows at odd addresses, another kernel asked for by name):

     "without": ["gluon", "ptx"], "config": ...

Keys may be equal where "without" differs. Beside "entries" there may be "machines", which
`zyfa selftest` writes: settings of the hand-scheduled loop, by target, that the machine allows
though they are not safe to assume, and where that was found out:

    "machines": {"gfx950": {"settings": {"pack": "op_sel"}, "device": "AMD Instinct MI355X",
                            "date": "2026-01-31"}}
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from filelock import FileLock

from zyfa_triton.kernels.family import Config
from zyfa_triton.kernels.registry import KERNELS, kernel_of
from zyfa_triton.tuning.configurations import complaint
from zyfa_triton.tuning.key import ACCEPTED, TuningKey

SHIPPED = Path(__file__).parent / "stored"
VERSION = 1
_TYPES = {"str": str, "int": int, "bool": bool}


class TuningFileError(ValueError):
    """A file of tuned configurations that cannot be read; names the file and what is wrong."""


Kernels = frozenset[str]
NONE: Kernels = frozenset()
Entries = dict[TuningKey, dict[Kernels, dict[str, Any]]]
"""Entries of each key, by the kernels that they were found without."""
Machines = dict[str, dict[str, Any]]
ALLOWABLE = {"pack": ("perm", "op_sel")}
"""Settings that a machine may allow, and their values, the safe one first."""


def load(path: Path) -> Entries:
    """Entries of a file by key, {} where there is no such file. Raises TuningFileError."""
    entries = _read(path).get("entries")
    if not isinstance(entries, list):
        raise TuningFileError(f'{path}: "entries" must be a list')
    found: Entries = {}
    for index, entry in enumerate(entries):
        key, without = _entry(path, index, entry)
        found.setdefault(key, {})[without] = entry
    return found


def load_machines(path: Path) -> Machines:
    """What self-tests found, by target. Raises TuningFileError."""
    machines = _read(path).get("machines", {})
    if not isinstance(machines, dict):
        raise TuningFileError(f'{path}: "machines" must be an object')
    for target, machine in machines.items():
        settings = machine.get("settings") if isinstance(machine, dict) else None
        if not isinstance(settings, dict):
            raise TuningFileError(f'{path}: machine {target}: "settings" must be an object')
        for name, value in settings.items():
            if value not in ALLOWABLE.get(name, ()):
                accepted = "; ".join(f"{n}: {', '.join(v)}" for n, v in ALLOWABLE.items())
                raise TuningFileError(
                    f"{path}: machine {target}: {name} is {value!r}; accepted: {accepted}"
                )
    return machines


def _read(path: Path) -> dict[str, Any]:
    """The file's object; an empty one where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {"version": VERSION, "entries": []}
    except OSError as error:
        raise TuningFileError(f"{path}: cannot be read: {error}") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise TuningFileError(f"{path}: is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise TuningFileError(f'{path}: must be an object with "version": {VERSION} and "entries"')
    return data


def load_shipped() -> Entries:
    """All entries that come with the package."""
    found: Entries = {}
    for path in sorted(SHIPPED.glob("*.json")):
        for key, entries in load(path).items():
            found.setdefault(key, {}).update(entries)
    return found


def save(
    path: Path, key: TuningKey, config: Config, origin: dict[str, Any], without: Kernels = NONE
) -> None:
    """Adds or replaces one entry. Readers see the old file or the new one, never a part; processes
    that write at once wait for each other, through a file of its name and ".lock"."""
    with _locked(path):
        entries = load(path)
        left_out: dict[str, Any] = {"without": sorted(without)} if without else {}
        entry = {**asdict(key), **left_out, "config": config, **origin}
        entries.setdefault(key, {})[without] = entry
        _write(path, entries, load_machines(path))


def save_machine(path: Path, target: str, settings: dict[str, str], origin: dict[str, Any]) -> None:
    """Adds or replaces what a self-test of a target found; as atomic as `save`."""
    with _locked(path):
        machines = {**load_machines(path), target: {"settings": settings, **origin}}
        _write(path, load(path), machines)


def _locked(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{path}.lock")


def _write(path: Path, entries: Entries, machines: Machines) -> None:
    data: dict[str, Any] = {"version": VERSION}
    data["entries"] = [
        entries[key][without]
        for key in sorted(entries, key=_order)
        for without in sorted(entries[key], key=sorted)
    ]
    if machines:
        data["machines"] = machines
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _entry(path: Path, index: int, entry: object) -> tuple[TuningKey, Kernels]:
    where = f"{path}: entry {index}"
    if not isinstance(entry, dict):
        raise TuningFileError(f"{where}: must be an object")
    values: dict[str, Any] = {}
    for field in fields(TuningKey):
        value = entry.get(field.name)
        if type(value) is not _TYPES[str(field.type)]:
            raise TuningFileError(f"{where}: {field.name} is {value!r}, not of type {field.type}")
        accepted = ACCEPTED.get(field.name)
        if accepted is not None and value not in accepted:
            listed = ", ".join(map(str, accepted))
            raise TuningFileError(f"{where}: {field.name} is {value!r}, not one of {listed}")
        values[field.name] = value
    key = TuningKey(**values)
    config, without = entry.get("config"), entry.get("without", [])
    wrong = complaint(config, key) if isinstance(config, dict) else "config must be an object"
    wrong = wrong or _complaint_of_left_out(without, config)
    if wrong:
        raise TuningFileError(f"{where}: {wrong}")
    return key, frozenset(without)


def _complaint_of_left_out(without: object, config: Any) -> str | None:
    if not isinstance(without, list) or any(name not in KERNELS for name in without):
        return f"without is {without!r}, not a list of some of {', '.join(KERNELS)}"
    if kernel_of(config) in without:
        return f"without is {without!r}, but the configuration is one of {kernel_of(config)}"
    return None


def _order(key: TuningKey) -> tuple[str, ...]:
    return tuple(
        f"{value:09d}" if isinstance(value, int) else str(value) for value in asdict(key).values()
    )
