"""Which configuration a call takes, and when it is measured first.

It does not measure (`autotune`) and does not read files itself (`store`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from zyfa_triton import env
from zyfa_triton.kernels.family import Config
from zyfa_triton.kernels.launch import TRITON
from zyfa_triton.kernels.registry import KERNELS, kernel_of
from zyfa_triton.tuning import store
from zyfa_triton.tuning.configurations import default
from zyfa_triton.tuning.key import BUCKETS, TuningKey
from zyfa_triton.tuning.store import NONE, Kernels

Seen = list[Config]
_ALL_BUT_TRITON: Kernels = frozenset(KERNELS) - {TRITON}


@dataclass(frozen=True)
class _UserFile:
    """The user's file as it was read, and what follows from it: a thread that holds one sees
    nothing of another's content."""

    path: Path
    entries: store.Entries
    machines: store.Machines
    resolved: dict[tuple[TuningKey, Kernels], Config] = field(default_factory=dict)


@dataclass
class _Files:
    """What was read, kept for the process: a call must not wait for a disk."""

    written: Path | None = None  # where results go, if not to ZYFA_TUNING_FILE
    user: _UserFile | None = None
    shipped: store.Entries | None = None
    reading: threading.Lock = field(default_factory=threading.Lock)


_files = _Files()
_watchers: ContextVar[tuple[Seen, bool] | None] = ContextVar("zyfa_tuning_watchers", default=None)


@contextmanager
def observed(*, force: bool = False) -> Iterator[Seen]:
    """Collects the configurations that calls inside take. force: these calls are measured first."""
    seen: Seen = []
    token = _watchers.set((seen, force))
    try:
        yield seen
    finally:
        _watchers.reset(token)


def user_file() -> Path:
    """The file whose entries precede the shipped ones and to which tuning writes."""
    return _files.written or env.tuning_file()


def write_to(path: Path) -> None:
    """Makes another file than ZYFA_TUNING_FILE the user's, for this process."""
    _files.written = path


def chosen(key: TuningKey, without: Kernels = NONE) -> Config | None:
    """The measured configuration for exactly this key: the user's before the shipped one.

    without: kernels that the call does not take. An entry found with as many left out comes first.
    One of more kernels counts where its kernel is not left out, as the best of many is the best of
    some of them; one of fewer does not.
    """
    return _chosen(_user(), key, without)


def _chosen(user: _UserFile, key: TuningKey, without: Kernels) -> Config | None:
    for entries in (user.entries, _shipped_entries()):
        found = [
            (len(left_out), entry["config"])
            for left_out, entry in entries.get(key, {}).items()
            if left_out <= without and kernel_of(entry["config"]) not in without
        ]
        if found:
            return dict(max(found, key=lambda each: each[0])[1])
    return None


def machine_settings(target: str) -> dict[str, str]:
    """The settings that a self-test of this target found allowed; {} where none was run."""
    machine = _user().machines.get(target)
    return dict(machine["settings"]) if machine else {}


def allow(target: str, settings: dict[str, str], origin: dict[str, object]) -> Path:
    """Stores in the user's file what a self-test found allowed; returns the file."""
    path = user_file()
    store.save_machine(path, target, settings, origin)
    _forget()
    return path


def resolve(key: TuningKey, without: Kernels = NONE) -> Config:
    """The configuration of a call that does not measure: exact or of the nearest length, else
    Triton's, stored or default.

    without: as in `chosen`; Triton's may come though it is left out.
    """
    user = _user()
    found = user.resolved.get((key, without))
    if found is None:
        found = user.resolved[key, without] = _resolve(user, key, without)
    return dict(found)


def _resolve(user: _UserFile, key: TuningKey, without: Kernels) -> Config:
    for bucket in sorted(BUCKETS, key=lambda bucket: _distance(bucket, key.seqlen_bucket)):
        found = _chosen(user, replace(key, seqlen_bucket=bucket), without)
        if found is not None:
            return found
    return default(key) if without == _ALL_BUT_TRITON else _resolve(user, key, _ALL_BUT_TRITON)


def requested(
    key: TuningKey,
    without: Kernels = NONE,
    *,
    may_measure: bool,
    measure: Callable[[], tuple[Config, dict[str, object]]],
) -> Config:
    """The configuration for a call on a device.

    Measures, and stores what was found in the user's file, if `warmup(tune=True)` asks for it, or
    ZYFA_TUNE=on does and such calls have no stored configuration; never unless `may_measure`.

    Args:
        without: kernels that the call does not take. What is found without them is stored beside
            what is found with them: it is not in the way of calls that take them.
    """
    if may_measure and is_wanted(key, without):
        config, origin = measure()
        store.save(user_file(), key, config, origin, without)
        _forget()
        return config
    return resolve(key, without)


def is_wanted(key: TuningKey, without: Kernels = NONE) -> bool:
    """Whether the next call with this key that does not take these kernels is to be measured."""
    watcher = _watchers.get()
    forced = watcher is not None and watcher[1]
    return forced or (env.tune() and chosen(key, without) is None)


def note(config: Config) -> None:
    """Tells who observes what a call is launched with, after every choice."""
    watcher = _watchers.get()
    if watcher is not None:
        watcher[0].append(config)


def _distance(bucket: int, wanted: int) -> tuple[float, int]:
    """By their ratio; of two as near, the longer, whose tiles fill a device as these do."""
    return max(bucket, wanted) / min(bucket, wanted), -bucket


def _user() -> _UserFile:
    path, user = user_file(), _files.user
    if user is None or user.path != path:
        with _files.reading:
            user = _UserFile(path, store.load(path), store.load_machines(path))
            _files.user = user
    return user


def _forget() -> None:
    """The file has been written: read it again. One that is being read may be the old one."""
    with _files.reading:
        _files.user = None


def _shipped_entries() -> store.Entries:
    if _files.shipped is None:
        _files.shipped = store.load_shipped()
    return _files.shipped
