// SPDX-License-Identifier: GPL-2.0

//! Runs the tests of the kernel's policy files on the host: they use nothing but `core`.

#[path = "../../../kernel/sched/llc/geometry.rs"]
#[forbid(unsafe_code)]
mod geometry;

#[path = "../../../kernel/sched/llc/overload.rs"]
#[forbid(unsafe_code)]
mod overload;
