"""Decides how a grid of workgroups is started and what a run returns; executes no instruction."""

from __future__ import annotations

import itertools
import multiprocessing
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

import numpy as np

from asm_overrides.emulator.arithmetic import DEFAULT_MACHINE, Machine
from asm_overrides.emulator.banks import BankCounter, BankUse, added
from asm_overrides.emulator.checks import Checks, Observer, RegisterObserver
from asm_overrides.emulator.collection import paused_collection
from asm_overrides.emulator.compile import Steps
from asm_overrides.emulator.findings import Finding, FindingLog
from asm_overrides.emulator.kernel import Kernel
from asm_overrides.emulator.memory import GlobalMemory
from asm_overrides.emulator.scheduler import DidNotFinishError, Flow, Scheduler
from asm_overrides.emulator.semantics.environment import (
    Environment,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.state import WAVE_SIZE, Workgroup

ChecksFactory = Callable[[Kernel, FindingLog], Checks]
WorkgroupId = tuple[int, int, int]
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Result:
    """What a run tells.

    Attributes:
        findings: what hardware might not forgive, in order of lines; empty with checks=False but
            for addresses outside allocations or LDS.
        wave_instructions: executed instructions, counted once a wave.
        seconds: time spent.
        finished: False if a workgroup exceeded `max_wave_instructions`.
        banks: what each instruction cost LDS, in order of lines; empty unless counted.
    """

    findings: list[Finding] = field(default_factory=list)
    wave_instructions: int = 0
    seconds: float = 0.0
    finished: bool = True
    banks: tuple[BankUse, ...] = ()


@dataclass(slots=True)
class _Launch:
    """Everything that workgroups of one run share."""

    kernel: Kernel
    grid: WorkgroupId
    waves: int
    lds_bytes: int
    preload: bool
    kernarg: bytes
    kernarg_address: int
    dispatch_address: int
    seed: int | None
    limit: int | None
    count_banks: bool


def run(
    kernel: Kernel,
    *,
    grid: Sequence[int],
    kernarg: bytes,
    memory: GlobalMemory,
    num_waves: int = 0,
    dynamic_lds: int = 0,
    seed: int | None = None,
    checks: bool | ChecksFactory = True,
    observer: Observer | RegisterObserver | None = None,
    workgroups: Iterable[WorkgroupId] | None = None,
    machine: Machine = DEFAULT_MACHINE,
    preload: bool = True,
    processes: int = 1,
    max_wave_instructions: int | None = None,
    count_banks: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Execute a kernel.

    Args:
        grid: workgroups in x, y, z (missing ones are 1).
        kernarg: argument segment (see Kernel.pack); hidden arguments are filled in here.
        memory: where the pointers in `kernarg` point.
        num_waves: waves of a workgroup; 0: what the kernel's metadata says.
        dynamic_lds: bytes of LDS beyond the descriptor's.
        seed: None for lockstep, else a random interleaving of waves.
        checks: whether to distrust the program, or a factory of other checks.
        observer: told the operands or registers of matrix instructions (one process then).
        workgroups: run only these ids of the grid.
        machine: assumptions about undocumented arithmetic.
        preload: False starts at the entry for firmware that preloads no arguments.
        processes: workgroups are dealt out to this many forked processes.
        max_wave_instructions: give a workgroup up after so many; then finished is False.
        count_banks: whether to count LDS bank conflicts.
        progress: called with (workgroups done, workgroups in all) whenever one is done.
    Raises:
        UnsupportedInstructionError: an instruction that cannot be executed was reached.
    """
    started = time.perf_counter()
    x, y, z = (*grid, 1, 1, 1)[:3]
    waves = num_waves or kernel.waves
    if not 1 <= waves <= 16:
        raise ValueError(f"num_waves is {waves}; a workgroup has 1 to 16 waves")
    segment = _fill_hidden(kernel, kernarg, (x, y, z), waves, dynamic_lds)
    kernarg_address = memory.alloc("kernarg", np.frombuffer(segment, np.uint8), readonly=True)
    packet = _dispatch_packet(kernel, (x, y, z), waves, dynamic_lds, kernarg_address)
    dispatch_address = memory.alloc("dispatch packet", np.frombuffer(packet, np.uint8), True)
    launch = _Launch(
        kernel,
        (x, y, z),
        waves,
        kernel.descriptor.lds_bytes + dynamic_lds,
        preload,
        segment,
        kernarg_address,
        dispatch_address,
        seed,
        max_wave_instructions,
        count_banks,
    )
    if workgroups is None:
        chosen = [(i, j, k) for k, j, i in itertools.product(range(z), range(y), range(x))]
    else:
        chosen = list(workgroups)
    factory = _checks_factory(checks)
    try:
        if processes > 1 and len(chosen) > 1 and observer is None:
            result = _run_forked(launch, chosen, memory, factory, machine, processes, progress)
        else:
            result = _run_here(launch, chosen, memory, factory, machine, observer, progress)
    finally:
        memory.free(kernarg_address)
        memory.free(dispatch_address)
    result.seconds = time.perf_counter() - started
    return result


def _checks_factory(checks: bool | ChecksFactory) -> ChecksFactory | None:
    if checks is True:
        from asm_overrides.emulator.distrust import Distrust

        return Distrust
    return None if checks is False else checks


def _run_here(
    launch: _Launch,
    chosen: list[WorkgroupId],
    memory: GlobalMemory,
    factory: ChecksFactory | None,
    machine: Machine,
    observer: Observer | RegisterObserver | None,
    progress: Progress | None,
) -> Result:
    log = FindingLog()
    banks = BankCounter() if launch.count_banks else None
    environment = Environment(memory, log, observer=observer, machine=machine, banks=banks)
    if factory is not None:
        with paused_collection():
            environment.checks = factory(launch.kernel, log)
    flow, steps = Flow(launch.kernel), Steps(launch.kernel.instructions, environment)
    scheduler = Scheduler(launch.kernel, flow, steps, environment, launch.seed, launch.limit)
    entry = launch.kernel.entry if launch.preload else launch.kernel.fallback_entry
    finished = True
    with np.errstate(all="ignore"), paused_collection():
        for done, place in enumerate(chosen, start=1):
            log.workgroup = place
            try:
                scheduler.run(_make_workgroup(launch, place), entry)
            except DidNotFinishError as error:
                finished = False
                last = launch.kernel.instructions[-1]
                log.add_finding(
                    Finding("did-not-finish", place, -1, last.text, last.line, str(error))
                )
            if progress is not None:
                progress(done, len(chosen))
    uses = () if banks is None else banks.uses
    return Result(list(log), scheduler.wave_instructions, 0.0, finished, uses)


def _run_forked(
    launch: _Launch,
    chosen: list[WorkgroupId],
    memory: GlobalMemory,
    factory: ChecksFactory | None,
    machine: Machine,
    processes: int,
    progress: Progress | None,
) -> Result:
    """Deal workgroups out to forked processes; allocations are shared memory."""
    context = multiprocessing.get_context("fork")
    shares = [chosen[first::processes] for first in range(min(processes, len(chosen)))]
    workers: list[tuple[Any, Any]] = []
    for share in shares:
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(
            target=_work, args=(sender, launch, share, memory, factory, machine)
        )
        worker.start()
        sender.close()
        workers.append((worker, receiver))
    log = FindingLog()
    total = Result()
    failure: BaseException | None = None
    for answer in _answers([receiver for _, receiver in workers], len(chosen), progress):
        if isinstance(answer, BaseException):
            failure = failure or answer
        else:
            log.extend(answer.findings)
            total.wave_instructions += answer.wave_instructions
            total.finished &= answer.finished
            total.banks = added((total.banks, answer.banks))
    for worker, _ in workers:
        worker.join()
    if failure is not None:
        raise failure
    total.findings = list(log)
    return total


def _answers(
    receivers: list[Any], workgroups: int, progress: Progress | None
) -> Iterator[Result | BaseException]:
    """What each worker answers at its end; on the way, each None it sends is a workgroup done."""
    done = 0
    while receivers:
        ready: list[Any] = connection.wait(receivers)
        for receiver in ready:
            try:
                answer = receiver.recv()
            except EOFError:
                answer = RuntimeError("a process that ran workgroups ended without an answer")
            if answer is not None:
                receivers.remove(receiver)
                yield answer
                continue
            done += 1
            if progress is not None:
                progress(done, workgroups)


def _work(
    sender: Any,
    launch: _Launch,
    share: list[WorkgroupId],
    memory: GlobalMemory,
    factory: ChecksFactory | None,
    machine: Machine,
) -> None:
    try:
        sender.send(
            _run_here(
                launch, share, memory, factory, machine, None, lambda done, of: sender.send(None)
            )
        )
    except UnsupportedInstructionError as error:
        sender.send(error)
    except BaseException as error:
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))
    finally:
        sender.close()


def _make_workgroup(launch: _Launch, place: WorkgroupId) -> Workgroup:
    """A workgroup with the registers that a launch preloads."""
    descriptor = launch.kernel.descriptor
    workgroup = Workgroup(
        place, launch.waves, launch.lds_bytes, descriptor.scratch_bytes, descriptor.mode
    )
    scalar = workgroup.scalar
    pointers = {
        "kernarg_segment_ptr": launch.kernarg_address,
        "dispatch_ptr": launch.dispatch_address,
        "queue_ptr": 0,
        "dispatch_id": 0,
    }
    for name, address in pointers.items():
        index = descriptor.user_sgpr(name)
        if index is not None:
            scalar[index], scalar[index + 1] = address & 0xFFFFFFFF, address >> 32
    index = descriptor.user_sgpr("private_segment_size")
    if index is not None:
        scalar[index] = descriptor.scratch_bytes
    if launch.preload and descriptor.preload_dwords:
        first = descriptor.user_sgpr("kernarg_preload") or 0
        start = 4 * descriptor.preload_offset
        size = 4 * descriptor.preload_dwords
        data = launch.kernarg[start : start + size].ljust(size, b"\0")
        scalar[first : first + descriptor.preload_dwords] = np.frombuffer(data, np.uint32)[:, None]
    index = descriptor.user_sgpr("workgroup_id") or 0
    for enabled, coordinate in zip(descriptor.workgroup_ids, place, strict=True):
        if enabled:
            scalar[index] = coordinate
            index += 1
    threads = np.arange(launch.waves * WAVE_SIZE, dtype=np.uint32)
    workgroup.vector[0] = threads.reshape(launch.waves, WAVE_SIZE)
    return workgroup


_HIDDEN_AXES = {"x": 0, "y": 1, "z": 2}


def _fill_hidden(
    kernel: Kernel, kernarg: bytes, grid: WorkgroupId, waves: int, dynamic_lds: int
) -> bytes:
    """Kernarg segment of full length with the hidden arguments that a launcher provides."""
    segment = bytearray(kernarg.ljust(kernel.descriptor.kernarg_bytes, b"\0"))
    group_size = (waves * WAVE_SIZE, 1, 1)
    for argument in kernel.arguments:
        name, _, axis = argument.kind.rpartition("_")
        if name == "hidden_block_count":
            value = grid[_HIDDEN_AXES[axis]]
        elif name == "hidden_group_size":
            value = group_size[_HIDDEN_AXES[axis]]
        elif argument.kind == "hidden_grid_dims":
            value = max((i + 1 for i in range(3) if grid[i] > 1), default=1)
        elif argument.kind == "hidden_dynamic_lds_size":
            value = dynamic_lds
        else:
            continue
        end = argument.offset + argument.size
        segment[argument.offset : end] = value.to_bytes(argument.size, "little")
    return bytes(segment)


def _dispatch_packet(
    kernel: Kernel, grid: WorkgroupId, waves: int, dynamic_lds: int, kernarg: int
) -> bytes:
    """The 64 bytes of an HSA kernel dispatch packet."""
    threads = waves * WAVE_SIZE
    return struct.pack(
        "<HHHHHHIIIIIQQQQ",
        2,
        3,
        threads,
        1,
        1,
        0,
        grid[0] * threads,
        grid[1],
        grid[2],
        kernel.descriptor.scratch_bytes,
        kernel.descriptor.lds_bytes + dynamic_lds,
        0,
        kernarg,
        0,
        0,
    )
