"""Files like AudioSeal's released ones, small and with random weights, and the library's models that belong to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from audioseal.builder import AudioSealDetectorConfig, AudioSealWMConfig, create_detector, create_generator
from audioseal.libs.moshi.utils.compile import no_compile
from audioseal.loader import AudioSeal
from omegaconf import OmegaConf
from torch import Tensor

from agent_tts.model.watermark import DETECTOR, GENERATOR

FILTERS, RATIOS, DIMENSION = 8, (2, 4, 5, 8), 16


def configuration() -> dict[str, Any]:
    seanet = {
        "channels": 1, "dimension": DIMENSION, "n_filters": FILTERS, "n_residual_layers": 1,
        "ratios": list(RATIOS[::-1]), "activation": "ELU", "activation_params": {"alpha": 1.0}, "norm": "weight_norm",
        "norm_params": {}, "kernel_size": 7, "last_kernel_size": 7, "residual_kernel_size": 3, "dilation_base": 2,
        "causal": True, "pad_mode": "constant", "true_skip": True, "compress": 2, "lstm": 2,
        "disable_norm_outer_blocks": 0,
    }  # fmt: skip
    decoder = {"final_activation": None, "final_activation_params": None, "trim_right_ratio": 1.0}
    return {"nbits": 16, "seanet": seanet, "decoder": decoder, "detector": {"output_dim": 32}}


def generator() -> Any:
    """The library's generator."""
    torch.manual_seed(0)
    return create_generator(AudioSeal.parse_config(configuration(), config_type=AudioSealWMConfig)).eval()


def detector() -> Any:
    """The library's detector."""
    torch.manual_seed(1)
    return create_detector(AudioSeal.parse_config(configuration(), config_type=AudioSealDetectorConfig)).eval()


@torch.inference_mode()
def watermark_of(library: Any, sound: Tensor, message: int) -> Tensor:
    """The library's watermark of streams [B, T]."""
    bits = torch.tensor([[message >> bit & 1 for bit in range(16)]]).expand(len(sound), -1)
    with no_compile():
        marked: Tensor = library.get_watermark(sound[:, None], message=bits)
    return marked[:, 0]


def write(folder: Path) -> Path:
    """Both files: with weight norm, their older names, and a configuration of omegaconf beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in ((GENERATOR, generator()), (DETECTOR, detector())):
        saved = {"xp.cfg": OmegaConf.create(configuration()), "model": _released(model.state_dict())}
        torch.save(saved, folder / name)
    return folder


def _released(state: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    norm = partial(torch.linalg.vector_norm, dim=(1, 2), keepdim=True)
    for name, tensor in state.items():
        if name.endswith(".inner_conv.weight"):
            base = name.replace(".inner_conv.", ".")
            found |= {f"{base}_g": norm(tensor), f"{base}_v": 3 * tensor}
        else:
            found[name.replace(".inner_conv.", ".")] = tensor
    return found
