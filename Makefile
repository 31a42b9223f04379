# Every target does its own set-up; nothing is needed but Python >= 3.11 and make.
# Variables:  PYTHON=/path/to/python3.12   the interpreter for .venv
#             KEEP=1                       make demo leaves the broker up
#             ARGS="-k journal"            more arguments for pytest or the benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
STAMPS := .cache/stamps
JARS := .cache/jars
LOCK := requirements/lock.txt
JAVA_LOCK := requirements/java.txt
ARGS ?=
KEEP ?=

# The first interpreter that is new enough and can make environments. Pass PYTHON= to choose.
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v "$$p"; break; }; done)

CODE := danube spark_source spark_sink pyspark_danube tests benchmarks scripts
CHECKED := $(patsubst %/,%,$(sort $(dir $(wildcard $(CODE:=/*.py)))))
FAST_TESTS := $(wildcard tests/unit tests/property)
SLOW_TESTS := $(wildcard tests/integration tests/crash)
PROTOS := $(wildcard proto/*.proto)
GENERATED := danube/wire/_generated

.PHONY: help
help: ## list these targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)$$/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
	| while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: venv java ## the whole path on one machine, under three minutes (KEEP=1 leaves it running)
	@KEEP=$(KEEP) $(PY) -m danube.testing.demo $(if $(filter-out 0,$(KEEP)),--keep)

.PHONY: test
test: venv java jars ## every test but the long runs
	@$(call run_tests,)

.PHONY: test-all
test-all: venv java jars ## every test with its long runs (hours)
	@$(call run_tests,--long)

# Fast tests side by side; then those with processes, a whole file to a worker; then one after
# another those with a JVM, which take all cores themselves. All three run even if one fails.
# pytest's exit code 5 (no tests) is a failure unless ARGS chose the tests.
define run_tests
failed=0; \
run() { $(PY) -m pytest --durations=15 $(1) "$$@" $(ARGS) \
	|| { [ $$? = 5 ] && $(if $(ARGS),true,false); } || failed=1; }; \
$(if $(FAST_TESTS),run -n 2 $(FAST_TESTS);) \
$(if $(SLOW_TESTS),run -n 2 --dist loadfile -m "not spark" $(SLOW_TESTS);) \
$(if $(SLOW_TESTS),run -m spark $(SLOW_TESTS);) \
exit $$failed
endef

.PHONY: lint
lint: venv ## ruff and mypy, changing nothing
	@failed=0; \
	$(PY) -m ruff check . || failed=1; \
	$(PY) -m ruff format --check . || failed=1; \
	$(PY) -m mypy $(CHECKED) || failed=1; \
	exit $$failed

.PHONY: format
format: venv ## let ruff rewrite imports and layout
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

.PHONY: bench
bench: venv java ## benchmarks; each prints a ratio to something measured in the same run
	@$(PY) -m benchmarks $(ARGS)

.PHONY: proto
proto: venv ## generate the gRPC stubs from proto/ (they are committed)
	@$(PY) scripts/generate_stubs.py

.PHONY: conf
conf: venv ## write conf/broker.toml from the typed settings (it is committed)
	@$(PY) -m scripts.write_configuration

.PHONY: jars
jars: $(JARS)/delta/.complete ## fetch the Delta jars for tests that read tables with Spark

$(JARS)/delta/.complete: danube/testing/jars.py $(STAMPS)/venv
	@$(MAKE) --no-print-directory java
	@$(PY) -m danube.testing.jars delta
	@touch $@

.PHONY: java
java: venv ## find a Java 17 or 21, or install one into .venv by pip
	@$(PY) -P danube/testing/java.py 2>/dev/null || { \
	echo "no Java 17 or 21 on this machine: installing one into $(VENV)"; \
	$(PIP) install -r $(JAVA_LOCK) && $(PY) -P danube/testing/java.py; }

.PHONY: venv
venv: $(STAMPS)/venv ## make .venv from requirements/lock.txt

# Nothing to do unless the lock or our metadata changed, the interpreter is gone (a Python that was
# upgraded) or the checkout was moved, in which case the stamp holds another path.
VENV_IS_OURS := $(shell $(PY) -c 'import pathlib; \
	print(pathlib.Path("$(STAMPS)/venv").read_text() == str(pathlib.Path.cwd()))' 2>/dev/null)
$(STAMPS)/venv: $(LOCK) setup.cfg pyproject.toml $(if $(filter True,$(VENV_IS_OURS)),,absent)
	@$(PY) -c 'import pip' 2>/dev/null || { \
	[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer with venv and ensurepip was not found;" \
	"install it, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }; \
	echo "making $(VENV) with $(PYTHON)"; \
	rm -rf $(VENV) && "$(PYTHON)" -m venv $(VENV); }
	@echo "installing what $(LOCK) pins into $(VENV) (some minutes the first time)"
	@$(PIP) install -r $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@mkdir -p $(STAMPS)
	@$(PY) -c 'import pathlib; pathlib.Path("$@").write_text(str(pathlib.Path.cwd()))'

.PHONY: absent
absent:

.PHONY: lock
lock: venv ## refresh requirements/lock.txt from the bounds in setup.cfg
	@$(PY) -m piptools compile --quiet --upgrade --allow-unsafe --strip-extras --no-header \
	--no-build-isolation --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--extra broker --extra spark --extra dev --output-file $(LOCK) setup.cfg
	@echo "wrote $(LOCK); run make test before committing it"

.PHONY: clean
clean: ## remove build products and the caches of tools
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .grimp_cache
	@rm -rf .coverage htmlcov metastore_db derby.log spark-warehouse
	@find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## and .venv, the jars and every stamp
	@rm -rf $(VENV) .cache
