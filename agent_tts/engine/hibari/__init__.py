import os

# onnxruntime sends usage reports otherwise.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
