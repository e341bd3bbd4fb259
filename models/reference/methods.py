"""The five position methods that are compared, as fla configs of one size, and their networks before training.

NoPE is FoX with its gates frozen open: log f = -exp(-200) is 0 in float32, and what is left knows no positions. fla has
no model type without positions, and so every checkpoint loads there.

Beside weights of standard deviation 0.05 (less into the residual stream), gates and transitions start with memories of
different spans, from SHORTEST to LONGEST tokens, spread over a layer's heads as in FoX (arXiv 2503.02130, section 3):
a forget gate f = 1 - 1 / span; a transition that erases beta / d = 1 / span of a key.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from longeval.models.architecture import read_architecture
from longeval.models.network import Network
from longeval.models.reference import TRAINED_LENGTH
from longeval.models.reference.tokenizer import BOS, EOS, VOCABULARY

SHORTEST, LONGEST = 4, 1024
_DEVIATION = 0.05
_OPEN = 200.0  # bias of a frozen gate; below 104, log f is a denormal number, which slows a CPU down
_RANK, _WIDTH = 32, 3  # of w's projection and convolution: constants of fla's code
_SIZE: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_heads": 4,
    "intermediate_size": 384,
    "hidden_act": "swish",
    "norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "dtype": "bfloat16",
}
_ROPE = {"model_type": "transformer", "architectures": ["TransformerForCausalLM"]}
_FOX = {"model_type": "forgetting_transformer", "architectures": ["ForgettingTransformerForCausalLM"]}
_PATH = {"model_type": "path_attn", "architectures": ["PaTHAttentionForCausalLM"]}
METHODS: dict[str, dict[str, Any]] = {
    "rope": {**_ROPE, **_SIZE, "rope_theta": 10000.0, "max_position_embeddings": TRAINED_LENGTH},
    "nope": {**_FOX, **_SIZE},
    "fox": {**_FOX, **_SIZE},
    "path": {**_PATH, **_SIZE, "use_forget_gate": False},
    "path-fox": {**_PATH, **_SIZE, "use_forget_gate": True},
}


def new_network(method: str, seed: int) -> tuple[Network, dict[str, str]]:
    """A float32 network before training, and which parts of its parameters' names the file has otherwise."""
    config = METHODS[method]
    arch, names = read_architecture(config, _shapes(config), method)
    network = Network(arch)
    rng = torch.Generator().manual_seed(seed)
    spans = torch.logspace(math.log10(SHORTEST), math.log10(LONGEST), arch.heads)
    for name, parameter in network.named_parameters():
        parameter.data.copy_(_initial(name, parameter, arch.layers, rng))
        if name.endswith("f_proj.bias"):
            f = 1 - 1 / spans
            if arch.gate_scaled:  # log f is multiplied by d^-1/2 behind the gate
                f = f**arch.head_dim**0.5
            parameter.data.copy_(torch.logit(f))
        elif name.endswith("bt_proj.bias"):
            parameter.data.copy_(torch.logit((arch.head_dim / spans / 2).clamp(max=0.5)))
    if method == "nope":
        for block in network.model.blocks:
            block.attn.f_proj.requires_grad_(False)
            nn.init.zeros_(block.attn.f_proj.weight)
            nn.init.constant_(block.attn.f_proj.bias, _OPEN)
    return network, names


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of the tensors from which an architecture is read beside its config."""
    if config["model_type"] != "path_attn":
        return {}
    D = config["hidden_size"]
    return {".attn.w_proj.0.weight": (_RANK, D), ".attn.w_conv1d.weight": (D, 1, _WIDTH)}


def _initial(name: str, parameter: Tensor, layers: int, rng: torch.Generator) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(parameter.shape)
    if name.endswith("bias"):
        return torch.zeros(parameter.shape)
    deviation = _DEVIATION
    if "w_conv1d" in name:
        deviation = _WIDTH**-0.5
    elif "o_proj" in name or "down_proj" in name:
        deviation /= math.sqrt(2 * layers)
    return torch.randn(parameter.shape, generator=rng) * deviation
