"""The watermark against AudioSeal's own models, with random weights: those of the release are not needed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("audioseal", reason="the reference: pip install 'agent-tts[watermark]'")

from agent_tts.model.codec import CodecState
from agent_tts.model.entries import CheckpointError
from agent_tts.model.watermark import DETECTOR, GENERATOR, Watermark, load_detector, load_watermark
from tests.model import audioseal_files
from tests.model.audioseal_files import DIMENSION, FILTERS, RATIOS, watermark_of

SAMPLES, MESSAGE = 1_920, 0b1011_0011_1000_1101


def ours(generator: Any) -> Watermark:
    """A watermark with the weights of the library's generator."""
    watermark = Watermark(FILTERS, RATIOS, DIMENSION).eval().requires_grad_(False)
    for mine, theirs in zip(watermark.parameters(), generator.parameters(), strict=True):
        mine.copy_(theirs)
    watermark.message = MESSAGE
    return watermark


def whole(generator: Any, sound: Tensor) -> Tensor:
    return watermark_of(generator, sound, MESSAGE)


def noise(rows: int, frames: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, SAMPLES * frames, generator=torch.Generator().manual_seed(seed)) * 0.1


def frames_of(sound: Tensor) -> tuple[Tensor, ...]:
    return torch.split(sound, SAMPLES, dim=1)


def everyone(rows: int) -> Tensor:
    return torch.ones(rows, dtype=torch.bool)


def state_of(watermark: Watermark, rows: int) -> CodecState:
    """A state whose rings are full of large numbers, which must not affect the output."""
    state = watermark.init_state(rows, "cpu", torch.float32)
    for ring in state.histories:
        ring.fill_(1e4)
    return state


def streamed(watermark: Watermark, sound: Tensor) -> Tensor:
    """The watermark of streams, frame by frame."""
    rows = len(sound)
    state = state_of(watermark, rows)
    return torch.cat([watermark.step(state, frame, everyone(rows)) for frame in frames_of(sound)], dim=1)


def assert_near(found: Tensor, wanted: Tensor, parity: float = 1e-4) -> None:
    assert (found - wanted).norm() <= parity * wanted.norm()


def test_frame_by_frame_it_is_the_librarys_watermark_of_the_whole_stream() -> None:
    generator = audioseal_files.generator()
    sound = noise(2, 4)
    assert_near(streamed(ours(generator), sound), whole(generator, sound))


def test_it_is_the_librarys_streaming_where_that_keeps_its_past() -> None:
    """The library's `streaming` does not reach its layers, which stand in an nn.Sequential: each is started here."""
    generator, sound = audioseal_files.generator(), noise(1, 3)
    found = streamed(ours(generator), sound)
    for layer in generator.modules():
        if hasattr(layer, "_start_streaming"):
            layer.set_streaming_propagate(False)
            layer.streaming_forever(1)
    assert_near(found, torch.cat([whole(generator, frame) for frame in frames_of(sound)], dim=1))


def test_rows_begin_pause_and_are_batched_in_any_order() -> None:
    generator = audioseal_files.generator()
    watermark, sound = ours(generator), noise(3, 4)
    wanted, state, heard = whole(generator, sound), state_of(watermark, 4), [0, 0, 0]
    for number, rows in enumerate([(2, 0, 3, 3), (1, 2, 3), (2, 1), (0, 2), (1, 0), (3, 0, 1)]):
        run = torch.tensor([row != 3 for row in rows])
        batch = [noise(1, 1)[0] if row == 3 else frames_of(sound)[heard[row]][row] for row in rows]
        found = watermark.step(state, torch.stack(batch), run, torch.tensor(rows))
        for row, mark in zip(rows, found, strict=True):
            if row == 3:
                assert not mark.any()
            else:
                assert_near(mark, wanted[row, SAMPLES * heard[row] :][:SAMPLES])
                heard[row] += 1
        if number == 3:  # a new stream in the row
            state.reset(torch.tensor([2]))
    assert state.position.tolist() == [4, 4, 0, 0]


def test_the_message_changes_the_watermark() -> None:
    watermark, sound = ours(audioseal_files.generator()), noise(1, 1)
    marks = []
    for watermark.message in (0, 1, 1 << 15, 0xFFFF):
        marks.append(streamed(watermark, sound))
    assert all(not torch.equal(one, other) for at, one in enumerate(marks) for other in marks[:at])


@pytest.mark.slow
def test_the_kernels_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by triton's interpreter, in float32, in frames of a twentieth of the samples."""
    pytest.importorskip("triton", reason="comes with torch for CUDA")
    from agent_tts.model import codec_fast, watermark
    from agent_tts.model.kernels import tiles

    samples, ratios = SAMPLES // 20, (4, 4)  # as many steps in the middle
    for module in (watermark, codec_fast):
        monkeypatch.setattr(module, "FRAME_SAMPLES", samples)
    # The tiles of a large batch: the interpreter runs one program after the other.
    monkeypatch.setattr(codec_fast, "_UNITS", 128)
    tile = tiles.codec_tile
    monkeypatch.setattr(tiles, "codec_tile", lambda _, *shape: tile(1 << 20, *shape))
    torch.manual_seed(0)
    plain = Watermark(32, ratios, DIMENSION).eval().requires_grad_(False)
    fast = codec_fast.FastWatermark(plain)
    wanted, found, rows = state_of(plain, 3), state_of(plain, 3), torch.tensor([2, 0])
    before, frame = torch.split(noise(2, 1)[:, : 2 * samples], samples, dim=1)
    for state in (wanted, found):
        plain.step(state, before, everyone(2), rows)
    run = torch.tensor([True, False])
    assert_near(fast.step(found, frame, run, rows), plain.step(wanted, frame, run, rows), 1e-5)
    assert torch.equal(found.position, wanted.position)


# ---------------------------------------------------------------- files


def test_released_files_are_read_whole(tmp_path: Path) -> None:
    """Their convolutions have a weight norm, and stand beside a configuration."""
    folder, sound = audioseal_files.write(tmp_path), noise(1, 2)
    found = streamed(load_watermark(folder, MESSAGE), sound)
    assert_near(found, whole(audioseal_files.generator(), sound))
    with torch.inference_mode():
        scores, bits = audioseal_files.detector()(sound[:, None, :3_000])
        ours = load_detector(folder)(sound[:, None, :3_000])
    assert_near(ours[:, :2].softmax(1), scores)
    assert_near(ours[:, 2:].mean(-1).sigmoid(), bits)


def test_a_long_clip_is_detected_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector, sound = load_detector(audioseal_files.write(tmp_path)), noise(1, 4)[0, :-100]
    library = audioseal_files.detector()
    monkeypatch.setattr("agent_tts.model.watermark.PIECE", 4_000)
    marked, message = detector.detect(sound)
    with torch.inference_mode():
        found = [library(piece[None, None])[0][0, 1] > 0.5 for piece in torch.split(sound, 4_000)]
    assert marked == pytest.approx(torch.cat(found).float().mean().item())
    assert 0 <= message < 1 << 16


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no weights", "cannot be read"),
        ({"model": {"encoder.model.0.conv.conv.weight": torch.zeros(8, 1, 7)}}, "not the weights of AudioSeal"),
        (None, "missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: Any, said: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / GENERATOR).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / GENERATOR)
    with pytest.raises(CheckpointError, match=said):
        load_watermark(tmp_path)


class Runs:
    """Pickled, it runs code."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


def test_a_file_cannot_run_code(tmp_path: Path) -> None:
    torch.save({"model": Runs(tmp_path / "ran")}, tmp_path / DETECTOR)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_detector(tmp_path)
    assert not (tmp_path / "ran").exists()
