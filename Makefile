# Two commands to know: `make demo` shows Sapwood at work, `make test` is all that CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
# The directory of cargo's builds. Packages, wheels and the files of a release are in target/ always.
BUILT = $(or $(CARGO_TARGET_DIR),target)
.PHONY: all check portable demo rules test test-programs foreign-images foreign-rescue mutants db-kill kill-mounts streams matrices cuts disasters crash faults scale bench ablation fuzz lint msrv miri package install install-lib lib deb rpm static wheel test-packages docs release repairs test-ceph help

all:
	cargo build --release -p sapwood-cli

help:
	@echo "make demo   make an image, work in it, pull the plug, recover"
	@echo "make test   all tests, and the rules of \`make lint\` that need no build"
	@echo "make check  formatting, clippy and unit tests of the crates that you changed (BASE=main: also in commits)"
	@echo "make test-programs   the long tests with real programs"
	@echo "make foreign-images   sapwood check compared with the tools' checks on the test images of e2fsprogs and btrfs-progs"
	@echo "make foreign-rescue   rescue, check --repair and undo on these images, and on cut and overwritten forms of them"
	@echo "make mutants  images with wrong bytes and right checksums: sapwood check compared with the tools' checks (MUTANTS=1500, SEED=1)"
	@echo "make db-kill   databases in the mount, the daemon killed 200 times (ROUNDS=20: 20 times)"
	@echo "make kill-mounts   SQLite in the mount, the daemon killed or told to end 1000 times (ROUNDS=20)"
	@echo "make test-ceph  a Ceph cluster on this machine, images on it, and faults (PARTS='faults clones')"
	@echo "make disasters  damaged images: files recovered by Sapwood and by the tools"
	@echo "make matrices   every variant of both formats, filled by the kernel and by us, read and filled on by the other"
	@echo "make cuts     power cuts at every write of a transaction and of a resize"
	@echo "make repairs  damaged images, repaired by Sapwood and by the tools, and undone (MUTANTS=2000, SEED=1)"
	@echo "make streams  chains of snapshots and ext4 images, to the kernel and from it (CHAINS=20)"
	@echo "make crash  checks every power cut of very many workloads, per engine (CRASH_SECONDS=1500)"
	@echo "make faults plants faults one at a time and shows that the tests find each (ONLY='7 20-29 block', SECONDS=600)"
	@echo "make scale  very many names, extents, snapshots: time and memory"
	@echo "make bench  everything, compared with the kernel (BENCH_ARGS='--help' lists the choices); report in bench/results/"
	@echo "make ablation  each mechanism on and off (ONLY='overlap spread', BENCH_ARGS='--rounds 3')"
	@echo "make fuzz   fuzz targets, all at once for two minutes (SECONDS=600: ten)"
	@echo "make lint   formatting, the order of crates and modules, patches, clippy, planted faults, documentation"
	@echo "make portable  the build for systems other than Linux, on Linux, and all offline tests on it"
	@echo "make msrv   builds with the oldest Rust that Cargo.toml allows"
	@echo "make miri   unit tests of the crates without system calls under Miri"
	@echo "make package  the crates as they would be published"
	@echo "make        build target/release/sapwood"
	@echo "make lib    build the C library: target/release/capi"
	@echo "make deb, make rpm   packages with the command, the C library and debug symbols: target/packages"
	@echo "make static   static programs for x86_64 and aarch64: target/static (ARCHITECTURES=x86_64)"
	@echo "make wheel   build the package for Python with maturin: target/wheels"
	@echo "make docs   the site, with mdbook: target/site/html"
	@echo "make release  the files of a release and their checksums, in target/release-files; publishes nothing"
	@echo "make test-packages   use packages, static program and wheel in fresh roots of Debian"

need-build:
	@scripts/need cargo:cargo cc:build-essential

need-test: need-build
	@scripts/need mkfs.btrfs:btrfs-progs mke2fs:e2fsprogs debugfs:e2fsprogs tune2fs:e2fsprogs fusermount3:fuse3 losetup:mount sfdisk:fdisk qemu-nbd:qemu-utils nbdkit:nbdkit strace:strace cpio:cpio setfattr:attr setfacl:acl zstd:zstd sqlite3:sqlite3 rsync:rsync git:git tar:tar dpkg-deb:dpkg

demo: need-build
	@scripts/need fusermount3:fuse3
	cargo build --release -p sapwood-cli
	$(BUILT)/release/sapwood demo
	@echo
	$(BUILT)/release/sapwood demo --type ext4

check: BASE = HEAD
check: need-build
	scripts/check $(BASE)

# The rules that need no build of the workspace. `make test` has them, too.
rules: need-build
	@scripts/need rsync:rsync patch:patch
	cargo fmt --all --check
	scripts/layers
	scripts/ablation --check
	scripts/patched --check faults/*.patch
	scripts/header --check
	scripts/deny

lint: rules
	cargo clippy --workspace --all-targets --features sapwood-fuzz/targets -- -D warnings
	scripts/faults --check
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps --workspace --exclude sapwood-cli --exclude sapwood-tests --exclude sapwood-crash --exclude sapwood-bench --exclude sapwood-layers --all-features

# An error of a build appears before any test runs.
test: need-test rules
	scripts/test-programs
	scripts/run-tests --build
	scripts/fuzz 0
	scripts/run-tests 2>&1 | scripts/total

fuzz: SECONDS = 120
fuzz: need-build
	scripts/fuzz $(SECONDS)

# Long: fsx, pjdfstest, git, cargo, SQLite, dpkg, tar and rsync in the mount.
test-programs: need-test
	scripts/test-programs
	cargo build --release -p sapwood-cli
	SAPWOOD_FULL=1 SAPWOOD_BIN=$(abspath $(BUILT))/release/sapwood \
		cargo test -p sapwood-tests --test suites -- '[programs]' --nocapture

# Some minutes: needs the network once, for Debian's source packages.
foreign-images: need-build
	@scripts/need e2fsck:e2fsprogs btrfs:btrfs-progs apt-get:apt xz:xz-utils bzip2:bzip2
	cargo build -p sapwood-cli
	scripts/foreign-images

# Long: about 14,000 commands.
foreign-rescue: need-build
	@scripts/need btrfs:btrfs-progs apt-get:apt xz:xz-utils bzip2:bzip2 openssl:openssl python3:python3
	cargo build -p sapwood-cli
	scripts/foreign-rescue

# A minute: `make test` has a slice of it. Prints where both differ; a miss, a panic or a check that
# does not end is a failure.
mutants: MUTANTS = 1500
mutants: SEED = 1
mutants: need-build
	@scripts/need e2fsck:e2fsprogs btrfs:btrfs-progs
	SAPWOOD_MUTANTS=$(MUTANTS) SAPWOOD_MUTANTS_SEED=$(SEED) cargo test -p sapwood-btrfs -p sapwood-ext4 --test trials -- '[mutants]' --nocapture
	SAPWOOD_FULL=1 cargo test -p sapwood-btrfs --test suite -- hostile --nocapture

# Long: SQLite and PostgreSQL commit while the daemon is killed, in ROUNDS rounds, for at most
# SECONDS for each kind of database.
db-kill: ROUNDS = 200
db-kill: SECONDS = 2400
db-kill: need-test
	@scripts/need pg_ctlcluster:postgresql
	cargo build --release -p sapwood-cli
	SAPWOOD_DB_ROUNDS=$(ROUNDS) SAPWOOD_DB_SECONDS=$(SECONDS) SAPWOOD_BIN=$(abspath $(BUILT))/release/sapwood \
		cargo test -p sapwood-tests --test suites -- '[dbkill]' --nocapture

# Long: SQLite commits on both engines while the daemon is killed, or told to end, in ROUNDS rounds,
# for at most SECONDS for each engine; a tenth as many with the image behind an NBD server.
kill-mounts: ROUNDS = 1000
kill-mounts: SECONDS = 7200
kill-mounts: need-test
	cargo build --release -p sapwood-cli
	SAPWOOD_MOUNT_ROUNDS=$(ROUNDS) SAPWOOD_MOUNT_SECONDS=$(SECONDS) SAPWOOD_BIN=$(abspath $(BUILT))/release/sapwood \
		cargo test -p sapwood-tests --test suites -- '[dbkill] kill_mounts' --nocapture

# Some minutes, as root: Ceph from Debian's packages, in namespaces of its own.
test-ceph: PARTS =
test-ceph: need-test
	@scripts/need --lean ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd rbd:ceph-common '/usr/lib/*/qemu/block-rbd.so:qemu-block-extra' qemu-nbd:qemu-utils '/usr/lib/python3/dist-packages/rbd.*:python3-rbd' '/usr/lib/*/nbdkit/plugins/nbdkit-python-plugin.so:nbdkit-plugin-python' python3:python3 /usr/lib/python3/dist-packages/boto3:python3-boto3 jq:jq ip:iproute2 fio:fio
	cargo build --release -p sapwood-cli
	scripts/test-ceph $(BUILT)/release/sapwood $(PARTS)

# Some minutes: a table of damages, with the files that Sapwood and the tools recover of each.
disasters: need-test
	cargo build --release -p sapwood-cli
	SAPWOOD_FULL=1 SAPWOOD_BIN=$(abspath $(BUILT))/release/sapwood \
		cargo test -p sapwood-tests --test suites -- '[rescue]' --test-threads 1 --nocapture

# Long: `make test` has a quarter of the variants and of the combinations of devices, and a third
# of the cases of ext4's other forms.
matrices: need-test
	cargo build -p sapwood-cli
	SAPWOOD_FULL=1 cargo test -p sapwood-tests --test suites -- matrix] --nocapture
	SAPWOOD_FULL=1 cargo test -p sapwood-tests --test suites -- '[ext4_tools]' --nocapture
	SAPWOOD_FULL=1 cargo test -p sapwood-btrfs --test trials -- '[devices_kernel]' --nocapture
	SAPWOOD_FULL=1 cargo test -p sapwood-ext4 --test trials -- '[conformance]' --nocapture

# Long: every cut of a transaction and of a resize; `make test` tries some of them.
cuts: need-test
	SAPWOOD_FULL=1 cargo test -p sapwood --test suite -- a_cut --nocapture

# Long: mutants of each format, repaired by Sapwood and by the tools. Prints a table; a lost file, or
# an undo that is not exact, is a failure. RESULTS=FILE keeps the results, to continue a run.
repairs: MUTANTS = 2000
repairs: SEED = 1
repairs: need-build
	@scripts/need e2fsck:e2fsprogs btrfs:btrfs-progs
	$(if $(RESULTS),SAPWOOD_REPAIR_RESULTS=$(abspath $(RESULTS))) \
		SAPWOOD_REPAIR_MUTANTS=$(MUTANTS) SAPWOOD_REPAIR_SEED=$(SEED) \
		cargo test -p sapwood --test suite -- no_repair_of_a_mutant --nocapture

# Long: chains of eight streams each, ours to the kernel and the kernel's to ours, and chains of
# eleven states of ext4 images.
streams: CHAINS = 100
streams: need-test
	cargo build --release -p sapwood-cli
	SAPWOOD_STREAM_CHAINS=$(CHAINS) SAPWOOD_BIN=$(abspath $(BUILT))/release/sapwood \
		cargo test -p sapwood-tests --test suites -- '[streams]' --nocapture

# Long: the complete phases (all sequences of two operations) take some minutes; random workloads
# fill the rest of the time. As root with btrfs-progs and e2fsprogs the kernel judges a share.
crash: CRASH_SECONDS = 1500
crash: need-build
	cargo build --release -p sapwood-crash
	$(BUILT)/release/sapwood-crash all --engine btrfs --seconds $(CRASH_SECONDS)
	$(BUILT)/release/sapwood-crash all --engine ext4 --seconds $(CRASH_SECONDS)
	$(BUILT)/release/sapwood-crash devices --seconds $(CRASH_SECONDS)

# Long: plants the faults of faults/ in a copy of the tree, builds its tests, and runs the test of
# each fault with it and without.
# ONLY chooses numbers, ranges or crates; after SECONDS no further test starts (0: no limit).
faults: SECONDS = 0
faults: ONLY =
faults: need-test
	@scripts/need jq:jq patch:patch
	scripts/faults --seconds $(SECONDS) $(ONLY)

# Long: time and peak memory of very many names, extents and snapshots, as tables. One test at a
# time, because they are measured.
scale: need-test
	cargo build --release -p sapwood-cli
	SAPWOOD_FULL=1 SAPWOOD_BIN=$(abspath $(BUILT))/release/sapwood \
		cargo test -p sapwood-tests --test suites -- '[scale]' --test-threads 1 --nocapture

# Long: the suite. As root peers of the kernel and fuse2fs run too.
bench: BENCH_ARGS =
bench: need-build
	@scripts/need fusermount3:fuse3 fio:fio dbench:dbench losetup:mount mkfs.btrfs:btrfs-progs mke2fs:e2fsprogs mkfs.xfs:xfsprogs fuse2fs:fuse2fs git:git tar:tar sqlite3:sqlite3
	cargo build --release -p sapwood-cli
	cargo build --release -p sapwood-bench
	mkdir -p bench/results
	$(BUILT)/release/sapwood-bench --output bench/results/suite $(BENCH_ARGS)

# Long: measures with each mechanism and without it, in a copy of the tree that has the switches.
ablation: BENCH_ARGS = --rounds 5
ablation: ONLY =
ablation: need-build
	@scripts/need fusermount3:fuse3 fio:fio dbench:dbench rsync:rsync patch:patch
	scripts/ablation $(ONLY) -- $(BENCH_ARGS)

# The code that macOS and Windows get, built and tested on Linux, in its own target directory.
portable: need-test
	scripts/portable

msrv: need-build
	scripts/msrv

miri: need-build
	scripts/miri

# The packages as for publishing, each built from its archive alone.
package: need-build
	cargo package --workspace --exclude sapwood-tests --exclude sapwood-crash --exclude sapwood-bench --exclude sapwood-testing --exclude sapwood-hostile --exclude sapwood-layers --exclude sapwood-fuzz --exclude sapwood-python
	SAPWOOD_FULL=1 cargo test -p sapwood-tests --test suites -- '[external]' --nocapture

# Links the archive that cargo builds; scripts/libsapwood gives the library its name and versions.
lib: need-build
	cargo build --release -p sapwood-capi
	scripts/libsapwood $(BUILT)/release/libsapwood_capi.a $(BUILT)/release/capi

# The site, from docs/: target/site/html. Its page of all commands needs the built command.
docs:
	scripts/site

# Everything that a release publishes, in target/release-files. Publishes nothing.
release:
	scripts/release

deb: all lib
	@scripts/need dpkg-deb:dpkg dpkg-shlibdeps:dpkg-dev objcopy:binutils
	scripts/packages deb

rpm: all lib
	@scripts/need rpmbuild:rpm objcopy:binutils
	scripts/packages rpm

static: ARCHITECTURES = x86_64 aarch64
static: need-build
	scripts/static $(ARCHITECTURES)

wheel: need-build
	@command -v maturin >/dev/null || { echo "maturin is missing: pip install maturin" >&2; exit 1; }
	rm -f target/wheels/*.whl
	cd bindings/python && maturin build --release --out $(CURDIR)/target/wheels

# Some minutes: needs root, and the network once, for the fresh roots and for pandas. Without `make
# static wheel` before it, the root without a compiler is left out.
test-packages: deb
	@scripts/need debootstrap:debootstrap unshare:util-linux
	scripts/test-packages

# Builds nothing, so that no build runs as root: `make` first.
install: BINARY = $(BUILT)/release/sapwood
# Prints man pages and completions; another one than BINARY where that is for another machine.
install: GENERATOR = $(BINARY)
install:
	@test -x $(BINARY) || { echo "$(BINARY) is missing: run 'make' first" >&2; exit 1; }
	install -Dm755 $(BINARY) $(DESTDIR)/usr/bin/sapwood
	install -Dm644 systemd/sapwood@.service $(DESTDIR)/usr/lib/systemd/system/sapwood@.service
	install -d $(DESTDIR)/usr/sbin $(DESTDIR)/usr/share/man
	$(GENERATOR) generate man $(DESTDIR)/usr/share/man
	for file in bash:bash-completion/completions/sapwood zsh:zsh/vendor-completions/_sapwood fish:fish/vendor_completions.d/sapwood.fish; do \
		target=$(DESTDIR)/usr/share/$${file#*:} && install -d $$(dirname $$target) && \
		$(GENERATOR) generate completions $${file%%:*} > $$target || exit 1; \
	done
	for name in sapwood fuse.sapwood fuseblk.sapwood; do \
		ln -sf ../bin/sapwood $(DESTDIR)/usr/sbin/mount.$$name && \
		ln -sf ../bin/sapwood $(DESTDIR)/usr/sbin/umount.$$name || exit 1; \
	done

# The C library, which `make lib` builds.
install-lib: LIBRARY = $(BUILT)/release/capi
install-lib: LIBDIR = /usr/lib
install-lib:
	@test -e $(LIBRARY)/libsapwood.so || { echo "$(LIBRARY) is missing: run 'make lib' first" >&2; exit 1; }
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)/usr/share/doc/libsapwood-dev/examples
	cp -P $(LIBRARY)/libsapwood.so $(LIBRARY)/libsapwood.so.0 $(DESTDIR)$(LIBDIR)/
	install -m644 $(LIBRARY)/libsapwood.so.*.* $(LIBRARY)/libsapwood.a $(DESTDIR)$(LIBDIR)/
	install -Dm644 $(LIBRARY)/sapwood.h $(DESTDIR)/usr/include/sapwood.h
	install -m644 crates/capi/examples/image.c crates/capi/examples/image.py $(DESTDIR)/usr/share/doc/libsapwood-dev/examples/
	sed -e 's|@PREFIX@|/usr|; s|@LIBDIR@|$(LIBDIR)|' \
		-e "s|@VERSION@|$$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = \"\(.*\)\"/\1/p' Cargo.toml)|" \
		crates/capi/libsapwood.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/libsapwood.pc
