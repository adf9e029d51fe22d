# SPDX-License-Identifier: GPL-2.0

.DEFAULT_GOAL := help

# Variables given on the command line reach the tool as environment.
commands := ab test test-all check tree fold series shell menuconfig doctor clean

.PHONY: help lab $(commands)

$(commands):
	@host/bootstrap $@

lab:
	@host/bootstrap run

help:
	@echo 'make ab           build, boot, and compare the features off and on'
	@echo 'make lab          the same in a simulated machine: numbers that repeat'
	@echo 'make test         what CI runs, in a guest and on the host'
	@echo 'make test-all     everything, 50 minutes more'
	@echo 'make check        static checks only, seconds'
	@echo 'make tree         compose the tree to edit it; prints where it is'
	@echo 'make fold         write edits of that tree back to this repository'
	@echo 'make series       patches and an mbox for git am, in out/series/'
	@echo 'make shell        a shell in the kernel that make ab boots'
	@echo 'make menuconfig   the options of that kernel'
	@echo 'make doctor       what is installed and what is missing'
	@echo 'make clean        remove what the cache does not need any more'
	@echo
	@echo 'FEATURES="SHARED_RUNQ"  features to compare: all off, then each combination'
	@echo 'WORKLOAD=hackbench ARGS=  what runs, and its arguments; make lab: WORKLOADS='
	@echo 'ROUNDS=5                how many times each side runs; make lab: 20'
	@echo 'TOPO=2x4x1              the guest: LLCs x cores x threads; make lab: 2x8x1'
	@echo 'JOBS=                   jobs of a build; all CPUs by default'
	@echo 'KERNEL_SRC=             a 7.3 tree or tarball to use as the base; it is copied'
	@echo 'RUSTC=                  another rustc for the kernel'
