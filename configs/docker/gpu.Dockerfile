# syntax=docker/dockerfile:1
# A node with the neural engine on NVIDIA GPUs, for a host with its container toolkit:
# docker build --file configs/docker/gpu.Dockerfile --tag agent-tts:gpu . && docker run --gpus all ...
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG EXTRAS=otel,qwen
WORKDIR /src
RUN python -m venv --without-pip /opt/agent-tts
COPY pyproject.toml README.md LICENSE ./
COPY agent_tts agent_tts
COPY configs configs
COPY pipelines pipelines
COPY web web
RUN pip --python /opt/agent-tts/bin/python install --no-cache-dir --disable-pip-version-check \
    --constraint configs/constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}-slim-bookworm
LABEL org.opencontainers.image.title="agent-tts" \
      org.opencontainers.image.description="The speech node for voice agents: LLM text in, speech out." \
      org.opencontainers.image.licenses="Apache-2.0"
# Triton builds the launchers of its kernels when a GPU is first seen, hence a compiler. Its version is not pinned, or
# the image could not be built any more after Debian's next security update.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --user-group --no-log-init --create-home --home-dir /var/lib/agent-tts agent-tts
COPY --from=build /opt/agent-tts /opt/agent-tts
# Everything that is written goes to the volume, so the rest of the image may be read-only.
ENV PATH=/opt/agent-tts/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/agent-tts \
    XDG_DATA_HOME=/var/lib/agent-tts \
    HF_HOME=/var/lib/agent-tts/models \
    TRITON_CACHE_DIR=/var/lib/agent-tts/kernels \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    AGENT_TTS_HOST=0.0.0.0 \
    AGENT_TTS_PORT=8100 \
    AGENT_TTS_LOG_FORMAT=json
WORKDIR /var/lib/agent-tts
USER 10001:10001
# GPUs whose kernels are in the image, like sm_89,sm_90; without one each volume gets them at a first start.
ARG ARCH
RUN [ -z "${ARCH}" ] || AGENT_TTS_HOST=127.0.0.1 agent-tts compile --arch "${ARCH}" --size 1.7B,0.6B --config gpu
VOLUME /var/lib/agent-tts
EXPOSE 8100/tcp
# The node drains on it: stop with more patience than timeouts.drain_s, docker stop --time 40.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=600s --retries=3 CMD ["agent-tts", "health"]
# A node has compiled what its flags ask for before it answers: with all kernels there, that takes seconds.
ENTRYPOINT ["sh", "-c", "if [ \"$1\" = serve ]; then (shift; exec agent-tts compile \"$@\") & \
trap 'kill $!; exit 143' TERM INT; wait $!; trap - TERM INT; fi; exec agent-tts \"$@\"", "agent-tts"]
CMD ["serve", "--config", "gpu"]
