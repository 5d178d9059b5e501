"""A synthetic checkpoint is what the reference implementation loads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from agent_tts.bench.checkpoint import (
    CLIP_FRAMES,
    ICL,
    SIZES,
    XVECTOR,
    SyntheticClone,
    add_clones,
    codec_shapes,
    model_shapes,
    write,
    write_configuration,
)
from agent_tts.errors import SettingsError
from agent_tts.model.config import ModelType
from agent_tts.voices.library import VoiceLibrary
from tests.model import oracle, tiny

pytestmark = pytest.mark.model

PROMPT = "<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("size", "model_type"),
    [
        *(("tiny", model_type) for model_type in get_args(ModelType)),
        *(("tiny-0.6B", "base"), ("0.6B", "custom_voice"), ("1.7B", "base")),
    ],
)
def test_names_and_shapes_equal_the_references(size: str, model_type: ModelType, tmp_path: Path) -> None:
    config = write_configuration(tmp_path, SIZES[size], model_type)
    core = oracle.qwen_tts().core
    whole = core.models.Qwen3TTSConfig(**json.loads((tmp_path / "config.json").read_text()))
    codec = core.Qwen3TTSTokenizerV2Config(**json.loads((tmp_path / "speech_tokenizer/config.json").read_text()))
    with torch.device("meta"):
        reference = core.models.Qwen3TTSForConditionalGeneration(whole)
        tokenizer = core.Qwen3TTSTokenizerV2Model(codec)
    assert model_shapes(config) == shapes(reference)
    assert codec_shapes(config, SIZES[size]) == shapes(tokenizer)


def shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize(("size", "millions"), [("0.6B", 906), ("1.7B", 1917)])
def test_released_sizes_have_the_released_number_of_parameters(size: str, millions: int, tmp_path: Path) -> None:
    config = write_configuration(tmp_path, SIZES[size], "custom_voice")
    total = sum(int(np.prod(shape)) for shape in model_shapes(config).values())
    assert round(total / 1e6) == millions
    decoder = [shape for name, shape in codec_shapes(config, SIZES[size]).items() if name.startswith("decoder.")]
    assert round(sum(int(np.prod(shape)) for shape in decoder) / 1e6) == 114


def test_the_waveform_is_loud_not_clamped_and_depends_on_every_code() -> None:
    decoder = oracle.load(tiny.checkpoint("custom_voice")).model.speech_tokenizer.model.decoder
    codes = torch.randint(2048, (1, 16, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wave = decoder(codes)
        assert 0.05 < wave.square().mean().sqrt() < 0.5
        assert (wave.abs() >= 1).float().mean() < 0.01
        for codebook in range(16):
            changed = codes.clone()
            changed[0, codebook, 10] = (changed[0, codebook, 10] + 1) % 2048
            difference = (decoder(changed) - wave)[0, 0].view(20, 1_920).abs().amax(1)
            assert difference[:10].max() == 0  # causal
            assert difference[10] > 1e-3


def test_greedy_speech_varies_its_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits differ enough between frames and codebooks: equal codes then mean equal models."""
    model = oracle.load(tiny.checkpoint("custom_voice"))
    greedy = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 12}
    spoken: list[Any] = []

    def decode(items: list[dict[str, Any]]) -> tuple[list[Any], int]:
        spoken.extend(item["audio_codes"] for item in items)
        return [], 24_000

    monkeypatch.setattr(model.model.speech_tokenizer, "decode", decode)
    model.generate_custom_voice("Hello you", language="english", speaker="ryan", **greedy)
    (codes,) = spoken
    assert codes.shape == (11, 16)
    frames = codes.tolist()
    assert len({frame[0] for frame in frames}) > 4
    assert len({tuple(frame) for frame in frames}) > 8


def test_the_prompt_has_the_tokens_that_its_slices_assume() -> None:
    tokenizer = oracle.tokenizer(tiny.checkpoint("custom_voice"))
    ids = tokenizer(PROMPT.format("Hi"))["input_ids"]
    assert ids[:3] == [151644, 77091, 198]
    assert ids[-5:] == [151645, 198, 151644, 77091, 198]
    assert tokenizer("<|im_start|>user\n")["input_ids"] == [151644, 872, 198]
    assert tokenizer("<tts_pad><tts_text_bos><tts_text_eod>")["input_ids"] == [151671, 151672, 151673]


@pytest.mark.parametrize("text", ["Hello the world, you're 42!", "你好，世界。", "éß 👋🏽 \n\n  x", "filler300"])
def test_text_round_trips_through_the_tokenizer(text: str) -> None:
    tokenizer = oracle.tokenizer(tiny.checkpoint("custom_voice"))
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids) < 1_000


def test_the_tokenizer_applies_merges() -> None:
    tokenizer = oracle.tokenizer(tiny.checkpoint("custom_voice"))
    for word in (" the", " you", "hello", "你好", "👋"):
        assert len(tokenizer(word)["input_ids"]) == 1


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    write(tmp_path / "same", size="tiny", model_type="custom_voice")
    write(tmp_path / "other", size="tiny", model_type="custom_voice", seed=1)
    assert digests(tmp_path / "same") == digests(tiny.checkpoint("custom_voice"))
    differing = {
        name for name, digest in digests(tmp_path / "other").items() if digests(tmp_path / "same")[name] != digest
    }
    assert differing == {"model.safetensors", "speech_tokenizer/model.safetensors"}


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(SettingsError, match="empty folder"):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_unknown_sizes_and_types_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown size '3B'; known are tiny, tiny-0.6B, 0.6B, 1.7B"):
        write(tmp_path / "a", size="3B")
    with pytest.raises(SettingsError, match="unknown type 'dialogue'; known are custom_voice, voice_design, base"):
        write(tmp_path / "b", model_type="dialogue")  # pyrefly: ignore[bad-argument-type]
    assert not list(tmp_path.iterdir())


def test_one_voice_has_a_vector_alone_and_one_also_a_clip(tmp_path: Path) -> None:
    clone = SyntheticClone.synthetic(64, 2_048)
    add_clones(tmp_path, clone)
    library = VoiceLibrary(tmp_path, 2)
    vector, icl = library.get(XVECTOR), library.get(ICL)
    assert (vector.vector_sizes, vector.frames, vector.transcript) == ((64,), 0, None)
    assert (icl.vector_sizes, icl.frames, icl.transcript) == ((64,), CLIP_FRAMES, clone.transcript)
    arrays = library.arrays(ICL)
    assert np.array_equal(arrays["codes"], clone.codes)
    assert np.array_equal(arrays["vector_64"], clone.vector)


def test_a_clone_is_deterministic_and_within_its_codec() -> None:
    one, other = SyntheticClone.synthetic(8, 5), SyntheticClone.synthetic(8, 5)
    assert np.array_equal(one.vector, other.vector)
    assert np.array_equal(one.codes, other.codes)
    assert (one.codes.min(), one.codes.max()) == (0, 4)
