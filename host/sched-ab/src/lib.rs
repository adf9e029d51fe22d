// SPDX-License-Identifier: GPL-2.0

//! Builds a kernel with the series, boots it, and compares its features off and on.

pub mod ab;
pub mod apt;
pub mod base;
pub mod check;
pub mod clean;
pub mod compare;
pub mod dmesg;
pub mod doctor;
pub mod exec;
pub mod guest;
pub mod initramfs;
pub mod kbuild;
pub mod lab;
pub mod offtest;
pub mod paths;
pub mod picture;
pub mod progress;
pub mod report;
pub mod selftest;
pub mod series;
mod sim;
mod spread;
pub mod stats;
pub mod test;
pub mod toolchain;
pub mod workload;
