//! Which ways to the driver bypass a hook, and which do not.
//!
//! The table is what the documentation says; each row is tried in its own C program. A way that is not covered is
//! recorded as such: the agent sees what such a program takes, and acts on it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harmless::compile;
use crate::stage::{MachineDaemon, staged};

/// A program that initialises the driver and finds `cuMemAlloc_v2` in its own way (`FIND`). Then it prints whether a
/// request is refused that is too large for the limit but not for the card.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
typedef int (*alloc_t)(unsigned long *, unsigned long);
TOOLS
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

/// A library between the program and the driver, as profilers use: it calls the next one.
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

/// A library that looks the function up itself, in a driver that it is given or opens.
const FINDER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
void *find_it(void *driver) {
    return dlsym(driver ? driver : dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
}
void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
"#;

/// The same, but its constructor does it, before `dlopen` returns.
const EARLY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
static void *found;
__attribute__((constructor)) static void look(void) {
    found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
}
void *find_it(void *driver) { return found; }
"#;

/// A library that is linked with the driver, like extension modules of other languages.
const LINKED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
extern int cuInit(unsigned);
extern int cuMemAlloc_v2(unsigned long *, unsigned long);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
int alloc(unsigned long *address, unsigned long bytes) { return cuMemAlloc_v2(address, bytes); }
void *taken(void) { return cuMemAlloc_v2; }
int start(void) {
    void *context;
    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}
void *find_it(void) {
    dlerror();
    void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    return dlerror() ? 0 : found;
}
"#;

/// A library that reaches the driver only through one that it is linked with.
const INDIRECT: &str = r#"
extern int alloc(unsigned long *, unsigned long);
extern int start(void);
int far_alloc(unsigned long *address, unsigned long bytes) { return alloc(address, bytes); }
int far_start(void) { return start(); }
"#;

/// Shared code: initialises a driver whose context is not the program's, and calls a function in a library.
const TOOLS: &str = r#"
#ifdef __aarch64__
#define FIRST_GLIBC "GLIBC_2.17"
#else
#define FIRST_GLIBC "GLIBC_2.2.5"
#endif
#define ALLOC(p) ((alloc_t)(p))
#define GIVES(library, name, argument) (((void *(*)(void *))dlsym(library, name))(argument))
#define DOES(library, name) (((int (*)(void))dlsym(library, name))())
static alloc_t begun(void *driver) {
    void *context;
    if (((int (*)(unsigned))dlsym(driver, "cuInit"))(0)) return 0;
    if (((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)) return 0;
    if (((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context)) return 0;
    return ALLOC(dlsym(driver, "cuMemAlloc_v2"));
}
typedef void *(*open_t)(const char *, int);
typedef void *(*look_t)(void *, const char *);
"#;

/// Name, how the function is found, scope of the driver, expected result.
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
        "RTLD_DEEPBIND: a library that looks it up",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("FINDER"), RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(GIVES(l, "find_it", d)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "RTLD_DEEPBIND: a library that looks it up as it is loaded",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("EARLY"), RTLD_LAZY | RTLD_DEEPBIND);
           return ALLOC(GIVES(l, "find_it", d)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "RTLD_DEEPBIND: a call of a library that is linked with the driver",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("LINKED"), RTLD_LAZY | RTLD_DEEPBIND);
           return ALLOC(dlsym(l, "alloc")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "RTLD_DEEPBIND: an address in a library that is linked with the driver",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("LINKED"), RTLD_NOW | RTLD_DEEPBIND | RTLD_GLOBAL);
           return ALLOC(GIVES(l, "taken", 0)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "RTLD_DEEPBIND: a library that is linked with such a library",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("INDIRECT"), RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(dlsym(l, "far_alloc")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "RTLD_DEEPBIND: a library by its name alone",
        r#"alloc_t find(void *d) { void *l = dlopen("finder.so", RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(GIVES(l, "find_it", d)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "RTLD_DEEPBIND: the driver",
        r#"alloc_t find(void *d) { void *l = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(dlsym(l, "cuMemAlloc_v2")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: the driver",
        r#"alloc_t find(void *d) { return begun(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: the driver by its path",
        r#"alloc_t find(void *d) { Dl_info i; dladdr(dlsym(d, "cuInit"), &i);
           return begun(dlmopen(LM_ID_NEWLM, i.dli_fname, RTLD_NOW | RTLD_DEEPBIND)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: a library that is linked with the driver",
        r#"alloc_t find(void *d) { void *l = dlmopen(LM_ID_NEWLM, getenv("LINKED"), RTLD_NOW);
           return DOES(l, "start") ? 0 : ALLOC(dlsym(l, "alloc")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: a library that is linked with such a library",
        r#"alloc_t find(void *d) { void *l = dlmopen(LM_ID_NEWLM, getenv("INDIRECT"), RTLD_NOW);
           return DOES(l, "far_start") ? 0 : ALLOC(dlsym(l, "far_alloc")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: a library that opens the driver",
        r#"alloc_t find(void *d) { void *l = dlmopen(LM_ID_NEWLM, getenv("FINDER"), RTLD_NOW);
           return ALLOC(GIVES(l, "find_it", 0)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: the driver, beside a harmless library that has a namespace",
        r#"alloc_t find(void *d) { Lmid_t world = 0; void *l = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
           if (!l || dlinfo(l, RTLD_DI_LMID, &world) || world == LM_ID_BASE) return 0;
           return begun(dlmopen(world, "libcuda.so.1", RTLD_NOW)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: dlopen of a second C library",
        r#"alloc_t find(void *d) { void *c = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
           return begun(((open_t)dlsym(c, "dlopen"))("libcuda.so.1", RTLD_NOW)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "dlmopen: dlsym of a second C library",
        r#"alloc_t find(void *d) { void *c = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
           return ALLOC(((look_t)dlsym(c, "dlsym"))(d, "cuMemAlloc_v2")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "the C library's own dlopen",
        r#"alloc_t find(void *d) { void *c = dlopen("libc.so.6", RTLD_NOW);
           void *l = ((open_t)dlsym(c, "dlopen"))(getenv("FINDER"), RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(GIVES(l, "find_it", d)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "the C library's own dlopen, by its version",
        r#"alloc_t find(void *d) { void *c = dlopen("libc.so.6", RTLD_NOW);
           void *f = dlvsym(c, "dlopen", FIRST_GLIBC);
           void *l = ((open_t)f)(getenv("FINDER"), RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(GIVES(l, "find_it", d)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "the C library's own dlsym",
        r#"alloc_t find(void *d) { void *c = dlopen("libc.so.6", RTLD_NOW);
           return ALLOC(((look_t)dlsym(c, "dlsym"))(d, "cuMemAlloc_v2")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "the next dlsym behind a library",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("FINDER"), RTLD_NOW);
           return ALLOC(((look_t)GIVES(l, "next", "dlsym"))(d, "cuMemAlloc_v2")); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "the next dlopen behind a library",
        r#"alloc_t find(void *d) { void *l = dlopen(getenv("FINDER"), RTLD_NOW);
           l = ((open_t)GIVES(l, "next", "dlopen"))(getenv("EARLY"), RTLD_NOW | RTLD_DEEPBIND);
           return ALLOC(GIVES(l, "find_it", d)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
    (
        "a second copy of the driver",
        r#"alloc_t find(void *d) { return begun(dlopen(getenv("COPY"), RTLD_NOW)); }"#,
        "RTLD_LOCAL",
        "hooked",
    ),
];

fn run(
    machine: &MachineDaemon,
    account: &Path,
    folder: &Path,
    way: &(&str, &str, &str, &str),
) -> String {
    let source = PROGRAM
        .replace("TOOLS", TOOLS)
        .replace("FIND\n", way.1)
        .replace("SCOPE", way.2);
    let runpath = format!("-Wl,-rpath,{}", folder.display());
    let program = compile(folder, "program", &source, &["-Wl,-z,lazy", &runpath]);
    let mut command: Command = machine.command(program, account);
    for library in LIBRARIES {
        command.env(library.to_uppercase(), folder.join(format!("{library}.so")));
    }
    let output = command.output().expect("it was just built");
    match output.status.code() {
        Some(0) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Some(4) => "none".to_owned(),
        _ => format!("{output:?}"),
    }
}

/// The libraries whose paths the programs get in the environment, in capitals.
const LIBRARIES: &[&str] = &["finder", "early", "wrapper", "linked", "indirect", "copy"];

fn make_libraries(folder: &Path) {
    let library = |name: &str, source: &str, more: &[&str]| {
        let flags = [&["-shared", "-fPIC", "-Wl,-z,lazy"], more].concat();
        compile(folder, name, source, &flags)
    };
    library("finder.so", FINDER, &[]);
    library("early.so", EARLY, &[]);
    library("wrapper.so", WRAPPER, &[]);
    let driver = staged("sim/libcuda.so.1");
    fs::copy(&driver, folder.join("copy.so")).expect("the folder is writable");
    let driver = driver.to_str().expect("the path is plain");
    let linked = library("linked.so", LINKED, &[driver]);
    let linked = linked.to_str().expect("the path is plain");
    library("indirect.so", INDIRECT, &[linked]);
}

#[test]
fn the_table_of_covered_ways_is_true() {
    let machine = MachineDaemon::start(&[8192]);
    let account = machine.account(&[2000]);
    let folder = tempfile::tempdir().expect("there is room for a folder");
    make_libraries(folder.path());
    let wrong: Vec<String> = WAYS
        .iter()
        .map(|way| (way, run(&machine, account.folder(), folder.path(), way)))
        .filter(|(way, outcome)| outcome != way.3)
        .map(|(way, outcome)| format!("{}: {outcome}, not {}", way.0, way.3))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `dlerror` belongs to the program: a successful lookup leaves no message.
#[test]
fn a_lookup_that_works_leaves_no_error_behind() {
    let machine = MachineDaemon::start(&[8192]);
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

/// Addresses stay valid, because a driver that was found is never unloaded.
#[test]
fn a_driver_that_is_closed_and_opened_again_stays_hooked() {
    let machine = MachineDaemon::start(&[8192]);
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

/// As under WSL, a driver wraps the real one and has the same name. It finds the real one's functions, and not its
/// own through the hooks.
#[test]
fn a_driver_in_front_of_another_is_not_sent_in_a_circle() {
    let machine = MachineDaemon::start(&[8192]);
    let account = machine.account(&[2000]);
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let forwarded = [
        ("cuInit", "unsigned a", "a"),
        ("cuDevicePrimaryCtxRetain", "void **a, int b", "a, b"),
        ("cuDeviceGetUuid_v2", "void *a, int b", "a, b"),
        ("cuCtxSetCurrent", "void *a", "a"),
        ("cuCtxGetCurrent", "void **a", "a"),
        ("cuCtxGetDevice", "int *a", "a"),
        ("cuMemAlloc_v2", "unsigned long *a, unsigned long b", "a, b"),
    ];
    let forwarded = forwarded.map(|(name, takes, passes)| {
        format!(
            "int {name}({takes}) {{ int (*next)() = (int (*)())dlsym(real(), \"{name}\"); \
             return next && depth++ < 20 ? next({passes}) : 999; }}\n"
        )
    });
    let shim = format!(
        "#include <dlfcn.h>\n#include <stdlib.h>\nstatic int depth;\n\
         static void *real(void) {{ return dlopen(getenv(\"COPY\"), RTLD_NOW); }}\n{}",
        forwarded.concat()
    );
    let flags = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"];
    compile(folder.path(), "libcuda.so.1", &shim, &flags);
    let copy = folder.path().join("copy.so");
    fs::copy(staged("sim/libcuda.so.1"), &copy).expect("the folder is writable");
    let way = r#"alloc_t find(void *d) { return ALLOC(dlsym(d, "cuMemAlloc_v2")); }"#;
    let source = PROGRAM
        .replace("TOOLS", TOOLS)
        .replace("FIND\n", way)
        .replace("SCOPE", "RTLD_LOCAL");
    let program = compile(folder.path(), "program", &source, &[]);
    let output = machine
        .command(program, account.folder())
        .env("LD_LIBRARY_PATH", folder.path())
        .env("COPY", copy)
        .output()
        .expect("it was just built");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "hooked\n",
        "{output:?}"
    );
}
