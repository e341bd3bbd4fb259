"""Tensors of a checkpoint folder: safetensors or pytorch_model*.bin, single or sharded, read once and checked whole."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longeval.errors import UserError, one_line
from longeval.jsontext import parse_json
from longeval.models.architecture import Architecture

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_NAMED = 8  # tensors in an error


@dataclass(frozen=True)
class Source:
    """Where a parameter's values are: a tensor of the file, or rows begin:end of it."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


class Weights:
    """The tensors of one folder. `shapes` is read at once, values on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = weight_files(folder)
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in self.files:
            self._open(file)

    def _open(self, file: Path) -> None:
        if file.suffix == ".safetensors":
            try:
                tensors: Any = safe_open(file, "pt")
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    self.shapes[name] = tuple(tensors.get_slice(name).get_shape())
                    self._readers[name] = partial(tensors.get_tensor, name)
            except (SafetensorError, OSError) as error:
                raise UserError(f"{file} is damaged or cut off ({error}); copy or download it again") from error
            return
        try:
            state: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            reason = f"{file} is damaged or no PyTorch weights ({one_line(error)})"
            raise UserError(f"{reason}; copy or download it again") from error
        for name, tensor in state.items():
            self.shapes[name] = tuple(tensor.shape)
            self._readers[name] = partial(_same, tensor)

    def read(self, source: Source) -> Tensor:
        tensor = self._readers[source.name]()
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{self.folder}: {source.name} is {kind}; quantised weights are not supported, use bfloat16"
            )
        return tensor if source.rows is None else tensor[slice(*source.rows)]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def weight_files(folder: Path) -> list[Path]:
    """The folder's weight files, sorted; UserError when there are none or a shard is missing."""
    for name in WEIGHT_FILES:
        path = folder / name
        if not path.is_file():
            continue
        if path.suffix != ".json":
            return [path]
        index = parse_json(path.read_bytes(), str(path))
        places = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
            raise UserError(f"{path} is no index of weight files: it has no weight_map; copy or download it again")
        shards = sorted(set(places.values()))
        if lost := [shard for shard in shards if not (folder / shard).is_file()]:
            raise UserError(f"{folder} lacks {', '.join(lost)}, named in {name}; copy or download the missing files")
        return [folder / shard for shard in shards]
    raise UserError(f"{folder} holds no weights: none of {', '.join(WEIGHT_FILES)}")


def find_sources(
    shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str], arch: Architecture
) -> dict[str, Source]:
    """Parameter name -> where it is in the file.

    `names`: parts of the file's names that the network calls otherwise. Old files fuse `mlp.gate_proj` and
    `mlp.up_proj` in one tensor, gate rows first, and may keep a block's norms inside its sub-layers. Rotary tables are
    no parameters; neither is the output head of a tied model.
    """
    sources = {}
    for name, shape in shapes.items():
        if name.endswith("rotary.inv_freq") or (arch.tied and name == "lm_head.weight"):
            continue
        parameter = name
        for theirs, ours in names.items():
            parameter = parameter.replace(theirs, ours)
        parameter = parameter.replace(".attn.norm.", ".attn_norm.").replace(".mlp.norm.", ".mlp_norm.")
        up = parameter.replace(".gate_proj.", ".up_proj.")
        half = arch.intermediate_size
        if parameter.endswith(".mlp.gate_proj.weight") and up not in shapes and shape[0] == 2 * half:
            sources[parameter] = Source(name, (half, *shape[1:]), (0, half))
            sources[up] = Source(name, (half, *shape[1:]), (half, shape[0]))
        else:
            sources[parameter] = Source(name, shape)
    return sources


def check_sources(
    sources: Mapping[str, Source], expected: Mapping[str, tuple[int, ...]], names: Mapping[str, str], where: Path
) -> None:
    """One UserError that names the tensors of the file that are missing, of the wrong shape, or of no use."""

    def in_file(parameter: str) -> str:
        for theirs, ours in names.items():
            parameter = parameter.replace(ours, theirs)
        return parameter

    missing = [in_file(name) for name in expected if name not in sources]
    extra = [source.name for name, source in sources.items() if name not in expected]
    wrong = [
        f"{sources[name].name} is {list(sources[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in sources and sources[name].shape != shape
    ]
    refuse_misfits(where, {"missing": missing, "not used": extra, "wrong shape": wrong})


def refuse_misfits(where: Path, found: Mapping[str, Sequence[str]]) -> None:
    """UserError when any tensors are `found`, by what is wrong with them; names the first eight of each kind."""
    problems = [
        f"{what}: {', '.join(names[:_NAMED])}" + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
        for what, names in found.items()
        if names
    ]
    if problems:
        raise UserError(f"weights in {where} do not fit its config.json; " + "; ".join(problems))
