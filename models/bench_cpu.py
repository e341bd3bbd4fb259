"""Time and memory of one long forward pass on a CPU: `python -m longeval.models.bench_cpu --length 65536`.

A PaTH model of two layers with four heads of 64 channels and 32,000 words, float32, random weights and tokens; what
runs is `logprobs`, output head included.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from longeval.models.architecture import Architecture, PathOptions
from longeval.models.decoding import score_tokens
from longeval.models.fla import FlaRunner
from longeval.models.network import Network


def random_path_network(vocab_size: int = 32_000) -> Network:
    """Two layers, four heads of 64."""
    arch = Architecture(
        vocab_size=vocab_size,
        hidden_size=256,
        layers=2,
        heads=4,
        kv_heads=4,
        intermediate_size=768,
        norm_eps=1e-6,
        tied=True,
        path=PathOptions(rank=32, conv=3),
    )
    network = Network(arch)
    rng = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        torch.nn.init.constant_(parameter, 1) if "norm" in name else parameter.data.normal_(0, 0.05, generator=rng)
    return network.requires_grad_(False).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=65_536, help="tokens")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    runner = FlaRunner(random_path_network())
    ids = torch.randint(runner.vocab_size, (arguments.length,), generator=torch.Generator().manual_seed(1)).tolist()
    wall, cpu = time.perf_counter(), time.process_time()
    loss = -score_tokens(runner, ids).logprobs.mean()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{arguments.length:,} tokens, {arguments.threads} threads, loss {loss:.3f}")
    print(f"{wall:.1f} s, {cpu:.1f} s of CPU, peak memory of the process {peak:.2f} GiB")


if __name__ == "__main__":
    main()
