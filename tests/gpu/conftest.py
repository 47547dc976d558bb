"""Where the GPU tier runs: on the first device that Triton can launch on, or nowhere, with
reason."""

from __future__ import annotations

import pytest
import torch

from zyfa_triton import arch
from zyfa_triton.backends import device as device_backend


@pytest.fixture(autouse=True)
def _needs_a_device() -> None:
    why = device_backend.unavailable()
    if why is not None:
        pytest.skip(f"{why.reason}. {why.remedy}")


@pytest.fixture
def device() -> torch.device:
    """The device under test."""
    return torch.device("cuda", 0)


@pytest.fixture
def second_device() -> torch.device:
    """A device that is never the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two devices, there is {torch.cuda.device_count()}")
    return torch.device("cuda", 1)


@pytest.fixture
def e4m3_device(device: torch.device) -> torch.device:
    """The device under test, if it computes with float8_e4m3fn."""
    target = arch.arch_of(0)
    if not target.has_e4m3:
        pytest.skip(f"{target.name} has no float8_e4m3fn arithmetic")
    return device
