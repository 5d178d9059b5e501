"""Generated voices are valid voices of the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agent_tts.bench.checkpoint import CLIP_FRAMES, ICL, XVECTOR, SyntheticClone, add_clones
from agent_tts.voices.library import VoiceLibrary


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
