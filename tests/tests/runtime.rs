//! Programs that are linked with the CUDA runtime run on simulated cards and keep their limit there. Each test is one C
//! program, linked with each major version of the simulated runtime as nvcc links with the real one. Both runtimes are
//! loaded in every process, so the tests also show that each program uses its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_tests::{CARD, CommandOutput, MIB, TestHost, staged};
use tempfile::TempDir;

const MAJORS: [u32; 2] = [12, 13];
const OPTIONS: &[&str] = &["--gpu-memory", "2000"];
/// The source, relative to the package's folder, where tests run.
const SOURCE: &str = "victims/runtime.c";

/// The program, linked with one major version.
fn linked(folder: &TempDir, major: u32) -> PathBuf {
    let library = staged().join(format!("lib/apportion/sim/runtime/libcudart.so.{major}"));
    let program = folder.path().join(format!("runtime-{major}"));
    let mut compiler = Command::new("cc");
    compiler
        .args(["-Wall", "-Werror", "-pthread", "-o"])
        .arg(&program);
    let said = CommandOutput::by(compiler.arg(SOURCE).arg(library)).well();
    assert_eq!(said.err, "");
    program
}

/// The folder with the unpacked header packages, and each major version's path in it.
const HEADERS: &str = "APPORTION_CUDA_HEADERS";
const INCLUDES: [(u32, &str); 2] = [
    (12, "nvidia/cuda_runtime/include"),
    (13, "nvidia/cu13/include"),
];

/// The number of compared fields. Each major version has the same number.
const FIELDS: u32 = 88;

/// Keywords of CUDA's compiler in the headers. None changes a layout here.
const WORDS: &str = "
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_DEPRECATED
";

/// The program that compares a structure, compiled with one major version's headers.
fn compiled(folder: &TempDir, major: u32, include: &Path) -> PathBuf {
    let words = folder.path().join("crt");
    fs::create_dir_all(&words).expect("a folder for the words");
    fs::write(words.join("host_defines.h"), WORDS).expect("the words");
    let library = staged().join(format!("lib/apportion/sim/runtime/libcudart.so.{major}"));
    let program = folder.path().join(format!("properties-{major}"));
    let mut compiler = Command::new("cc");
    compiler
        .arg(format!("-DMAJOR={major}"))
        .arg("-I")
        .arg(include);
    compiler
        .arg("-I")
        .arg(folder.path())
        .arg("-o")
        .arg(&program);
    let said = CommandOutput::by(compiler.arg("victims/properties.c").arg(library)).well();
    assert_eq!(said.out, "");
    program
}

/// The output of each major version's program under the limit.
#[track_caller]
fn limited(what: &str) -> [String; 2] {
    let folder = tempfile::tempdir().expect("a folder for the program");
    MAJORS.map(|major| {
        let host = TestHost::new();
        let program = linked(&folder, major);
        let said = CommandOutput::by(host.limited(OPTIONS, program).arg(what)).well();
        assert_eq!(said.err, "", "{what} {major}");
        said.out.trim_end().to_owned()
    })
}

#[track_caller]
fn both_say(what: &str, expected: &str) {
    assert_eq!(limited(what), [expected; 2], "{what}");
}

#[test]
fn each_program_reaches_the_runtime_that_it_is_linked_with_and_sees_the_limit_as_the_card() {
    let expected =
        MAJORS.map(|major| format!("version {major}, NVIDIA Simulated H100, memory 2000"));
    assert_eq!(limited("version"), expected);
}

#[test]
fn without_a_limit_a_program_sees_the_whole_card() {
    let folder = tempfile::tempdir().expect("a folder for the program");
    for major in MAJORS {
        let host = TestHost::new();
        let said = CommandOutput::by(host.unlimited(linked(&folder, major)).arg("version")).well();
        let memory = format!("memory {}\n", CARD / MIB);
        assert!(said.out.ends_with(&memory), "{said:?}");
    }
}

#[test]
fn a_program_fills_its_share_to_the_refusal_and_goes_on() {
    for what in ["fill", "async"] {
        both_say(
            what,
            "got 1696 of 2000, free 4, cudaErrorMemoryAllocation, seen cudaErrorMemoryAllocation, \
             last cudaErrorMemoryAllocation, then cudaSuccess",
        );
    }
}

#[test]
fn a_reset_gives_everything_back_and_the_device_can_be_used_again() {
    both_say("reset", "1 1 1 1 1 1");
}

#[test]
fn a_captured_stream_becomes_a_graph_that_runs() {
    both_say("capture", "nodes 3, still capturing 0, before 3, after 7");
}

#[test]
fn compiled_in_code_is_loaded_when_it_is_used_and_again_after_a_reset() {
    both_say(
        "code",
        "threads 1024, table 4096, beyond cudaErrorInvalidValue, unregistered cudaErrorInvalidResourceHandle",
    );
}

#[test]
fn two_threads_share_a_context_and_have_their_own_last_errors() {
    both_say(
        "threads",
        "last errors cudaErrorMemoryAllocation, cudaSuccess, free 1500",
    );
}

#[test]
fn memory_and_events_are_shared_between_processes() {
    both_say(
        "share",
        "child read 41, free 900\nparent reads 42, free 1200",
    );
}

#[test]
fn mistakes_are_answered_with_the_errors_of_the_runtime() {
    both_say(
        "errors",
        "device 0 of 1, next cudaErrorInvalidDevice, direction cudaErrorInvalidMemcpyDirection, \
         null cudaErrorInvalidValue, nothing is nowhere, last cudaErrorInvalidValue",
    );
}

#[test]
fn the_properties_of_a_device_lie_where_the_headers_say() {
    let Some(headers) = env::var_os(HEADERS) else {
        eprintln!("not compared with the headers: {HEADERS} names no folder");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder for the programs");
    for (major, include) in INCLUDES {
        let program = compiled(&folder, major, &Path::new(&headers).join(include));
        let expected = format!("NVIDIA Simulated H100: {FIELDS} fields, 0 differ, known 1\n");
        let host = TestHost::new();
        let plain = CommandOutput::by(&mut host.unlimited(&program)).well();
        assert_eq!(plain.out, expected, "CUDA {major}");
        let limited = CommandOutput::by(&mut host.limited(OPTIONS, &program)).well();
        assert_eq!(limited.out, expected, "CUDA {major}, limited");
    }
}
