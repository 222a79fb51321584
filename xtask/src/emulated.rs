//! The tests of the preloaded library for another platform, on this machine.
//!
//! Linux hands programs of the other platform to an emulator (QEMU's user mode, registered with `binfmt_misc`). The
//! emulator lacks a few things that the kernel has; the tests that need them are skipped, each with its reason. What
//! only a real machine shows stays untested here: its memory ordering, its branch protection, and kernels with pages of
//! 64 KiB.

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, ensure};
use apportion_image::Platform;

use crate::stage;
use crate::steps::succeeds;
use crate::test_programs;
use crate::workspace::Workspace;

/// The crates of the hooked process.
const PACKAGES: [&str; 3] = ["apportion-abi", "apportion-gate", "apportion-intercept"];

/// Tests that cannot pass under the emulator, and why.
const SKIPPED: &[(&str, &str)] = &[
    (
        "a_child_does_not_hold_it",
        "the emulator keeps MADV_DONTFORK to itself",
    ),
    ("a_program_that_is_started_does_not_hold_it", "as above"),
    (
        "an_address_with_nothing_there_is_no_image",
        "the emulator has no process_vm_readv",
    ),
    ("nothing_is_answered_by_the_driver", "as above"),
    (
        "a_musl_program_finds_the_hook_and_the_driver",
        "Debian has no musl for the platform",
    ),
    (
        "programs_run_as_without_it",
        "the machine's own programs are of its own platform",
    ),
    ("immediate_binding_kills_nobody", "as above"),
    (
        "shared::",
        "the emulator makes up a start time in /proc/self/stat, so others take a process for dead",
    ),
    (
        "a_capture_survives_under_a_limit_what_it_survives_without",
        "it does not end in a minute",
    ),
];

/// Builds the library, the simulated driver and the tests for a platform, and runs the tests.
pub(crate) fn test(workspace: &Workspace, platform: Platform, args: &[String]) -> Result<ExitCode> {
    let workspace = workspace.for_platform(platform)?;
    let staged = stage::build_for_hooked_programs(&workspace)?;
    let mut cargo = workspace.cargo();
    cargo.arg("test");
    cargo.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    let programs = test_programs::build(&mut cargo)?;
    let is_emulated = platform != Platform::HOST;
    let libraries = format!("/usr/{}", platform.gnu());
    if is_emulated {
        let mut first = programs.first().context("there are no tests")?.command();
        let starts = succeeds(first.arg("--list").env("QEMU_LD_PREFIX", &libraries));
        let hint = "install qemu-user-static, and mount and register binfmt_misc";
        ensure!(
            starts,
            "programs for {platform} do not start here; hint: {hint}"
        );
        for (test, why) in SKIPPED {
            println!("left out: {test} ({why})");
        }
    }
    let jobs = thread::available_parallelism()?.get();
    let tally = test_programs::run(&programs, jobs, &|program| {
        program.env("APPORTION_STAGED", &staged).args(args);
        if is_emulated {
            program.env("QEMU_LD_PREFIX", &libraries);
            program.env("CC", workspace.c_tool("cc").get_program());
            for (test, _) in SKIPPED {
                program.args(["--skip", test]);
            }
        }
    });
    println!("{tally}");
    Ok(match tally.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
