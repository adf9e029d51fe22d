// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use sched_ab::{base, paths::Paths};

/// Builds a kernel with the series, boots it, and compares its features off and on.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Args)]
struct Common {
    /// A kernel tree or tarball to use instead of the base kernel; it is copied.
    #[arg(long, env, global = true)]
    kernel_src: Option<PathBuf>,
    /// How many jobs the kernel build runs; all CPUs by default.
    #[arg(long, env, global = true)]
    jobs: Option<usize>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Fetches the base kernel and prints where it is.
    Base,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            // The usage text would bury the cause.
            let text = error.to_string();
            eprintln!("sched-ab: {}", text.lines().next().unwrap_or_default());
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sched-ab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let paths = Paths::discover()?;
    let kernel_src = cli.common.kernel_src.as_deref();
    match cli.command {
        Cmd::Base => println!("{}", base::ensure(&paths, kernel_src)?.dir.display()),
    }
    Ok(())
}
