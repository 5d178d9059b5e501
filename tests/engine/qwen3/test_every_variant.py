"""The kernels compile for all GPUs of the table, and fit them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="it is what compiles")
if sys.platform != "linux":
    pytest.skip("kernels are compiled ahead on Linux", allow_module_level=True)

from triton.runtime.errors import OutOfResources

from agent_tts.model.kernels.architectures import ARCHITECTURES
from agent_tts.model.kernels.launch import launch


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.timeout(3_600)  # for the day on which every kernel has changed
@pytest.mark.parametrize("architectures", [["sm_90"], [*ARCHITECTURES]])
def test_every_variant_of_all_kernels_compiles_for_the_gpus_and_fits_them(architectures: list[str]) -> None:
    """Of the tiles of an H200 some take 147 456 bytes of shared memory; an RTX 4090 has 101 376."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.engine.qwen3.every_variant", "--no-record", *architectures]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3_500)
    assert done.returncode == 0, done.stdout + done.stderr
    variants = {name: int(count) for name, count in re.findall(r"(\w+): (\d+) variants", done.stdout)}
    assert [*variants] == architectures
    assert min(variants.values()) > 300


class TooLarge:
    """A kernel that fits a GPU with a few stages alone, as triton refuses it at a launch."""

    __name__ = "too_large"

    def __init__(self, most: int) -> None:
        self.most = most
        self.launched: list[int] = []

    def __getitem__(self, grid: object) -> TooLarge:
        return self

    def __call__(self, *, STAGES: int) -> None:
        if self.most < STAGES:
            raise OutOfResources(49_152 * STAGES, 101_376, "shared memory")
        self.launched.append(STAGES)


def test_a_launch_that_does_not_fit_takes_fewer_stages() -> None:
    kernel = TooLarge(most=2)
    launch(kernel, (1,), STAGES=4)
    assert kernel.launched == [2]


def test_a_launch_that_fits_with_no_stages_names_its_kernel() -> None:
    with pytest.raises(RuntimeError, match=r"the kernel too_large does not fit this GPU.*101376"):
        launch(TooLarge(most=0), (1,), STAGES=4)
