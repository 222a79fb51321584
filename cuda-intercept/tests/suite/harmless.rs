//! The library does no harm: in processes without a GPU, without an account, or with a broken one.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::null_mut;

use crate::cuda::{LoadedCuda, OUT_OF_MEMORY};
use crate::lookup::past_us;
use crate::stage::{MIB, MachineDaemon, NO_ACCOUNT, preload, run_inside, this_program};

fn preloaded(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", preload());
    command
}

/// Runs a program without and with the library, and compares.
#[track_caller]
fn unchanged(program: &str, arguments: &[&str], variables: &[(&str, &str)]) {
    let run = |command: &mut Command| -> Output {
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .output()
            .expect("the program is there")
    };
    let without = run(&mut Command::new(program));
    let with = run(&mut preloaded(program));
    assert_eq!(with, without, "{program} {arguments:?}");
}

#[test]
fn programs_run_as_without_it() {
    unchanged("/bin/true", &[], &[]);
    unchanged("/bin/sh", &["-c", "echo out; echo err >&2; exit 7"], &[]);
    unchanged(
        "/bin/sh",
        &["-c", "true & wait; (cd /; pwd); env -i /bin/true"],
        &[],
    );
}

#[test]
fn immediate_binding_kills_nobody() {
    unchanged("/bin/true", &[], &[("LD_BIND_NOW", "1")]);
    unchanged(
        "/bin/sh",
        &["-c", "echo $((1 + 1))"],
        &[("LD_BIND_NOW", "1")],
    );
}

#[test]
fn a_program_without_a_driver_gets_what_it_would_get() {
    let source = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            printf("%p %p %p\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlsym(RTLD_NEXT, "cuMemAlloc_v2"),
                   dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "X"));
            printf("%p\n", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
            return dlsym(RTLD_DEFAULT, "printf") == NULL;
        }"#;
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let program = compile(folder.path(), "lonely", source, &[]);
    unchanged(program.to_str().expect("plain path"), &[], &[]);
}

#[test]
fn a_static_program_does_not_notice() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let source = "int main(void) { return 5; }";
    let program = compile(folder.path(), "static", source, &["-static"]);
    unchanged(program.to_str().expect("plain path"), &[], &[]);
}

/// With musl, the linker keeps the file's values in an object's tables, and `dlsym` is in the linker itself. musl has
/// no `dlmopen`, and must not appear to have one.
#[test]
fn a_musl_program_finds_the_hook_and_the_driver() {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        eprintln!("left out: there is no musl-gcc here");
        return;
    }
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let driver = "int cuMemAlloc_v2(unsigned long *a, unsigned long b) { return 99; }";
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    build("musl-gcc", folder.path(), "libcuda.so.1", driver, &flags);
    let source = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <string.h>
        int main(int argc, char **argv) {
            void *driver = dlopen(argv[1], RTLD_NOW);
            unsigned long address;
            Dl_info where;
            int (*alloc)(unsigned long *, unsigned long) =
                (int (*)(unsigned long *, unsigned long))dlsym(driver, "cuMemAlloc_v2");
            if (!alloc || !dladdr((void *)alloc, &where) || !dlsym(RTLD_DEFAULT, "printf")) return 1;
            if (!strstr(where.dli_fname, "libapportion_cuda.so")) return 2;
            if (dlsym(RTLD_DEFAULT, "dlmopen") || !dlerror()) return 4;
            if (dlopen("./none.so", RTLD_NOW) || !strstr(dlerror(), "none.so")) return 5;
            return alloc(&address, 1) == 99 ? 0 : 3;
        }"#;
    let program = build("musl-gcc", folder.path(), "program", source, &[]);
    let status = preloaded(program)
        .arg(folder.path().join("libcuda.so.1"))
        .status()
        .expect("it was just built");
    assert_eq!(status.code(), Some(0));
}

/// A program with weak links to the driver's functions runs without the driver.
#[test]
fn a_linked_function_without_a_driver_is_an_error_and_no_crash() {
    let source = r#"
        extern int cuMemAlloc_v2(unsigned long *, unsigned long) __attribute__((weak));
        extern int nvmlDeviceGetMemoryInfo(void *, void *) __attribute__((weak));
        int main(void) {
            unsigned long address = 5;
            return cuMemAlloc_v2(&address, 1) == 3 && nvmlDeviceGetMemoryInfo(0, 0) == 1 && address == 5 ? 0 : 1;
        }"#;
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let program = compile(folder.path(), "weak", source, &["-no-pie", "-Wl,-z,lazy"]);
    let output = preloaded(&program).output().expect("it was just built");
    assert!(output.status.success(), "{output:?}");
}

/// Compiles a small C program or, with `-shared`, a library. `CC` names another compiler than `cc`.
pub(crate) fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    build(&compiler, folder, name, source, flags)
}

fn build(compiler: &str, folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, target) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&file, source).expect("the folder is writable");
    let output = Command::new(compiler)
        .arg("-o")
        .args([&target, &file])
        .args(flags)
        .arg("-ldl")
        .output()
        .expect("there is a C compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    target
}

/// Runs the body on a machine, with the library and without a valid account.
fn without_an_account(account: &Path, body: impl Fn()) {
    fn inside<F: Fn()>(command: &mut Command, _: &F) {
        run_inside::<F>(command);
    }
    if env::var_os("APPORTION_TEST_INSIDE").is_some() {
        return body();
    }
    let machine = MachineDaemon::start(&[4096]);
    inside(&mut machine.command(this_program(), account), &body);
}

#[test]
fn a_program_without_an_account_has_the_whole_gpu() {
    without_an_account(Path::new(NO_ACCOUNT), || {
        let cuda = LoadedCuda::start();
        assert_eq!(cuda.info().1, 4096 * MIB);
        assert!(cuda.alloc(3000 * MIB).is_ok());
    });
}

#[test]
fn nothing_is_given_while_an_account_that_is_named_cannot_be_opened() {
    let garbage = tempfile::tempdir().expect("there is room for a folder");
    fs::write(garbage.path().join("limits"), [7; 5000]).expect("the folder is writable");
    fs::write(garbage.path().join("usage"), "").expect("the folder is writable");
    let nowhere = garbage.path().join("nowhere");
    for account in [garbage.path(), &nowhere] {
        without_an_account(account, || {
            let mut context = null_mut();
            let refused = LoadedCuda::load().primary_retain(&raw mut context, 0);
            assert_eq!((refused, context), (OUT_OF_MEMORY, null_mut()));
        });
    }
}

#[test]
fn a_program_without_a_limit_launches_by_the_driver_s_own_functions() {
    without_an_account(Path::new(NO_ACCOUNT), || {
        let cuda = LoadedCuda::start();
        let launch = c"cuLaunchKernel";
        assert_eq!(cuda.address(launch), past_us(launch));
        let mut found = null_mut();
        let status = cuda.get_proc_address(launch.as_ptr(), &raw mut found, 12000, 0);
        assert_eq!((status, found as usize), (0, past_us(launch)));
        let alloc = c"cuMemAlloc_v2";
        assert_ne!(cuda.address(alloc), past_us(alloc), "others are hooked");
    });
}
