"""fla's three causal language models in vLLM; blocks, MLP and head are the same, the mixer differs.

vLLM inspects the classes named here in a process of its own and caches the answer by this file's hash.
"""

# No `from __future__ import annotations`: vLLM reads the compiled forward's annotations.

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from longeval.models.architecture import Architecture
from longeval.models.vllm.configs import read_checkpoint
from longeval.models.vllm.mixers import ForgettingMixer, Mixer, PathMixer, RotaryMixer


def mixer(arch: Architecture) -> type[Mixer]:
    """What stands in a block's place of attention."""
    if arch.path is not None:
        return PathMixer
    return ForgettingMixer if arch.gate is not None else RotaryMixer


class GatedMlp(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, arch: Architecture, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        quant = vllm_config.quant_config
        self.gate_up_proj = MergedColumnParallelLinear(
            arch.hidden_size,
            [arch.intermediate_size] * 2,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            arch.intermediate_size, arch.hidden_size, bias=False, quant_config=quant, prefix=f"{prefix}.down_proj"
        )
        self.act = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        gate_up, _ = self.gate_up_proj(x)
        return self.down_proj(self.act(gate_up))[0]


class Block(nn.Module):
    """x + mixer(norm x), then x + mlp(norm x); the residual is carried beside x so that sum and norm are one kernel."""

    def __init__(self, arch: Architecture, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(arch.hidden_size, eps=arch.norm_eps)
        self.attn = mixer(arch)(arch, vllm_config, f"{prefix}.attn")
        self.mlp_norm = RMSNorm(arch.hidden_size, eps=arch.norm_eps)
        self.mlp = GatedMlp(arch, vllm_config, f"{prefix}.mlp")

    def forward(self, positions: Tensor, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            x, residual = self.attn_norm(x), x
        else:
            x, residual = self.attn_norm(x, residual)
        x, residual = self.mlp_norm(self.attn(positions, x), residual)
        return self.mlp(x), residual


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "intermediate_tensors": 0, "inputs_embeds": 0})
class Decoder(nn.Module):
    """Embeddings, blocks and the final norm, by fla's names."""

    def __init__(self, *, vllm_config: VllmConfig, arch: Architecture, prefix: str = "") -> None:
        super().__init__()
        self.embeddings = VocabParallelEmbedding(arch.vocab_size, arch.hidden_size)
        self.layers = nn.ModuleList(
            Block(arch, vllm_config, f"{prefix}.layers.{index}") for index in range(arch.layers)
        )
        self.norm = RMSNorm(arch.hidden_size, eps=arch.norm_eps)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            x, residual = layer(positions, x, residual)
        x, _ = self.norm(x, residual)
        return x


class FlaForCausalLM(nn.Module):
    """What vLLM calls."""

    hf_to_vllm_mapper: ClassVar[WeightsMapper] = WeightsMapper(
        orig_to_new_stacked={
            ".attn.q_proj": (".attn.qkv_proj", "q"),
            ".attn.k_proj": (".attn.qkv_proj", "k"),
            ".attn.v_proj": (".attn.qkv_proj", "v"),
            ".mlp.gate_proj": (".mlp.gate_up_proj", 0),
            ".mlp.up_proj": (".mlp.gate_up_proj", 1),
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model = vllm_config.model_config
        self.config = model.hf_config
        arch, self._targets = read_checkpoint(model.hf_config, model.model, model.revision)
        if arch.activation != "swish":
            raise ValueError(f"longeval's vLLM models have no activation {arch.activation!r}; the torch backend has it")
        self.model = Decoder(vllm_config=vllm_config, arch=arch, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(arch.vocab_size, arch.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        if arch.tied:
            self.lm_head = self.lm_head.tie_weights(self.model.embeddings)
        self.logits_processor = LogitsProcessor(arch.vocab_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embeddings(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """vLLM reads every weight file that lies in the folder; the checkpoint's own tensors are taken."""
        own = ((parameter, tensor[rows]) for name, tensor in weights for parameter, rows in self._targets.get(name, ()))
        return AutoWeightsLoader(self).load_weights(own, mapper=self.hf_to_vllm_mapper)


class PaTHAttentionForCausalLM(FlaForCausalLM):
    """PaTH and PaTH-FoX."""


class ForgettingTransformerForCausalLM(FlaForCausalLM):
    """FoX."""


class TransformerForCausalLM(FlaForCausalLM):
    """The RoPE baseline."""
