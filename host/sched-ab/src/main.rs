// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use sched_ab::{
    ab, base, check, clean, doctor,
    kbuild::{self, Flavor},
    lab, offtest,
    paths::Paths,
    series, test,
};

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
    jobs: Option<NonZeroUsize>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Boots the release kernel and compares features off and on.
    Ab(ab::Options),
    /// Compares features in a simulated machine: the same numbers on any host.
    Run {
        #[command(flatten)]
        options: lab::Options,
        /// Go on with the run in this folder, with its options
        #[arg(long, value_name = "FOLDER")]
        resume: Option<PathBuf>,
    },
    /// Reports anew what a run in this folder has measured so far.
    Report { folder: PathBuf },
    /// Compares two runs, for example of two kernels, side by side.
    Compare {
        /// The folder of the run that is the base
        first: PathBuf,
        /// That of the other one
        second: PathBuf,
    },
    /// Gives a shell in the release kernel.
    Shell(ab::Machine),
    /// Fetches the base kernel and prints where it is.
    Base,
    /// Builds a kernel and prints where it is.
    Build { flavor: Flavor },
    /// Runs what CI runs.
    Test,
    /// Runs everything, 50 minutes more, and keeps the result with its date.
    TestAll,
    /// Runs the static checks only.
    Check,
    /// Checks that with the options not set the scheduler has the base's instructions.
    Offtest,
    /// Opens the options of the release kernel.
    Menuconfig,
    /// Says what is installed and what is missing.
    Doctor,
    /// Removes what the cache does not need any more.
    Clean,
    /// Composes out/tree, to edit the series in it.
    Tree,
    /// Writes the edits in out/tree back to this repository.
    Fold,
    /// Writes patches and an mbox for git am to out/series.
    Series {
        /// Who signs the patches off, as `Name <mail>`; nobody by default.
        #[arg(long, env)]
        signoff: Option<String>,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            // The usage text would bury the cause.
            let text = error.to_string();
            let cause = text.lines().next().unwrap_or_default();
            eprintln!("sched-ab: {}", cause.trim_start_matches("error: "));
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
    let jobs = cli.common.jobs.map(NonZeroUsize::get);
    match cli.command {
        Cmd::Ab(options) => {
            ab::run(&paths, &options, kernel_src, jobs)?;
        }
        Cmd::Run { options, resume } => {
            lab::run(&paths, &options, resume.as_deref(), kernel_src, jobs)?;
        }
        Cmd::Report { folder } => print!("{}", lab::report(&folder)?.text),
        Cmd::Compare { first, second } => print!("{}", lab::compare([&first, &second])?),
        Cmd::Shell(machine) => ab::shell(&paths, &machine, kernel_src, jobs)?,
        Cmd::Base => println!("{}", base::ensure(&paths, kernel_src)?.dir.display()),
        Cmd::Build { flavor } => {
            let image = kbuild::image(&paths, kernel_src, flavor, jobs, |_| Ok(()))?;
            println!("{}", image.bzimage.display());
        }
        Cmd::Test => test::run(&paths, kernel_src, jobs, false)?,
        Cmd::TestAll => test::run(&paths, kernel_src, jobs, true)?,
        Cmd::Offtest => offtest::run(&paths, kernel_src, jobs)?,
        Cmd::Check => check::run(&paths)?,
        Cmd::Doctor => doctor::run(&paths)?,
        Cmd::Clean => clean::run(&paths)?,
        Cmd::Menuconfig => {
            let base = base::ensure(&paths, kernel_src)?;
            let _lock = kbuild::lock(&paths)?;
            series::compose(&paths, &base)?;
            kbuild::menuconfig(&paths, &base)?;
        }
        Cmd::Tree => {
            let base = base::ensure(&paths, kernel_src)?;
            println!("{}", series::tree(&paths, &base)?.display());
        }
        Cmd::Fold => {
            let folded = series::fold(&paths, &base::ensure(&paths, kernel_src)?)?;
            folded
                .written
                .iter()
                .for_each(|path| println!("wrote {path}"));
            folded
                .removed
                .iter()
                .for_each(|path| println!("removed {path}"));
        }
        Cmd::Series { signoff } => {
            let base = base::ensure(&paths, kernel_src)?;
            let signoff = signoff.as_deref().filter(|who| !who.is_empty());
            println!("{}", series::emit(&paths, &base, signoff)?.display());
        }
    }
    Ok(())
}
