"""Barriers in shared memory (mbarrier): waiting for a phase, looking, arriving."""

from __future__ import annotations

from asm_overrides.ptx.text import Text


def look(t: Text, found: str, barrier: str, phase: str) -> None:
    """found (pred): whether the phase is over. Does not wait."""
    t.op("mbarrier.test_wait.parity.shared::cta.b64", found, f"[{barrier}]", phase)


def wait(t: Text, name: str, found: str, barrier: str, phase: str) -> None:
    """Until the phase is over, unless `found`, from `look`, says that it is. name: for labels."""
    t.op("bra.uni", t.label(f"{name}_over"), when=found)
    t.place(f"{name}_again")
    t.op("mbarrier.try_wait.parity.shared::cta.b64", found, f"[{barrier}]", phase)
    t.op("bra.uni", t.label(f"{name}_again"), when=f"!{found}")
    t.place(f"{name}_over")


def arrive(t: Text, barrier: str, when: str) -> None:
    """One arrival, by the lanes where `when` holds: one of a warp."""
    t.op("mbarrier.arrive.shared::cta.b64", "_", f"[{barrier}]", when=when)


def there(t: Text, target: str, barrier: str) -> None:
    """target: the address at which a barrier of the other workgroup of a pair is reached."""
    t.op("mov.u32", target, "%cluster_ctarank")
    t.op("xor.b32", target, target, "1")
    t.op("mapa.shared::cluster.u32", target, barrier, target)


def arrive_there(t: Text, barrier: str, when: str) -> None:
    """One arrival at a barrier of the other workgroup, at an address from `there`."""
    t.op("mbarrier.arrive.shared::cluster.b64", "_", f"[{barrier}]", when=when)
