"""Runs checkpoints of PaTH, PaTH-FoX, FoX and RoPE models in fla's or the FoX authors' format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longeval.errors import UserError
from longeval.models.architecture import Architecture, read_architecture
from longeval.models.decoding import LOGIT_BUDGET, TOKENS_PER_CALL
from longeval.models.network import LayerState, Network
from longeval.models.weights import Source, Weights, check_sources, find_sources

PAGE = 512


def load_network(folder: Path, config: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Network:
    """The network of a checkpoint folder, with its weights. UserError when they do not fit its config."""
    network, weights, sources = read_layout(folder, config)
    state = {name: weights.read(sources[name]).to(device, dtype) for name, _ in network.named_parameters()}
    network.load_state_dict(state, assign=True)
    return network.requires_grad_(False).eval()


def read_layout(folder: Path, config: dict[str, Any]) -> tuple[Network, Weights, dict[str, Source]]:
    """The network of a checkpoint folder without values, its files, and where in them each parameter is.

    UserError when the files are damaged or do not fit the config.
    """
    weights = Weights(folder)
    arch, names = read_architecture(config, weights.shapes, str(folder / "config.json"))
    if arch.layers > len(weights.shapes):  # each has some tensors; a billion of them would be built for hours
        found = f"{arch.layers:,} layers, and its weights hold {len(weights.shapes):,} tensors in all"
        raise UserError(f"{folder / 'config.json'} describes {found}; mend num_hidden_layers")
    with torch.device("meta"):
        network = Network(arch)
    sources = find_sources(weights.shapes, names, arch)
    expected = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    check_sources(sources, expected, names, folder)
    return network, weights, sources


class FlaBatch:
    """Sequences of a `Network` in the middle of being decoded."""

    def __init__(self, network: Network, states: list[LayerState], new: Tensor) -> None:
        self.network = network
        self.states = states
        self.one = torch.ones_like(new)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor(tokens, device=self.one.device)[:, None]
        return self.network.logits(self.network(ids, self.states, self.one)[:, 0])

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> FlaBatch:
        kept = torch.tensor(rows, device=self.one.device)
        return FlaBatch(self.network, [state.select(kept) for state in self.states], self.one[kept])


class FlaRunner:
    """Chunked prefill and scoring of a `Network`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        weight = network.model.norm.weight
        self.device = weight.device
        self.vocab_size = network.arch.vocab_size
        self.bytes_per_token = _cache_bytes(network.arch, weight.dtype.itemsize)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[FlaBatch, Tensor]:
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        ids, lengths = ids.to(self.device), lengths.to(self.device)
        states = self.network.start(len(prompts), longest + room)
        last = torch.empty(len(prompts), self.network.arch.hidden_size, dtype=self._dtype, device=self.device)
        piece = max(PAGE, TOKENS_PER_CALL // len(prompts) // PAGE * PAGE)
        for begin in range(0, longest, piece):
            part = ids[:, begin : begin + piece]
            new = (lengths - begin).clamp(0, part.shape[1])
            hidden = self.network(part, states, new)
            ends = ((lengths > begin) & (lengths <= begin + piece)).nonzero()[:, 0]
            last[ends] = hidden[ends, lengths[ends] - begin - 1]
        return FlaBatch(self.network, states, lengths), self.network.logits(last)

    def score(self, ids: Sequence[int]) -> Iterator[Tensor]:
        with torch.inference_mode():
            states = self.network.start(1, len(ids))
        rows = max(1, LOGIT_BUDGET // self.vocab_size)
        for begin in range(0, len(ids), TOKENS_PER_CALL):
            part = torch.tensor(ids[begin : begin + TOKENS_PER_CALL], device=self.device)[None]
            with torch.inference_mode():
                hidden = self.network(part, states, torch.tensor([part.shape[1]], device=self.device))[0]
            for row in range(0, len(hidden), rows):
                with torch.inference_mode():
                    logits = self.network.logits(hidden[row : row + rows])
                yield logits

    @property
    def _dtype(self) -> torch.dtype:
        return self.network.model.norm.weight.dtype


def _cache_bytes(arch: Architecture, itemsize: int) -> int:
    """Of one token in all layers' pages: keys and values, gate sums, and the page's transitions spread over it."""
    per_head = 2 * arch.head_dim * itemsize + (4 * arch.head_dim**2 // PAGE if arch.path else 0)
    return arch.layers * (arch.kv_heads * per_head + (4 * arch.heads if arch.gate else 0))
