"""From what the user called a model to a folder or file on this machine, its config, tokenizer and hash.

A model is one of longeval's own (`demo`, `demo:rope`, ...), a folder with config.json, a .gguf file, or a Hugging Face
hub id, which is downloaded (config and tokenizer first, weights when they are needed) or found in the hub's cache.
"""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longeval.errors import UserError, one_line
from longeval.jsontext import parse_json
from longeval.models.architecture import AUTHORS_TYPES, FLA_TYPES
from longeval.models.reference import TRAINED_LENGTH, find_reference, is_reference
from longeval.models.weights import WEIGHT_FILES, weight_files

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_HUB_TEXT = ["*.json", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on this machine.

    `name`: as runs and tables call it. `gguf`: name of the GGUF file in `folder`, for those. `hub`: the id where it
    came from.
    """

    name: str
    folder: Path
    gguf: str | None = None
    hub: str | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, or what the GGUF file says in its place."""
        if self.gguf:
            return dict(self.transformers_config.to_dict())
        path = self.folder / "config.json"
        try:
            config = parse_json(path.read_bytes(), str(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror})") from error
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
            raise UserError(f"{path} has no model_type: this is no model's config")
        return config

    @property
    def is_fla(self) -> bool:
        """Whether the network is ours (fla's or the FoX authors' format); transformers has all others."""
        return self.gguf is None and self.config["model_type"] in (*FLA_TYPES, *AUTHORS_TYPES)

    @cached_property
    def transformers_config(self) -> Any:
        """The config as transformers reads it; for models that it runs."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.folder, gguf_file=self.gguf, local_files_only=True)
        except Exception as error:  # transformers raises many kinds; the user needs the same answer
            raise UserError(f"{self.path}: transformers cannot read the config ({one_line(error)})") from error

    @property
    def path(self) -> Path:
        return self.folder / self.gguf if self.gguf else self.folder

    @cached_property
    def trained_length(self) -> int | None:
        """Trained window in tokens, where it is known."""
        if is_reference(self.name):
            return TRAINED_LENGTH
        if self.is_fla:
            # PaTH and FoX have no position table; the FoX authors' key of this name is unused.
            stated = self.config.get("max_position_embeddings") if self.config["model_type"] == "transformer" else None
        else:
            stated = getattr(self.transformers_config.get_text_config(), "max_position_embeddings", None)
        return stated if isinstance(stated, int) and stated > 0 else None

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, or None for a folder without tokenizer files."""
        if self.gguf is None and not any((self.folder / name).is_file() for name in _TOKENIZER_FILES):
            return None
        from transformers import AutoTokenizer, PretrainedConfig

        config = PretrainedConfig() if self.is_fla else self.transformers_config  # which does not know fla's types
        try:
            return AutoTokenizer.from_pretrained(self.folder, gguf_file=self.gguf, local_files_only=True, config=config)
        except Exception as error:  # as above
            raise UserError(f"{self.path}: transformers cannot load the tokenizer ({one_line(error)})") from error

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a text: generation config (else config) and tokenizer together."""
        path = self.folder / "generation_config.json"
        generation = parse_json(path.read_bytes(), str(path)) if self.gguf is None and path.is_file() else {}
        if not isinstance(generation, dict):
            raise UserError(f"{path} is no generation config; mend the file or remove it")
        stated = generation.get("eos_token_id", self.config.get("eos_token_id"))
        of_tokenizer = getattr(self.tokenizer, "eos_token_id", None)
        ids = [*(stated if isinstance(stated, list) else [stated]), of_tokenizer]
        if strange := [eos for eos in ids if not isinstance(eos, int | None)]:
            raise UserError(f"{self.path}: the eos_token_id {strange[0]!r} is no token id; mend its configs")
        return frozenset(eos for eos in ids if eos is not None)

    def fetch_weights(self) -> None:
        """Downloads a hub model's weights; nothing to do for others."""
        if self.hub:
            _download(self.hub, ["model*.safetensors"])
            if not any((self.folder / name).is_file() for name in WEIGHT_FILES[:2]):
                _download(self.hub, ["pytorch_model*.bin"])

    def check_weights(self) -> None:
        """UserError when weight files are missing, or do not fit the config of a network that is ours."""
        if self.is_fla:
            from longeval.models.fla import read_layout

            read_layout(self.folder, self.config)
        else:
            weight_files(self.folder)

    def hash(self) -> str:
        """16 hex digits of the SHA-256 over the config and the weights' contents."""
        files = [self.folder / self.gguf] if self.gguf else [self.folder / "config.json", *weight_files(self.folder)]
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(_file_digest, files))
        lines = [f"{file.name} {digest}\n" for file, digest in zip(files, digests, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def find_checkpoint(name: str) -> Checkpoint:
    """The checkpoint that `name` means. UserError when there is none."""
    if is_reference(name):
        return Checkpoint(*find_reference(name))
    if not name.strip():
        raise UserError("the model has no name: give a folder, a .gguf file or a hub id")
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return Checkpoint(name, path)
        inside = ", ".join(sorted(file.name for file in path.glob("*.gguf")))
        hint = f"; to run a GGUF file name it itself ({inside})" if inside else ""
        raise UserError(f"{path} has no config.json: not a model folder{hint}")
    if path.is_file():
        if path.suffix == ".gguf":
            return Checkpoint(name, path.parent, gguf=path.name)
        raise UserError(f"{path} is a file: give the folder that holds config.json, or a .gguf file")
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(name):
        raise UserError(f"no such model: {name} is no folder or file here")
    folder = _download(name, _HUB_TEXT)
    if not (folder / "config.json").is_file():
        raise UserError(f"hub model {name} has no config.json: not a model that can be loaded")
    return Checkpoint(name, folder, hub=name)


def _download(hub: str, patterns: list[str]) -> Path:
    """Files of a hub model's top folder that match; the local snapshot."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(hub, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except (OSError, ValueError, HFValidationError) as error:  # the hub client's errors and httpx's derive from these
        raise UserError(f"no such model: {hub} is no folder here and not on the hub ({one_line(error)})") from error


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
