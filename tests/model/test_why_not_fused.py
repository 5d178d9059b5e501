"""Where fused kernels run, and what is said where PyTorch's modules run instead."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model.speech import why_not_e4m3, why_not_fused

pytest.importorskip("triton", reason="without it the reason is another one")
CUDA = torch.device("cuda:0")


OLD = "fused kernels need a GPU from sm_80 on, not sm_75"
HIP = "fused kernels run on a GPU of NVIDIA, not by HIP"


@pytest.mark.parametrize(
    ("capability", "hip", "fused", "e4m3"),
    [
        ((7, 5), None, OLD, OLD),
        ((8, 0), None, None, "a GPU from sm_89 on converts such numbers, not sm_80"),
        ((8, 6), None, None, "a GPU from sm_89 on converts such numbers, not sm_86"),
        ((8, 9), None, None, None),
        ((9, 0), None, None, None),
        ((12, 0), None, None, None),
        ((9, 4), "6.2", HIP, HIP),  # an MI300: dependent launch would be asked for, as on an H100
    ],
)
def test_which_gpus_run_fused_kernels_and_convert_e4m3(
    capability: tuple[int, int], hip: str | None, fused: str | None, e4m3: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what PyTorch tells of it: NVIDIA's from Ampere on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert (why_not_fused(CUDA, torch.bfloat16), why_not_e4m3(CUDA, torch.bfloat16)) == (fused, e4m3)
    other = fused or "fused kernels compute in bfloat16, not float32"
    assert why_not_fused(CUDA, torch.float32) == why_not_e4m3(CUDA, torch.float32) == other


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_another_device_runs_none(name: str) -> None:
    assert why_not_fused(torch.device(name), torch.bfloat16) == f"fused kernels run on a GPU of NVIDIA, not on {name}"
