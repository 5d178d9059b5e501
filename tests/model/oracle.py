"""The reference implementation, imported in one place, when the first test uses it: its import takes 3 s.

Its 25 Hz tokenizer, which is not used here, imports three packages that may be absent or broken with a CPU build of
torch. Empty modules replace them while the reference is imported.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import torch

_UNUSED = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")


@cache
def qwen_tts() -> Any:
    """The package."""
    stand_ins = {name: module_from_spec(ModuleSpec(name, None)) for name in _UNUSED if name not in sys.modules}
    for name, module in stand_ins.items():
        outer, _, inner = name.rpartition(".")
        if outer in stand_ins:
            setattr(stand_ins[outer], inner, module)
    sys.modules.update(stand_ins)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the reference and its imports
            reference = import_module("qwen_tts")
            import_module("transformers").logging.set_verbosity_error()
            return reference
    finally:
        for name in stand_ins:
            del sys.modules[name]


@cache
def load(checkpoint: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The reference's `Qwen3TTSModel` of a checkpoint folder, on the CPU.

    Upstream requests a fix for Mistral's tokenizers, which replaces Qwen's pre-tokenizer in a local folder but not in a
    checkpoint from the hub; this function loads the tokenizer of the training.

    All tests of the process share the model: a test that changes it restores it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = qwen_tts().Qwen3TTSModel.from_pretrained(str(checkpoint), dtype=dtype, attn_implementation="eager")
    model.processor.tokenizer = tokenizer(checkpoint)
    return model


@cache
def tokenizer(checkpoint: Path) -> Any:
    """The text tokenizer of a checkpoint folder."""
    return import_module("transformers").AutoTokenizer.from_pretrained(checkpoint)
