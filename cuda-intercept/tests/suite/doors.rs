//! Which ways to the driver lead past a hook, and which do not.
//!
//! The table is what the documentation says; each row is tried in a C program of its own. A way that is
//! not covered is written down as such: the agent sees what such a program takes, and acts on that.

use std::path::Path;
use std::process::Command;

use crate::harmless::compile;
use crate::stage::{Machine, staged};

/// A program that finds `cuMemAlloc_v2` in its own way (`FIND`), after starting the driver, and prints
/// whether a request that is too large for the limit but not for the card is refused.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
typedef int (*alloc_t)(unsigned long *, unsigned long);
FIND
int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | SCOPE);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    void *context;
    if (init(0) || retain(&context, 0) || current(context)) return 3;
    alloc_t alloc = find(driver);
    unsigned long address = 42;
    if (!alloc) return 4;
    int status = alloc(&address, 3000ul << 20);
    puts(status == 2 && address == 42 ? "hooked" : status == 0 ? "past" : "other");
    return 0;
}
"#;

/// A library between the program and the driver, as profilers put there: it calls the next one.
const WRAPPER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
int cuMemAlloc_v2(unsigned long *address, unsigned long bytes) {
    static int depth;
    int (*next)(unsigned long *, unsigned long) =
        (int (*)(unsigned long *, unsigned long))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    if (!next || depth > 3) return 77;
    depth++;
    int status = next(address, bytes);
    depth--;
    return status;
}
"#;

/// A library that looks the function up by itself.
const FINDER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
void *find_it(void *driver) { return dlsym(driver, "cuMemAlloc_v2"); }
"#;

/// A library that is linked with the driver, as the modules of other languages are.
const LINKED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
extern int cuInit(unsigned);
int start(void) { return cuInit(0); }
void *find_it(void) {
    dlerror();
    void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    return dlerror() ? 0 : found;
}
"#;

/// Name, how the function is found, scope of the driver, what comes out.
const WAYS: &[(&str, &str, &str, &str)] = &[
    (
        "dlsym on a handle",
        r#"alloc_t find(void *d) { return (alloc_t)dlsym(d, "cuMemAlloc_v2"); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlsym on a handle by absolute path",
        r#"alloc_t find(void *d) { Dl_info i; dladdr(dlsym(d, "cuInit"), &i);
           return (alloc_t)dlsym(dlopen(i.dli_fname, RTLD_NOW), "cuMemAlloc_v2"); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlsym in the default scope",
        r#"alloc_t find(void *d) { return (alloc_t)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); }"#,
        "RTLD_GLOBAL",
        "hooked",
    ),
    (
        "dlsym in the default scope, where the driver is not in it",
        r#"alloc_t find(void *d) { return (alloc_t)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); }"#,
        "RTLD_LOCAL",
        "none",
    ),
    (
        "dlsym in the default scope of a library that is linked with the driver",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("LINKED"), RTLD_NOW);
           return (alloc_t)((void *(*)(void))dlsym(l, "find_it"))(); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlsym for the next object",
        r#"alloc_t find(void *d) { return (alloc_t)dlsym(RTLD_NEXT, "cuMemAlloc_v2"); }"#,
        "RTLD_GLOBAL",
        "hooked",
    ),
    (
        "dlsym on the program itself",
        r#"alloc_t find(void *d) { return (alloc_t)dlsym(dlopen(0, RTLD_NOW), "cuMemAlloc_v2"); }"#,
        "RTLD_GLOBAL",
        "hooked",
    ),
    (
        "cuGetProcAddress",
        r#"alloc_t find(void *d) { void *f = 0; int s;
           int (*get)(const char *, void **, int, unsigned long, int *) =
               (int (*)(const char *, void **, int, unsigned long, int *))dlsym(d, "cuGetProcAddress_v2");
           get("cuMemAlloc", &f, 12000, 0, &s); return (alloc_t)f; }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "cuGetProcAddress found by itself",
        r#"alloc_t find(void *d) { void *g = 0, *f = 0; int s;
           int (*get)(const char *, void **, int, unsigned long, int *) =
               (int (*)(const char *, void **, int, unsigned long, int *))dlsym(d, "cuGetProcAddress_v2");
           get("cuGetProcAddress", &g, 12000, 0, &s);
           ((int (*)(const char *, void **, int, unsigned long, int *))g)("cuMemAlloc", &f, 12000, 0, &s);
           return (alloc_t)f; }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "a linked symbol",
        r#"extern int cuMemAlloc_v2(unsigned long *, unsigned long) __attribute__((weak));
           alloc_t find(void *d) { return cuMemAlloc_v2; }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "a library that looks it up",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("FINDER"), RTLD_NOW);
           return (alloc_t)((void *(*)(void *))dlsym(l, "find_it"))(d); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "a wrapper that calls the next one",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("WRAPPER"), RTLD_NOW);
           return (alloc_t)dlsym(l, "cuMemAlloc_v2"); }"#,
        "RTLD_GLOBAL",
        "hooked",
    ),
    (
        "a library that was loaded with RTLD_DEEPBIND and looks it up",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("FINDER"), RTLD_NOW | RTLD_DEEPBIND);
           return (alloc_t)((void *(*)(void *))dlsym(l, "find_it"))(d); }"#,
        "RTLD_LOCAL",
        "past",
    ),
    (
        "a namespace of its own (dlmopen)",
        r#"alloc_t find(void *d) { void *n = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW), *c;
           if (((int (*)(unsigned))dlsym(n, "cuInit"))(0)) return 0;
           if (((int (*)(void **, int))dlsym(n, "cuDevicePrimaryCtxRetain"))(&c, 0)) return 0;
           if (((int (*)(void *))dlsym(n, "cuCtxSetCurrent"))(c)) return 0;
           return (alloc_t)dlsym(n, "cuMemAlloc_v2"); }"#,
        "RTLD_LOCAL",
        "past",
    ),
];

fn run(machine: &Machine, account: &Path, folder: &Path, way: &(&str, &str, &str, &str)) -> String {
    let source = PROGRAM.replace("FIND", way.1).replace("SCOPE", way.2);
    let program = compile(folder, "program", &source, &["-Wl,-z,lazy"]);
    let mut command: Command = machine.command(program, account);
    let output = command
        .env("FINDER", folder.join("finder.so"))
        .env("WRAPPER", folder.join("wrapper.so"))
        .env("LINKED", folder.join("linked.so"))
        .output()
        .expect("it was just built");
    match output.status.code() {
        Some(0) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Some(4) => "none".to_owned(),
        _ => format!("{output:?}"),
    }
}

#[test]
fn the_table_of_covered_ways_is_true() {
    let machine = Machine::start(&[8192]);
    let account = machine.account(&[2000]);
    let folder = tempfile::tempdir().expect("there is room for a folder");
    compile(folder.path(), "finder.so", FINDER, &["-shared", "-fPIC"]);
    compile(folder.path(), "wrapper.so", WRAPPER, &["-shared", "-fPIC"]);
    let driver = staged("sim/libcuda.so.1");
    let driver = driver.to_str().expect("the path is plain");
    compile(
        folder.path(),
        "linked.so",
        LINKED,
        &["-shared", "-fPIC", driver],
    );
    for way in WAYS {
        let outcome = run(&machine, account.folder(), folder.path(), way);
        assert_eq!(outcome, way.3, "{}", way.0);
    }
}

/// `dlerror` belongs to the program: a lookup that works leaves no message behind.
#[test]
fn a_lookup_that_works_leaves_no_error_behind() {
    let machine = Machine::start(&[8192]);
    let account = machine.account(&[2000]);
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let source = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        int main(void) {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            dlerror();
            if (!dlsym(driver, "cuMemAlloc_v2") || dlerror()) return 1;
            if (dlsym(driver, "cuNoSuchFunction") || !dlerror()) return 2;
            if (dlsym(driver, "cuGetProcAddress_v2_ptsz") || !dlerror()) return 3;
            return !dlsym(RTLD_DEFAULT, "dlopen") || dlerror() ? 4 : 0;
        }"#;
    let program = compile(folder.path(), "errors", source, &[]);
    let status = machine
        .command(program, account.folder())
        .status()
        .expect("it was just built");
    assert_eq!(status.code(), Some(0));
}

/// The addresses that were found stay good: a driver that was found is not unloaded again.
#[test]
fn a_driver_that_is_closed_and_opened_again_stays_hooked() {
    let machine = Machine::start(&[8192]);
    let account = machine.account(&[2000]);
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let source = r#"
        #include <dlfcn.h>
        int main(void) {
            void *context, *driver, *first = 0;
            for (int round = 0; round < 3; round++) {
                driver = dlopen("libcuda.so.1", RTLD_NOW);
                int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
                int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
                int (*current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
                void *found = dlsym(driver, "cuMemAlloc_v2");
                unsigned long address;
                if (init(0) || retain(&context, 0) || current(context)) return 1;
                if (first && found != first) return 2;
                first = found;
                if (((int (*)(unsigned long *, unsigned long))found)(&address, 3000ul << 20) != 2) return 3;
                dlclose(driver);
            }
            return 0;
        }"#;
    let program = compile(folder.path(), "reopen", source, &[]);
    let status = machine
        .command(program, account.folder())
        .status()
        .expect("it was just built");
    assert_eq!(status.code(), Some(0));
}
