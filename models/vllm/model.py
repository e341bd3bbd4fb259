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

from longeval.models.vllm.mixers import ForgettingMixer, Mixer, PathMixer, RotaryMixer

MIXERS: dict[str, type[Mixer]] = {
    "path_attn": PathMixer,
    "forgetting_transformer": ForgettingMixer,
    "transformer": RotaryMixer,
}


class GatedMlp(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config, quant = vllm_config.model_config.hf_config, vllm_config.quant_config
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [config.intermediate_size] * 2,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size, config.hidden_size, bias=False, quant_config=quant, prefix=f"{prefix}.down_proj"
        )
        self.act = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        gate_up, _ = self.gate_up_proj(x)
        return self.down_proj(self.act(gate_up))[0]


class Block(nn.Module):
    """x + mixer(norm x), then x + mlp(norm x); the residual is carried beside x so that sum and norm are one kernel."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.attn_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = MIXERS[config.model_type](vllm_config, f"{prefix}.attn")
        self.mlp_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = GatedMlp(vllm_config, f"{prefix}.mlp")

    def forward(self, positions: Tensor, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            x, residual = self.attn_norm(x), x
        else:
            x, residual = self.attn_norm(x, residual)
        x, residual = self.mlp_norm(self.attn(positions, x), residual)
        return self.mlp(x), residual


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": 0, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class Decoder(nn.Module):
    """Embeddings, blocks and the final norm, by fla's names."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.embeddings = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Block(vllm_config, f"{prefix}.layers.{index}") for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps)

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
    """What vLLM calls. Refuses, by name, config keys that change results and are not implemented."""

    hf_to_vllm_mapper: ClassVar[WeightsMapper] = WeightsMapper(
        orig_to_new_stacked={
            ".attn.q_proj": (".attn.qkv_proj", "q"),
            ".attn.k_proj": (".attn.qkv_proj", "k"),
            ".attn.v_proj": (".attn.qkv_proj", "v"),
            ".gate_proj": (".gate_up_proj", 0),
            ".up_proj": (".gate_up_proj", 1),
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.model = Decoder(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        if config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.model.embeddings)
        self.logits_processor = LogitsProcessor(config.vocab_size)

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
        loader = AutoWeightsLoader(self)
        return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)


class PaTHAttentionForCausalLM(FlaForCausalLM):
    """PaTH and PaTH-FoX."""


class ForgettingTransformerForCausalLM(FlaForCausalLM):
    """FoX."""


class TransformerForCausalLM(FlaForCausalLM):
    """The RoPE baseline."""
