"""Qwen3-TTS in torch: the talker, the code predictor and the codec; a batch row is a slot."""
