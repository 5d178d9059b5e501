"""The reference implementation, imported in one place, when the first test uses it: its import takes 3 s.

Its 25 Hz tokenizer, which is not used here, imports three packages that may be absent or broken with a CPU build of
torch. Empty modules replace them while the reference is imported. So does one for torch's compiler, 130 MB that
transformers would import to leave its functions alone. Of librosa and scikit-learn, 150 MB, functions import them.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

# Models that stay in memory, each 100 MB: a test has one, as a rule.
MODELS = 1

# By digest of their files.
_tokenizers: dict[bytes, Any] = {}

_COMPILER = "torch._dynamo"
_LATER = ("librosa", "librosa.filters", "sklearn", "sklearn.metrics")
_UNUSED = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")


@cache
def qwen_tts() -> Any:
    """The package."""
    stand_ins = {name: module_from_spec(ModuleSpec(name, None)) for name in _UNUSED if name not in sys.modules}
    for name, module in stand_ins.items():
        outer, _, inner = name.rpartition(".")
        if outer in stand_ins:
            setattr(stand_ins[outer], inner, module)
    stand_ins |= {name: _Later(name) for name in _LATER if name.partition(".")[0] not in sys.modules}
    if _COMPILER not in sys.modules:
        in_a_mask = ModuleType(f"{_COMPILER}._trace_wrapped_higher_order_op")
        vars(in_a_mask)["TransformGetItemToIndex"] = nullcontext
        stand_ins |= {_COMPILER: _NoCompiler(_COMPILER), in_a_mask.__name__: in_a_mask}
    sys.modules.update(stand_ins)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the reference and its imports
            reference = import_module("qwen_tts")
            import_module("transformers").logging.set_verbosity_error()
            gc.collect()
            gc.freeze()  # what is imported stays
            return reference
    finally:
        for name in stand_ins:
            del sys.modules[name]


class _Later(ModuleType):
    """A module whose functions import it when they are called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: getattr(import_module(self.__name__), name)(*given, **named)


class _NoCompiler(ModuleType):
    """Torch's compiler: what decorates a function leaves it as it is."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function


@lru_cache(maxsize=MODELS)
@torch.inference_mode(False)  # whatever the test has that is the first to load it
def load(checkpoint: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The reference's `Qwen3TTSModel` of a checkpoint folder, on the CPU.

    Upstream requests a fix for Mistral's tokenizers, which replaces Qwen's pre-tokenizer in a local folder but not in a
    checkpoint from the hub; this function loads the tokenizer of the training.

    Tests of the process share the model: a test that changes it restores it.
    """
    package, processor = qwen_tts(), import_module("transformers").AutoProcessor
    shared = package.core.models.Qwen3TTSProcessor(tokenizer(checkpoint))
    with warnings.catch_warnings(), patch.object(processor, "from_pretrained", lambda *_, **__: shared):
        warnings.simplefilter("ignore")
        return package.Qwen3TTSModel.from_pretrained(str(checkpoint), dtype=dtype, attn_implementation="eager")


def tokenizer(checkpoint: Path) -> Any:
    """The text tokenizer of a checkpoint folder. Folders with equal files share it: it takes 40 MB."""
    names = ("vocab.json", "merges.txt", "tokenizer_config.json")
    digest = sha256(b"".join((checkpoint / name).read_bytes() for name in names)).digest()
    if digest not in _tokenizers:
        _tokenizers[digest] = import_module("transformers").AutoTokenizer.from_pretrained(checkpoint)
    return _tokenizers[digest]
