"""Triton kernels of the frame step, each beside the torch operations that it equals; only a GPU ever imports them."""
