# The commands of this repository. `make demo` and `make test` install what they
# need by themselves (deploy/setup.sh), and nothing when nothing is missing.

export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin
# A missing toolchain is setup's matter, with a message.
export RUSTUP_AUTO_INSTALL := 0

# What is landed does not hang on what a random case finds: `cargo test` by itself draws other ones.
export PROPTEST_RNG_SEED ?= 7467

# Tests and the demo create network namespaces and load programs: for another
# user than root, cargo runs what it built through sudo.
ifneq ($(shell id -u),0)
ARCH := $(shell uname -m | tr a-z A-Z)
export CARGO_TARGET_$(ARCH)_UNKNOWN_LINUX_GNU_RUNNER := sudo -E
SUDO := sudo -E
endif

DEMO := guideway-demo
CARGO_BPF = sysroot=$$(deploy/setup.sh bpf-sysroot) && RUSTC_BOOTSTRAP=1 \
	RUSTC=$$sysroot/bin/rustc CARGO=$$sysroot/bin/cargo $$sysroot/bin/cargo-clippy

.PHONY: build demo check test soak upgrade lint bench report instructions judgement consistency setup cases health fmt clippy clippy-bpf unit doc kernel-matrix host frames reference man

build: setup
	cargo build --release --locked

setup:
	@deploy/setup.sh build

demo:
	@deploy/setup.sh demo
	cargo build --release --locked --package control --bin guideway --package bench --bin $(DEMO)
	$(SUDO) $${CARGO_TARGET_DIR:-target}/release/$(DEMO)

# $(call step,NAMES): runs these targets beside each other, says how long each took, stops at a failure.
define step
	@$(MAKE) --no-print-directory --jobs $(addprefix step-,$(1))
endef

step-%:
	@echo "==> $*"; begin=$$(date +%s); \
	if $(MAKE) --no-print-directory $*; then \
		echo "==> $*: passed in $$(($$(date +%s) - begin)) s"; \
	else \
		echo "==> $*: FAILED after $$(($$(date +%s) - begin)) s" >&2; exit 1; \
	fi

# $(call only,ARGUMENTS): the tests that these arguments of `cargo test` choose, which must be some.
define only
	@cargo test --locked $(1) -- --list 2>/dev/null | grep -q ': test$$' || \
		{ echo "no test is chosen by: cargo test $(1)" >&2; exit 1; }
	cargo test --locked $(1)
endef

# What is worth running before each commit. All of it is built for the whole workspace, as `make test` builds it: with a
# package's own choice of features, cargo would build dependencies and the BPF object once more.
check:
	@deploy/setup.sh test
	$(call step,fmt)
	$(call step,clippy clippy-bpf)
	$(call step,host doc)
	$(call step,cases)
	$(call step,frames)
	@echo "==> all steps passed"

# With the documentation: its links, commands, configuration files, and what of it is generated.
host:
	deploy/expedited.sh cargo test --workspace --lib --test docs --locked
	$(call only,--workspace --test chart pages::)

# The pages of the documentation that are generated.
reference:
	GUIDEWAY_WRITE_DOCS=1 cargo test --workspace --lib --test docs --locked page_of_the_documentation -- --test-threads=1

# The manual pages, into target/man.
man: setup
	cargo run --locked --package control --bin guideway -- man --dir $${CARGO_TARGET_DIR:-target}/man

frames:
	GUIDEWAY_FRAMES=1000000 cargo test --workspace --locked --test random_frames

test:
	@deploy/setup.sh test
	$(call step,fmt)
	$(call step,clippy clippy-bpf)
	$(call step,unit doc kernel-matrix)
	@echo "==> all steps passed"

lint:
	@deploy/setup.sh test
	$(call step,fmt)
	$(call step,clippy clippy-bpf)

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@# By name, those too that `cargo test` does not run by itself.
	cargo clippy --workspace --test '*' --locked -- -D warnings

# The program half exists for the BPF target only, and needs its compiler.
clippy-bpf:
	$(CARGO_BPF) clippy --locked -Zbuild-std=core --target bpfel-unknown-none \
		--target-dir target/clippy-bpf \
		--package xdp-prog --lib --bins --features bpf-object -- -D warnings

unit:
	@# All failures in one run, not the first alone.
	deploy/expedited.sh cargo test --workspace --locked --no-fail-fast

# With the examples, dependencies get the features that clippy has checked them
# with, those of tests: without, cargo would check half of them once more.
doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --lib --bins --examples

kernel-matrix:
	deploy/kernel-matrix/run.sh

# The packet cases alone, through the host functions and through the kernel.
cases: setup
	cargo test --workspace --locked --test packets --test egress

# What checks of backends and nodes come to, alone.
health: setup
	$(call only,--workspace --lib health)
	$(call only,--workspace --test e2e health)

# What takes too long for each change: floods and outages of five minutes, an hour of all pairs of changes under 2000 held
# connections, 10 000 hostile objects, and random frames and cases of seeds that are drawn, and printed. A seed that fails
# is kept, to be committed with the mend, and runs each time from then on.
soak: KEPT_SEEDS := fastpath/tests/random_frames/seeds
soak: export GUIDEWAY_ATTACK_SECONDS := 300
soak: export GUIDEWAY_OUTAGE_SECONDS := 300
soak: export GUIDEWAY_CHANGES_SECONDS := 3600
soak: export GUIDEWAY_HOSTILE_OBJECTS := 10000
soak: export GUIDEWAY_DATAGRAMS := 10000
soak: export GUIDEWAY_ORPHANS := 1000000
soak: export GUIDEWAY_TABLE_CHANGES := 100000
soak: export GUIDEWAY_LEDGER_PACKETS := 1000000
soak: export GUIDEWAY_FRAMES := 10000000
soak:
	@deploy/setup.sh test
	cargo test --workspace --locked --test attack -- --nocapture
	$(call only,--workspace --test e2e changes)
	$(call only,--workspace --test e2e shuffled_datagrams)
	$(call only,--workspace --test e2e flood_of_orphans)
	$(call only,--workspace --test kubernetes outages)
	$(call only,--workspace --test kubernetes hostile_objects)
	for seed in $$(cat $(KEPT_SEEDS)) $$(od -An -N8 -tx8 /dev/urandom); do \
		echo "GUIDEWAY_SEED=$$seed"; \
		GUIDEWAY_SEED=$$seed cargo test --workspace --locked --test random_frames --test tables -- random_frames ledger changes:: || \
			{ grep -qx "$$seed" $(KEPT_SEEDS) || echo "$$seed" >>$(KEPT_SEEDS); exit 1; }; \
	done
	seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); echo "PROPTEST_RNG_SEED=$$seed"; \
		PROPTEST_RNG_SEED=$$seed cargo test --workspace --lib --locked

# An upgrade under traffic from the program of an earlier revision, which it builds; then one from this program to a test
# layout of the tables of flows.
upgrade: FROM ?= d0e688f4
upgrade: FORMER = $${CARGO_TARGET_DIR:-target}/former
upgrade:
	@deploy/setup.sh test
	rm -rf $(FORMER)/source && mkdir -p $(FORMER)/source
	git archive $(FROM) | tar -x -C $(FORMER)/source
	cargo build --locked --manifest-path $(FORMER)/source/Cargo.toml --target-dir $(FORMER) --package control --bin guideway
	cp $(FORMER)/debug/guideway $(FORMER)/guideway
	GUIDEWAY_FORMER=$$(realpath $(FORMER)/guideway) cargo test --locked --package control --test upgrade
	cargo build --locked --package control --bin guideway
	GUIDEWAY_FORMER=$$(realpath $${CARGO_TARGET_DIR:-target}/debug/guideway) \
		cargo test --locked --package control --test upgrade --features test-layout --target-dir $(FORMER)

bench:
	@deploy/setup.sh test
	cargo bench --workspace --locked
	cargo run --release --locked --package bench --bin guideway-bench -- datapath
	cargo run --release --locked --package bench --bin guideway-bench -- datapath --engine afxdp
	cargo run --release --locked --package bench --bin guideway-bench -- datapath --engine mend
	cargo build --release --locked --package control --bin guideway
	cargo run --release --locked --package bench --bin guideway-bench -- control
	cargo run --release --locked --package bench --bin guideway-bench -- consistency

# All systems side by side on this machine: a page in target/report, which a browser looks at, and the table of
# bench/README.md.
report: RESULT = $${CARGO_TARGET_DIR:-target}/report
report: BENCH = $${CARGO_TARGET_DIR:-target}/release/guideway-bench
report:
	@deploy/setup.sh test
	cargo build --release --locked --package control --bin guideway --package bench --bin guideway-bench
	$(SUDO) rm -rf $(RESULT) && mkdir -p $(RESULT)
	$(SUDO) $(BENCH) run bench/report.yaml --out $(RESULT)/result
	$(BENCH) report $(RESULT)/result --html $(RESULT)/report.html --markdown bench/README.md
	$(BENCH) verify $(RESULT)/report.html
	@# A browser looks at it as on screens, phones and paper: quiet, without requests, and of at most 2 MB.
	GUIDEWAY_PAGE=$$(realpath $(RESULT)/report.html) cargo test --workspace --lib --locked the_page_is_quiet

# Instructions of a packet on each way of ours, and at other load balancers, counted by an emulated machine: they repeat
# where times do not. kube-proxy's rules are taken from one that runs, for each number of SERVICES, and kept. The
# balancers are counted in several boots, which must agree.
instructions: SERVICES ?= 1 1000
instructions: BENCH = $${CARGO_TARGET_DIR:-target}/release/guideway-bench
instructions: COUNT = GUIDEWAY_MATRIX_ICOUNT=1 GUIDEWAY_MATRIX_FILES=$(RULES) deploy/kernel-matrix/run.sh $(BENCH)
instructions: RULES = $${CARGO_TARGET_DIR:-target}/kube-proxy-rules
instructions: ROWS = $${CARGO_TARGET_DIR:-target}/balancers.jsonl
instructions:
	@deploy/setup.sh test
	cargo build --release --locked --package bench --bin guideway-bench
	$(SUDO) $(BENCH) instructions rules $(RULES) $(SERVICES)
	GUIDEWAY_MATRIX_ARGUMENTS="instructions ways --json" $(COUNT) >$(ROWS).log || { cat $(ROWS).log; exit 1; }
	grep '^{"way"' $(ROWS).log >bench/instructions.jsonl
	rm -f $(ROWS)
	for boot in 1 2 3; do \
		GUIDEWAY_MATRIX_ARGUMENTS="instructions balancers /files" $(COUNT) \
			>$(ROWS).log || { cat $(ROWS).log; exit 1; }; \
		grep '^{"balancer"' $(ROWS).log >>$(ROWS) || exit; \
	done
	cp $(ROWS) bench/balancers.jsonl
	$(MAKE) reference

# Whether comparisons tell what is not the same, and nothing else: in time on this machine, by instructions on the emulated
# one, in several boots, which must agree.
judgement: BENCH = $${CARGO_TARGET_DIR:-target}/release/guideway-bench
judgement: FRAMES = $${CARGO_TARGET_DIR:-target}/judgement
judgement:
	@deploy/setup.sh test
	cargo build --release --locked --package control --bin guideway --package bench --bin guideway-bench
	$(SUDO) $(BENCH) judgement
	rm -f $(FRAMES)
	for boot in 1 2 3; do \
		GUIDEWAY_MATRIX_ICOUNT=1 GUIDEWAY_MATRIX_ARGUMENTS="instructions judgement" deploy/kernel-matrix/run.sh $(BENCH) \
			>$(FRAMES).log || { cat $(FRAMES).log; exit 1; }; \
		grep -E '^(A/A|A frame|[0-9]+ passed)' $(FRAMES).log; \
		sed -n 's/^A frame takes \([0-9.]*\) instructions.*/\1/p' $(FRAMES).log >>$(FRAMES); \
	done
	sort -n $(FRAMES) | awk '{ count[NR] = $$1 } END { share = (count[3] - count[1]) / count[2]; \
		printf "three boots differ by %.2f %% (bar: 0.5 %%)\n", 100 * share; exit !(NR == 3 && share <= 0.005) }'

# The simulated policies of bench/README.md: the scenario of the bar, fewer changes, tables of other lengths, and edges
# that lack a past. The same seed gives the same rows.
consistency: ROWS = $${CARGO_TARGET_DIR:-target}/consistency.jsonl
consistency: setup
	cargo build --release --locked --package bench --bin guideway-bench
	rm -f $(ROWS)
	for scenario in "--edges 64" "--roll-minutes 0" "--roll-minutes 0 --scale-minutes 60" "--coalescing 1 --reboots 24"; do \
		$${CARGO_TARGET_DIR:-target}/release/guideway-bench consistency $$scenario --json >>$(ROWS) || exit; \
	done
	cp $(ROWS) bench/consistency.jsonl
	$(MAKE) reference
