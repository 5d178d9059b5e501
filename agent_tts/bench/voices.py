"""Made-up voices for the types of checkpoint that have none: nobody's, but they cost what a person's do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent_tts.voices.library import CODEBOOKS, Consent, StoredVoice, VoiceLibrary

XVECTOR, ICL = "xvector", "icl"  # a speaker's vector alone; with a clip that is spoken on from
CLIP_FRAMES = 38  # 3 s
TRANSCRIPT = "This is how I sound when I speak at my own pace."
INSTRUCTIONS = "A calm woman in her forties with a low, warm voice, who speaks slowly and clearly."


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticClone:
    """What a cloned voice is made of."""

    vector: NDArray[np.float32]  # [H]
    codes: NDArray[np.int64]  # [CLIP_FRAMES, 16]
    transcript: str = TRANSCRIPT

    @classmethod
    def synthetic(cls, hidden_size: int, codebook_size: int) -> SyntheticClone:
        """The same at every call, for a model of this hidden size and a codec of this many codes."""
        draw = np.random.default_rng(0)
        vector = draw.standard_normal(hidden_size).astype(np.float32)
        return cls(vector, draw.integers(codebook_size, size=(CLIP_FRAMES, CODEBOOKS)))


def add_clones(folder: Path, clone: SyntheticClone) -> None:
    """A library of two voices, `XVECTOR` and `ICL`, in a folder."""
    library = VoiceLibrary(folder, limit=2)
    consent = Consent("made up of random numbers")
    vector = {f"vector_{len(clone.vector)}": clone.vector}
    library.add(StoredVoice(name=XVECTOR, kind="cloned", consent=consent), vector)
    voice = StoredVoice(name=ICL, kind="cloned", consent=consent, transcript=clone.transcript)
    library.add(voice, vector | {"codes": clone.codes.astype(np.int16)})
