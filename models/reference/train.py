"""Trains one reference checkpoint.

    python -m longeval.models.reference.train --method path-fox --seed 0 --data DATA --out OUT

Size, data, order of data, schedule and budget are the same for every method; the seed draws the initial weights and
the order. In float32 (matrix products in TF32 on a GPU). The loss is a mean over tokens weighted by what they are: see
WEIGHTS. A run that was interrupted goes on from its last saved state as if nothing had happened.

OUT holds loss.jsonl (mean loss by kind of token over every LOG_EVERY steps, and at the end the accuracy on held-out
rows), state.pt to resume from, and at the end the checkpoint: config.json, model.safetensors and the tokenizer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from longeval.errors import UserError
from longeval.kernels import dense
from longeval.kernels.pages import Householder
from longeval.kernels.reference import ScoreRule
from longeval.models.network import Block, Network, score_rule
from longeval.models.reference import TRAINED_LENGTH, tokenizer
from longeval.models.reference.data import HELD_OUT, LABELS, read
from longeval.models.reference.methods import METHODS, new_network


@dataclass(frozen=True)
class Phase:
    """`steps` steps on `batch` rows of `length` tokens."""

    length: int
    batch: int
    steps: int


# On short rows, attention to the tokens just before is found soon, and with it copying and looking up.
PHASES = (Phase(32, 256, 1000), Phase(128, 64, 4000), Phase(TRAINED_LENGTH, 32, 5000))
RATE, WARM_UP, LAST_RATE = 3e-3, 400, 0.05  # peak, steps, share of the peak at the end
BETAS, DECAY, CLIP = (0.9, 0.98), 0.1, 1.0
WEIGHTS = {"prompt": 0.02, "text": 0.2}  # of a token in the loss; an answer's is 1
LOG_EVERY, SAVE_EVERY = 50, 1000
_BEFORE_CAPTURE = 3


class DenseAttention:
    """`Attention` of whole sequences, for one call."""

    def __init__(self, rule: ScoreRule, length: Tensor) -> None:
        self.rule = rule
        self.length = length

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, path: Householder | None, log_f: Tensor | None, new: Tensor
    ) -> Tensor:
        return dense.attend(self.rule, q, k, v, path, log_f)

    def select(self, rows: Tensor) -> DenseAttention:
        return DenseAttention(self.rule, self.length[rows])


def run_block(block: Block, h: Tensor) -> Tensor:
    """One block on whole sequences, h [B, L, D] -> [B, L, D]."""
    new = torch.full(h.shape[:1], h.shape[1], device=h.device)
    state = block.attn.state(DenseAttention(score_rule(block.attn.arch), torch.zeros_like(new)), len(h))
    return block(h, state, new)  # type: ignore[no-any-return]


def token_losses(network: Network, h: Tensor, targets: Tensor) -> Tensor:
    """h [B, L, D] behind the last block, targets [B, L] -> float32 [B * L]."""
    return F.cross_entropy(network.logits(h).flatten(0, 1), targets.flatten(), reduction="none")


class Rows:
    """The rows of one phase on the device, in the order in which the phase takes them."""

    def __init__(self, phase: Phase, data: Path, seed: int, device: torch.device) -> None:
        tokens, labels = read(data, phase.length)
        if len(tokens) <= HELD_OUT:
            raise UserError(f"{data} has {len(tokens)} rows of {phase.length} tokens; {HELD_OUT} are held out")
        self.digest = hashlib.sha256(tokens.tobytes() + labels.tobytes()).hexdigest()[:8]
        self.tokens = torch.from_numpy(tokens.view(np.int16)).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        needed = phase.steps * phase.batch
        self.order = _order(seed, len(tokens), needed).view(phase.steps, phase.batch).to(device)

    def at(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """int64 tokens and labels [batch, length + 1] of the phase's step [1]."""
        rows = self.order[step].flatten()
        return self.tokens[rows].long(), self.labels[rows].long()


class Training:
    """One run. Everything that changes from step to step is on the device, so that a step can be a CUDA graph."""

    def __init__(self, method: str, seed: int, data: Path, phases: Sequence[Phase], device: torch.device) -> None:
        self.method, self.seed, self.phases, self.device = method, seed, phases, device
        network, self.names = new_network(method, seed)
        self.network = network.to(device)
        self.rows = [Rows(phase, data, seed, device) for phase in phases]
        self.steps = sum(phase.steps for phase in phases)
        self.rates = torch.tensor([_rate(step, self.steps) for step in range(self.steps)], device=device)
        self.weights = torch.tensor([WEIGHTS.get(label, 1.0) for label in LABELS], device=device)
        self.losses = torch.zeros(self.steps, len(LABELS), 2, device=device)  # sum and number of tokens
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.optimizer = self._optimizer()
        self._block: Callable[..., Tensor] = run_block
        self._token_losses: Callable[..., Tensor] = token_losses
        if device.type == "cuda":
            # deterministic: kernels are not chosen by how long they take
            compiled = partial(torch.compile, dynamic=False, options={"deterministic": True})
            self._block, self._token_losses = compiled(run_block), compiled(token_losses)

    def _optimizer(self) -> torch.optim.AdamW:
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        groups = [
            {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": DECAY},
            {"params": [parameter for parameter in trained if parameter.dim() == 1], "weight_decay": 0.0},
        ]
        rate = torch.tensor(0.0, device=self.device)
        return torch.optim.AdamW(groups, lr=rate, betas=BETAS, capturable=self.device.type == "cuda", fused=True)

    def one_step(self, rows: Rows, first: int) -> None:
        """The optimizer's next step, on `rows` of the phase whose first step is `first`."""
        tokens, labels = rows.at(self.step - first)
        kinds = F.one_hot(labels[:, 1:].flatten(), len(LABELS)).float()
        h = self.network.model.embeddings(tokens[:, :-1])
        for block in self.network.model.blocks:
            h = self._block(block, h)
        losses = self._token_losses(self.network, h, tokens[:, 1:])
        weights = kinds @ self.weights
        self.optimizer.zero_grad(set_to_none=True)
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP, foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"].copy_(self.rates[self.step][0])
        self.optimizer.step()
        self.losses.index_copy_(0, self.step, torch.stack([losses.detach() @ kinds, kinds.sum(0)], dim=-1)[None])
        self.step += 1

    def captured(self, rows: Rows, first: int) -> Callable[[], None]:
        """`one_step` as a CUDA graph. The steps that capturing needs first are steps of the training."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(_BEFORE_CAPTURE):
                self.one_step(rows, first)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.one_step(rows, first)
        return graph.replay

    def run(self, out: Path) -> None:
        """Trains to the end, from the last state saved in `out`."""
        out.mkdir(parents=True, exist_ok=True)
        if (out / "state.pt").is_file():
            self._load(out / "state.pt")
        first = 0
        for phase, rows in zip(self.phases, self.rows, strict=True):
            self._run_phase(rows, first, first + phase.steps, out)
            first += phase.steps

    def _run_phase(self, rows: Rows, first: int, end: int, out: Path) -> None:
        if int(self.step) >= end:
            return
        step: Callable[[], None] = partial(self.one_step, rows, first)
        if self.device.type == "cuda":
            step = self.captured(rows, first)
        for done in range(int(self.step) + 1, end + 1):
            step()
            if done % SAVE_EVERY == 0 or done == end:
                self._save(out, done)
                print(f"{time.strftime('%H:%M:%S')} {self.method} {done}: {self._mean_losses(done - LOG_EVERY)}")

    def _save(self, out: Path, done: int) -> None:
        lines = [json.dumps({"step": start + LOG_EVERY, **self._mean_losses(start)}) for start in _logged(done)]
        lines.append(json.dumps({"step": done, "accuracy": self.accuracy()}))
        (out / "loss.jsonl").write_text("\n".join(lines) + "\n")
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "of": self._recipe(), "losses": self.losses, "step": self.step}, out / "state.pt.new")
        os.replace(out / "state.pt.new", out / "state.pt")

    def _load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["of"] != self._recipe():
            raise UserError(f"{path} is the state of another training ({state['of']}): choose another folder")
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses.copy_(state["losses"])
        self.step.copy_(state["step"])

    def _recipe(self) -> str:
        phases = (f"{phase.steps} steps on {phase.batch} rows of {phase.length}" for phase in self.phases)
        data = "-".join(rows.digest for rows in self.rows)
        return f"{self.method}, seed {self.seed}, {', '.join(phases)}, data {data}"

    def _mean_losses(self, start: int) -> dict[str, float]:
        sums, counts = self.losses[start : start + LOG_EVERY].sum(0).T.tolist()
        return {name: round(s / n, 4) for name, s, n in zip(LABELS, sums, counts, strict=True) if n}

    @torch.no_grad()
    def accuracy(self) -> dict[str, float]:
        """On the held-out rows, by kind: the share of tokens that are the model's first choice."""
        right, counts = torch.zeros(2, len(LABELS), device=self.device)
        rows = self.rows[-1]
        for tokens, labels in zip(rows.tokens[:HELD_OUT].split(64), rows.labels[:HELD_OUT].split(64), strict=True):
            h = self.network.model.embeddings(tokens[:, :-1].long())
            for block in self.network.model.blocks:
                h = run_block(block, h)
            hits = self.network.logits(h).argmax(-1) == tokens[:, 1:]
            kinds = F.one_hot(labels[:, 1:].long(), len(LABELS)).float()
            right += (hits[..., None] * kinds).sum((0, 1))
            counts += kinds.sum((0, 1))
        return {name: round(float(r / n), 4) for name, r, n in zip(LABELS, right, counts, strict=True) if n}


def _logged(done: int) -> range:
    return range(0, done - LOG_EVERY + 1, LOG_EVERY)


def _order(seed: int, rows: int, needed: int) -> Tensor:
    """int64 [needed]: rows from HELD_OUT on, each once in every epoch, in an order drawn from the seed."""
    rng = np.random.default_rng(seed)
    epochs = -(-needed // (rows - HELD_OUT))
    order = np.concatenate([HELD_OUT + rng.permutation(rows - HELD_OUT) for _ in range(epochs)])
    return torch.from_numpy(order[:needed])


def _rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    way = (step - WARM_UP) / max(1, steps - WARM_UP)
    return RATE * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * way)) / 2)


def save_checkpoint(network: Network, names: dict[str, str], config: dict[str, Any], folder: Path) -> None:
    """Writes the network in bfloat16, with its config and the tokenizer, as fla does.

    Generation ends at a line break too, where answers ended in training.
    """
    tensors = {}
    for name, parameter in network.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(ours, theirs)
        tensors[name] = parameter.detach().to("cpu", torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stops = {"bos_token_id": tokenizer.BOS, "eos_token_id": [tokenizer.EOS, tokenizer.NEWLINE]}
    (folder / "generation_config.json").write_text(json.dumps(stops, indent=2) + "\n")
    for file in tokenizer.FOLDER.iterdir():
        shutil.copyfile(file, folder / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="folder written by longeval.models.reference.data")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.seed < 0:
        parser.error("--seed is 0 or more")
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        training = Training(arguments.method, arguments.seed, arguments.data, PHASES, device)
        training.run(arguments.out)
    except (UserError, OSError) as error:
        parser.error(str(error))
    save_checkpoint(training.network, training.names, METHODS[arguments.method], arguments.out)


if __name__ == "__main__":
    main()
