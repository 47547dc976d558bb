"""Whether planted mistakes in the generated ping-pong loop go unnoticed.

Every s_waitcnt, s_barrier and s_nop is removed or weakened, every two neighbours that depend on
each other are swapped, one at a time. Each must be found by the static checks or the emulator's,
or change what comes out; what goes unnoticed was not needed, or a check is missing.

    python bench/mutations.py --p-mode lean
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tqdm import tqdm

from asm_overrides.campaign import SURVIVED, VERDICTS, Campaign, Verdict, count
from asm_overrides.recipes.attention_fp8.alone import lone_kernel, tasks
from zyfa_triton.cli.options import HEADDIMS
from zyfa_triton.cli.output import table, write_json
from zyfa_triton.kernels.pingpong import PingPongLoop, interface


def campaign(p_mode: str, is_causal: bool, headdim: int) -> Campaign:
    loop = PingPongLoop(name="mutated", p_mode=p_mode, is_causal=is_causal, headdim=headdim)
    text, lds_bytes = loop.generated(".L").text, loop.lds_bytes
    return Campaign(
        text,
        lambda each: lone_kernel(each, lds_bytes, interface(), headdim=headdim),
        tasks(is_causal, headdim),
    )


def judged(chosen: Campaign, title: str, processes: int) -> list[Verdict]:
    mistakes = chosen.mistakes()
    with tqdm(total=len(mistakes), desc=title, unit="mistake", disable=None, leave=False) as bar:
        found = []
        for verdict in chosen.run(mistakes, processes):
            found.append(verdict)
            bar.update()
    return found


def summary(verdicts: list[Verdict]) -> str:
    counts = {kind: [*row.values()] for kind, row in sorted(count(verdicts).items())}
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [(kind, *row, sum(row)) for kind, row in counts.items()]
    return table(("mistake", *VERDICTS, "all"), rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--p-mode", choices=("lean", "exact"), action="append")
    parser.add_argument("--mask", choices=("causal", "full"), default="causal")
    parser.add_argument("--headdim", type=int, choices=HEADDIMS, default=HEADDIMS[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    rows: list[dict[str, object]] = []
    for p_mode in args.p_mode or ("lean", "exact"):
        start = time.perf_counter()
        title = f"{p_mode}, {args.mask}, head dim {args.headdim}"
        chosen = campaign(p_mode, args.mask == "causal", args.headdim)
        verdicts = judged(chosen, title, args.processes)
        seconds = time.perf_counter() - start
        print(f"{title}: {len(verdicts)} mistakes, {seconds:.0f} s\n\n{summary(verdicts)}\n")
        survivors = [str(each.mutation) for each in verdicts if each.verdict == SURVIVED]
        print("\n".join(survivors))
        rows.append(
            {
                "p_mode": p_mode,
                "mask": args.mask,
                "headdim": args.headdim,
                "mistakes": len(verdicts),
                "counts": count(verdicts),
                "survivors": survivors,
                "seconds": seconds,
            }
        )
    print("\n".join(f"{name}: {meaning}" for name, meaning in VERDICTS.items()))
    write_json(args.json, rows)
    return 1 if any(row["survivors"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
