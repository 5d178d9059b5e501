"""`agent-tts bench frame` checks its requirements before it measures."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from agent_tts.cli.app import app


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "--synthetic 1.7B and --model FOLDER are two ways"),
        (["--synthetic", "1.7B", "--model", "somewhere"], "--synthetic 1.7B and --model FOLDER are two ways"),
        (["--synthetic", "7B"], "unknown size '7B'; known are tiny"),
        (
            ["--synthetic", "1.7B", "--fp8", "both,nothing"],
            "must be of nothing,cache,weights,both, in this order",
        ),
        (["--synthetic", "1.7B", "--fp8", "weights", "--no-fused"], "--fp8 is for fused kernels alone"),
        (["--synthetic", "1.7B", "--batches", "0"], "--batches 0: must be whole numbers from 1"),
    ],
)
def test_invalid_options_are_refused(options: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, ["bench", "frame", *options])
    assert done.exit_code != 0
    assert complaint in " ".join(done.output.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_reported() -> None:
    done = CliRunner().invoke(app, ["bench", "frame", "--synthetic", "tiny"])
    assert done.exit_code != 0
    assert "torch finds none here" in " ".join(done.output.split())
