"""Draws beside those of before: the same codes, and times of 16 draws one behind the other."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

from agent_tts.model.kernels import frame as first_now
from agent_tts.model.kernels import sampling as new
from agent_tts.model.kernels.launch import launch, overlap, power_of_2
from agent_tts.model.kernels.linear import linear
from agent_tts.model.sampling import Warp
from tests.gpu import draw_before as old
from tests.gpu import first_before

CUDA, ROWS = ("cpu", 48) if "TRITON_INTERPRET" in os.environ else ("cuda", 8192)
VARIANTS = [("before", old, 8), *((f"{warps} warps", new, warps) for warps in (8, 4, 2, 1))]


def draw(module, warps, logits, how, seed, frame, codebook, out, column, table):
    size, width = logits.shape[1], 1 if table is None else table.shape[1]
    following = logits.new_empty(0) if table is None else table.new_empty(len(logits), width)
    launch(
        module._draw, (len(logits),),
        logits=logits, rows=None, temperatures=how.temperature, top_ks=how.top_k, top_ps=how.top_p, seeds=seed,
        frames=frame, out=out, column=column, table=table, following=following, codebook=codebook,
        STRIDE=out.shape[1], SIZE=size, BLOCK=power_of_2(size), WIDTH=width, WIDE=power_of_2(width),
        num_warps=warps, **overlap(logits.device),
    )  # fmt: skip
    return following


def variants(size):
    return VARIANTS if size == 2048 else VARIANTS[:-1]


def pick(values, rows):
    values = torch.tensor(values, device=CUDA)
    return values[torch.randint(len(values), (rows,), device=CUDA)]


def check():
    torch.manual_seed(0)
    rows = ROWS
    for kind in ("plain", "peaked", "equal", "infinite", "nan"):
        for size in (2048, 3072):
            for dtype in (torch.bfloat16, torch.float32):
                scale = 4.0 if kind == "peaked" else pick([0.3, 1.0, 8.0], rows)[:, None]
                logits = torch.randn(rows, size, device=CUDA) * scale
                if kind == "equal":
                    logits = (logits * 2).round() * 0.5 * torch.where(torch.rand_like(logits) < 0.5, -1.0, 1.0)
                if kind == "infinite":
                    logits[torch.rand_like(logits) < 0.3] = float("-inf")
                    logits[::2][torch.rand_like(logits[::2]) < 1e-3] = float("inf")
                    logits[::16] = float("-inf")
                if kind == "nan":
                    logits[torch.rand_like(logits) < 1e-2] = float("nan")
                    logits[::3] = float("nan")
                    logits[1::9] *= -1
                logits = logits.to(dtype)
                how = Warp(
                    pick([0.0, 0.3, 0.9, 1.0, 1.7], rows),
                    pick([0, 1, 2, 50, 50, 50, 128, 129, 1000, size - 1, size, 9999], rows),
                    pick([1.0, 1.0, 0.5, 0.9, 0.999, 1e-9], rows),
                )
                seed = torch.randint(-(2**63), 2**63 - 1, (rows,), device=CUDA)
                frame = torch.randint(0, 4000, (rows,), device=CUDA)
                found = {}
                for name, module, warps in variants(size):
                    out = torch.full((rows, 2), -1, device=CUDA)
                    draw(module, warps, logits, how, seed, frame, 5, out, 1, None)
                    found[name] = out[:, 1].clone()
                was = found["before"]
                line = []
                for name, _, _ in variants(size)[1:]:
                    other = found[name] != was
                    out_of_range = ((found[name] < 0) | (found[name] >= size)).sum().item()
                    line.append(f"{name} {other.sum().item()}/{(other & (how.top_p == 1)).sum().item()}/{out_of_range}")
                print(
                    f"{kind:9}{size} {str(dtype)[6:]:9} differ / of those top_p 1 / out of range:",
                    ", ".join(line),
                    "| before out of range",
                    ((was < 0) | (was >= size)).sum().item(),
                    flush=True,
                )


def graph(run):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    it = torch.cuda.CUDAGraph()
    with torch.cuda.graph(it):
        run()
    return it


def median(it, repeats=30):
    for _ in range(3):
        it.replay()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        it.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e3)
    return sorted(times)[len(times) // 2]


def times():
    torch.manual_seed(1)
    heads = [(torch.randn(2048, 1024, device=CUDA) * 0.02).bfloat16() for _ in range(16)]
    tables = [torch.randn(2048, 1024, device=CUDA).bfloat16() for _ in range(16)]
    for top_p in (1.0, 0.9):
        for rows in (1, 8, 64, 256):
            how = Warp(
                torch.full((rows,), 0.9, device=CUDA),
                torch.full((rows,), 50, device=CUDA),
                torch.full((rows,), top_p, device=CUDA),
            )
            seed, frame = torch.arange(rows, device=CUDA), torch.full((rows,), 7, device=CUDA)
            start = torch.randn(rows, 1024, device=CUDA).bfloat16()
            small = torch.randn(rows, 2048, device=CUDA).bfloat16()
            wide = torch.randn(rows, 3072, device=CUDA)
            out = torch.zeros(rows, 16, dtype=torch.int64, device=CUDA)
            line = []
            for name, module, warps in VARIANTS:

                def chain(logits, follow):
                    for index in range(16):
                        draw(
                            module,
                            warps,
                            logits,
                            how,
                            seed,
                            frame,
                            index,
                            out,
                            index,
                            tables[index] if follow else None,
                        )

                def products():
                    x = start
                    for index in range(16):
                        x = draw(
                            module, warps, linear(x, heads[index]), how, seed, frame, index, out, index, tables[index]
                        )

                found = [median(graph(lambda: chain(small, True)))]
                if not (warps == 1):
                    found.append(median(graph(lambda: chain(wide, False))))
                found.append(median(graph(products)))
                line.append(f"{name}: " + " ".join(f"{each / 16:.2f}" for each in found))

            def alone():
                for index in range(16):
                    linear(start, heads[index])

            line.append(f"products alone {median(graph(alone)) / 16:.2f}")
            print(
                f"top_p {top_p} rows {rows:3}  us a draw (bf16 2048 / f32 3072 / with product)  " + " | ".join(line),
                flush=True,
            )


def compile_all():
    how = Warp(torch.full((1,), 0.9, device=CUDA), torch.full((1,), 50, device=CUDA), torch.ones(1, device=CUDA))
    zero, out = torch.zeros(1, dtype=torch.int64, device=CUDA), torch.zeros(1, 2, dtype=torch.int64, device=CUDA)
    out16 = torch.zeros(1, 16, dtype=torch.int64, device=CUDA)
    table = torch.zeros(2048, 1024, device=CUDA).bfloat16()
    cases = []
    for _, module, warps in VARIANTS:
        for size in (2048, 3072) if warps > 1 else (2048,):
            for dtype in (torch.bfloat16, torch.float32):
                cases.append(
                    (module, warps, torch.zeros(1, size, device=CUDA, dtype=dtype), how, zero, zero, 5, out, 1, None)
                )
        cases.append((module, warps, torch.zeros(1, 2048, device=CUDA).bfloat16(), how, zero, zero, 5, out16, 1, table))
        if warps > 1:
            cases.append((module, warps, torch.zeros(1, 3072, device=CUDA), how, zero, zero, 5, out16, 1, None))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda case: draw(*case), cases))
    torch.cuda.synchronize()


def first(rows, top_p):
    """Of a state with random values: a function (module, warps) that draws first codes."""
    torch.manual_seed(rows)
    ints = lambda high: torch.randint(0, high, (rows,), device=CUDA)
    bits = lambda *shape: torch.rand(*shape, device=CUDA) < 0.5
    talker = Warp(
        pick([0.9, 0.9, 0.9, 0.0] if top_p else [0.9], rows),
        pick([50, 0, 3] if top_p else [50], rows),
        pick([1.0, 0.9] if top_p else [1.0], rows),
    )
    state = SimpleNamespace(
        seen=bits(rows, 3072),
        frame=ints(9),
        text_length=ints(5),
        text_read=ints(5),
        text_complete=bits(rows),
        sampling=SimpleNamespace(
            talker=talker, repetition_penalty=pick([1.0, 1.05, 2.0], rows), seed=ints(2**40), min_frames=ints(4)
        ),
    )
    logits, hidden = (
        torch.randn(rows, 3072, device=CUDA).bfloat16() * 2,
        torch.randn(rows, 2048, device=CUDA).bfloat16(),
    )
    entered, table = torch.randn(rows, 1024, device=CUDA).bfloat16(), torch.randn(3072, 1024, device=CUDA).bfloat16()
    begun = SimpleNamespace(run=bits(rows))

    def run(module, warps):
        module.launch = lambda kernel, grid, **given: launch(kernel, grid, **{**given, "num_warps": warps})
        codes = torch.zeros(rows, 16, dtype=torch.int64, device=CUDA)
        x, finite = module.draw_first(state, begun, None, logits, hidden, entered, table, codes, 2150, 2048)
        return codes, x, finite

    return run


FIRSTS = [("before", first_before, 8), *((f"{warps} warps", first_now, warps) for warps in (8, 16))]


def firsts():
    run = first(ROWS, True)
    was = run(*FIRSTS[0][1:])
    for name, module, warps in FIRSTS[1:]:
        found = run(module, warps)
        print(
            f"first, {name}: codes that differ {(found[0] != was[0]).sum().item()} of {ROWS},",
            "inputs equal" if torch.equal(found[1], was[1]) else "inputs differ",
            torch.equal(found[2], was[2]),
        )
    if CUDA == "cuda":
        for rows in (1, 8, 64, 256):
            run = first(rows, False)
            print(
                f"first, rows {rows:3}, us each of 8: "
                + ", ".join(
                    f"{name} {median(graph(lambda: [run(module, warps) for _ in range(8)])) / 8:.2f}"
                    for name, module, warps in FIRSTS
                )
            )


if __name__ == "__main__":
    if sys.argv[1] == "first":
        firsts()
        sys.exit()
    compile_all()
    {"check": check, "time": times}[sys.argv[1]]()
