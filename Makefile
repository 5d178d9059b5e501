# Works from a clean clone: each target installs what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SECONDS ?= 30
PYTHON2 ?= python2.7
# Test processes: one more than there are cores, because some tests wait for processes of their own.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint configs/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve serve-qwen agent test check format fault fuzz atheris autobahn load soak slow bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(VENV)/base ## run a node on http://127.0.0.1:8100 (settings: ARGS="--port 8200 ...")
	$(BIN)/agent-tts serve $(ARGS)

serve-qwen: $(VENV)/qwen ## the same with Qwen3-TTS on this machine's GPU; downloads the models of configs/gpu.yaml once
	$(BIN)/agent-tts serve --config gpu $(ARGS)

agent: $(VENV)/agent ## a node for spoken conversations: Whisper (downloaded once), any LLM server, the page's Talk view
	$(BIN)/agent-tts agent $(ARGS)

test: check ## checks, then all tests (ARGS="-k words" selects some)
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

check: $(VENV)/dev ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy pipelines

format: $(VENV)/dev ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fault: $(VENV)/dev ## tests of faults: killed engines, lost connections, slow clients
	$(BIN)/python -m pytest tests/fault $(ARGS)

fuzz: $(VENV)/dev ## property tests with 20 times the examples
	TEST_FACTOR=20 $(BIN)/python -m pytest --timeout 1800 tests/fuzz tests/serve/test_openapi.py \
		tests/serve/test_protocol.py tests/engine/test_scheduler.py $(ARGS)

atheris: $(VENV)/fuzz ## coverage-guided fuzzing (SECONDS=30 for each parser); findings are in build/fuzz
	for target in protocol speech_request multipart sdp wire text talk; do \
		$(BIN)/python -m tests.fuzz.atheris_run $$target -max_total_time=$(SECONDS) || exit 1; \
	done

slow: $(VENV)/dev ## the model against its reference at the released sizes: 8 GB of memory, some minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

autobahn: $(VENV)/dev ## Autobahn|Testsuite against the WebSocket stack, once per release (PYTHON2=python2.7)
	$(BIN)/python -m tests.autobahn.run $(PYTHON2)

load: $(VENV)/base ## load test against the promised figures (ARGS="--minutes 30 --engine tone")
	$(BIN)/agent-tts bench load $(ARGS)

soak: $(VENV)/base ## leak test: 5000 short contexts, vanishing clients, an engine killed every minute (ARGS="--contexts 50000")
	$(BIN)/agent-tts bench soak $(ARGS)

bench: $(VENV)/dev ## the README's figures
	$(BIN)/agent-tts bench serve --engine espeak $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/base: pyproject.toml configs/constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/qwen: pyproject.toml configs/constraints.txt | $(BIN)/python
	$(PIP) --editable '.[qwen]'
	@touch $@ $(VENV)/base

$(VENV)/agent: pyproject.toml configs/constraints.txt | $(BIN)/python
	$(PIP) --editable '.[agent]'
	@touch $@ $(VENV)/base

$(VENV)/fuzz: pyproject.toml configs/constraints.txt $(VENV)/dev
	$(PIP) --editable '.[fuzz]'
	@touch $@

$(VENV)/dev: pyproject.toml configs/constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps qwen-tts==0.1.1  # the reference for the model's tests; see pyproject.toml
	@touch $@ $(VENV)/base
