"""The models that find turns: loaded once for all calls."""

from __future__ import annotations

from threading import Lock
from typing import Any

import onnxruntime
from onnxruntime import InferenceSession

_loaded: dict[tuple[object, ...], Any] = {}
_loading = Lock()


def share_models() -> None:
    """Have whoever loads a model's file with onnxruntime get the session that another call has loaded.

    Pipecat loads two for each call, 21 MB. A session computes for any number of threads, and keeps no state of theirs.
    """
    onnxruntime.InferenceSession = _shared


def _shared(model: Any, sess_options: Any = None, providers: Any = None, **more: Any) -> Any:
    if not isinstance(model, str) or more:
        return InferenceSession(model, sess_options, providers, **more)
    threads = getattr(sess_options, "intra_op_num_threads", None)
    with _loading:
        key = model, threads, tuple(providers or ())
        if key not in _loaded:
            _loaded[key] = InferenceSession(model, sess_options, providers)
        return _loaded[key]
