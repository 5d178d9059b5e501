"""Where fused kernels run, and what is said where PyTorch's modules run instead."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model.speech import why_not_e4m3, why_not_fused

pytest.importorskip("triton", reason="without it the reason is another one")
CUDA = torch.device("cuda:0")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What PyTorch tells of the device."""
    capability, hip = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)


@pytest.mark.parametrize("gpu", [((8, 0), None), ((8, 9), None), ((9, 0), None), ((12, 0), None)], indirect=True)
def test_kernels_run_on_gpus_of_nvidia_from_ampere_on(gpu: None) -> None:
    assert why_not_fused(CUDA, torch.bfloat16) is None
    assert why_not_fused(CUDA, torch.float32) == "fused kernels compute in bfloat16, not float32"


@pytest.mark.parametrize("gpu", [((9, 4), "6.2")], indirect=True)
def test_a_gpu_of_amd_is_no_gpu_of_nvidia_with_its_capability(gpu: None) -> None:
    """An MI300 has the capability 9.4: dependent launch would be asked for, as on an H100."""
    assert why_not_fused(CUDA, torch.bfloat16) == "fused kernels run on a GPU of NVIDIA, not by HIP"


@pytest.mark.parametrize("gpu", [((7, 5), None)], indirect=True)
def test_an_older_gpu(gpu: None) -> None:
    assert why_not_fused(CUDA, torch.bfloat16) == "fused kernels need a GPU from sm_80 on, not sm_75"


@pytest.mark.parametrize("gpu", [((8, 6), None)], indirect=True)
def test_weights_in_e4m3_need_a_newer_gpu(gpu: None) -> None:
    said = "a GPU from sm_89 on converts such numbers, not sm_86"
    assert (why_not_fused(CUDA, torch.bfloat16), why_not_e4m3(CUDA, torch.bfloat16)) == (None, said)


@pytest.mark.parametrize("gpu", [((8, 9), None), ((9, 0), None)], indirect=True)
def test_weights_in_e4m3_need_what_fused_kernels_need(gpu: None) -> None:
    assert why_not_e4m3(CUDA, torch.bfloat16) is None
    assert why_not_e4m3(CUDA, torch.float32) == "fused kernels compute in bfloat16, not float32"


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_another_device(name: str) -> None:
    assert why_not_fused(torch.device(name), torch.bfloat16) == f"fused kernels run on a GPU of NVIDIA, not on {name}"
