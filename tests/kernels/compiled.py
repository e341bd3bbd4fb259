"""Compiles PaTH's kernels for an H100 or H200, without one, and reads what the assembler made of them.

usage: python compiled.py HEAD_DIM    prints matrix products that take an operand from a register of something else

Such a product reads anywhere: out of bounds at best. ptxas 12.8 makes them of some orders of small products.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from longeval.kernels.attention import Cached, New, append, decode, prefill
from longeval.kernels.plan import Plan
from longeval.kernels.pool import PageLayout, Shape
from longeval.kernels.reference import ScoreRule

PRODUCTS = ("chunks", "near_spans", "far_spans", "walk", "append", "close_open_chunks", "carry_queries")
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Hopper:
    """What Triton asks a driver before it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def misaddressed(sass):
    """Products (HGMMA) in disassembled code whose operands' descriptors do not come from an address in shared memory.

    A descriptor is a pair of uniform registers; its low one is a masked address (USGXT, ULOP3, R2UR), a copy, or a sum.
    """
    addresses, found = set(), []
    for line in re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", sass):
        instruction = re.sub(r"^@\S+ ", "", line)
        name = instruction.split()[0]
        if name.startswith("HGMMA"):
            pair = re.search(r"gdesc\[UR(\d+)\]", instruction)
            operands = [int(pair[1]) + 2] if pair else []
            if re.match(r"HGMMA\S* R\d+, gdesc\[UR", instruction):  # the left one, too, is in shared memory
                operands.append(int(pair[1]))
            if not addresses.issuperset(operands):
                found.append(instruction)
            continue
        written = re.match(r"\S+ (?:!?U?P\w+, )?UR(\d+), (.*)", instruction)
        if not written or not name.startswith(("U", "R2UR", "S2UR")):
            continue
        target, sources = int(written[1]), {int(number) for number in re.findall(r"UR(\d+)", written[2])}
        masked = name.startswith(("USGXT", "ULOP3", "R2UR"))
        derived = name in ("UIADD3", "UIADD3.64", "UMOV") and not addresses.isdisjoint(sources)
        (addresses.add if masked or derived else addresses.discard)(target)
        if name.endswith(".64"):
            addresses.discard(target + 1)
    return found


def compile_instead_of_launching():
    """From now on; the list that (name, cubin) of every kernel goes to."""
    kernels = []
    launch = jit.JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        kernels.append((self.fn.__name__, kernel.asm["cubin"]))
        return kernel

    driver.set_active(Hopper())
    jit.JITFunction.run = compile_only
    return kernels


def call_all(shape):
    """Every kernel of one layer: prefill with and without a prefix, append, decode."""
    tokens = 256

    def random(*size):
        return torch.randn(*size).to(shape.dtype)

    H, d = shape.kv_heads, shape.head_dim
    log_f = random(tokens, shape.heads) if shape.gate else None
    keys = (random(tokens, H, d) for _ in range(3))
    new = New(random(tokens, shape.heads, d), *keys, random(tokens, H), log_f)
    starts, rule = torch.tensor([0, tokens]), ScoreRule(d**-0.5, gate_scale=1.0)
    pool, table = PageLayout(shape, tokens).empty(2, "cpu"), torch.tensor([[0, 1]], dtype=torch.int32)
    cached = Cached.of(pool, table, torch.tensor([100]), starts, tokens)
    prefill(rule, new, Plan.of(starts, tokens))
    prefill(rule, new, Plan.of(starts, tokens), cached)
    append(new, starts.int(), cached)
    decode(rule, new.q[:1], pool, table, torch.tensor([300], dtype=torch.int32), 2 * tokens)


def main():
    kernels = compile_instead_of_launching()
    for gate, kv_heads in ((True, 4), (False, 1)):
        call_all(Shape(4, kv_heads, int(sys.argv[1]), torch.float16, path=True, gate=gate))
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        for name, code in kernels:
            cubin.write_bytes(code)
            sass = subprocess.run([CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True).stdout
            assert "HGMMA" in sass or name not in PRODUCTS, f"{name} without matrix products"
            for product in misaddressed(sass):
                print(f"{name}: {product}")


if __name__ == "__main__":
    main()
