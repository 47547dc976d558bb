"""Which configuration a call takes, and when it is measured first.

It does not measure (`autotune`) and does not read files itself (`store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from zyfa_triton import env
from zyfa_triton.kernels.family import Config
from zyfa_triton.tuning import store
from zyfa_triton.tuning.configurations import default
from zyfa_triton.tuning.key import BUCKETS, TuningKey

Seen = list[Config]


@dataclass
class _Files:
    """What was read, kept for the process: a call must not wait for a disk."""

    written: Path | None = None  # where results go, if not to ZYFA_TUNING_FILE
    user_path: Path | None = None
    user: store.Entries = field(default_factory=dict)
    machines: store.Machines = field(default_factory=dict)
    shipped: store.Entries | None = None
    resolved: dict[TuningKey, Config] = field(default_factory=dict)


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


def chosen(key: TuningKey) -> Config | None:
    """The measured configuration for exactly this key: the user's before the shipped one."""
    entry = _user_entries().get(key) or _shipped_entries().get(key)
    return dict(entry["config"]) if entry else None


def machine_settings(target: str) -> dict[str, str]:
    """The settings that a self-test of this target found allowed; {} where none was run."""
    _user_entries()  # reads the file if it has not been read
    machine = _files.machines.get(target)
    return dict(machine["settings"]) if machine else {}


def allow(target: str, settings: dict[str, str], origin: dict[str, object]) -> Path:
    """Stores in the user's file what a self-test found allowed; returns the file."""
    path = user_file()
    store.save_machine(path, target, settings, origin)
    _files.user_path = None  # read it again
    return path


def resolve(key: TuningKey) -> Config:
    """The configuration of a call that does not measure: exact, nearest length, or default."""
    _user_entries()  # forgets what was resolved where the file is another
    if key not in _files.resolved:
        _files.resolved[key] = _resolve(key)
    return dict(_files.resolved[key])


def _resolve(key: TuningKey) -> Config:
    exact = chosen(key)
    if exact is not None:
        return exact
    for bucket in sorted(BUCKETS, key=lambda bucket: _distance(bucket, key.seqlen_bucket)):
        near = chosen(replace(key, seqlen_bucket=bucket))
        if near is not None:
            return near
    return default(key)


def requested(
    key: TuningKey, *, may_measure: bool, measure: Callable[[], tuple[Config, dict[str, object]]]
) -> Config:
    """The configuration for a call on a device.

    Measures, and stores what was found in the user's file, if `warmup(tune=True)` asks for it, or
    ZYFA_TUNE=on does and this key has no stored configuration; never unless `may_measure`.
    """
    if may_measure and is_wanted(key):
        config, origin = measure()
        store.save(user_file(), key, config, origin)
        _files.user_path = None  # read it again
        return config
    return resolve(key)


def is_wanted(key: TuningKey) -> bool:
    """Whether the next call with this key is to be measured."""
    watcher = _watchers.get()
    forced = watcher is not None and watcher[1]
    return forced or (env.tune() and chosen(key) is None)


def note(config: Config) -> None:
    """Tells who observes what a call is launched with, after every choice."""
    watcher = _watchers.get()
    if watcher is not None:
        watcher[0].append(config)


def _distance(bucket: int, wanted: int) -> tuple[float, int]:
    return max(bucket, wanted) / min(bucket, wanted), bucket


def _user_entries() -> store.Entries:
    path = user_file()
    if path != _files.user_path:
        _files.user = store.load(path)
        _files.machines = store.load_machines(path)
        _files.user_path = path
        _files.resolved.clear()
    return _files.user


def _shipped_entries() -> store.Entries:
    if _files.shipped is None:
        _files.shipped = store.load_shipped()
    return _files.shipped
