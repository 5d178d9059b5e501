# syntax=docker/dockerfile:1
# A node without a GPU: docker build --file configs/docker/cpu.Dockerfile --tag agent-tts:cpu .
# EXTRAS=agent,otel,voice makes one that can be talked to as well.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG EXTRAS=otel,voice
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
RUN useradd --uid 10001 --user-group --no-log-init --create-home --home-dir /var/lib/agent-tts agent-tts
COPY --from=build /opt/agent-tts /opt/agent-tts
# Everything that is written goes to the volume, so the rest of the image may be read-only.
ENV PATH=/opt/agent-tts/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/agent-tts \
    XDG_DATA_HOME=/var/lib/agent-tts \
    HF_HOME=/var/lib/agent-tts/models \
    HIBARI_HOME=/var/lib/agent-tts/hibari \
    AGENT_TTS_HOST=0.0.0.0 \
    AGENT_TTS_PORT=8100 \
    AGENT_TTS_LOG_FORMAT=json
VOLUME /var/lib/agent-tts
WORKDIR /var/lib/agent-tts
USER 10001:10001
EXPOSE 8100/tcp
# The node drains on it: stop with more patience than timeouts.drain_s, docker stop --time 40.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["agent-tts", "health"]
ENTRYPOINT ["agent-tts"]
CMD ["serve"]
