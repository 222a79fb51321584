//! The library does not change `dlopen`: the loader sees its real caller, flags keep their meaning, and errors are
//! the loader's own. With a limit, only libraries that could reach the driver lose `RTLD_DEEPBIND` or their own
//! namespace.
//!
//! One C program prints its results, one fact per line. It runs without the library, with the library but no limit,
//! and with a limit; the output is compared line by line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harmless::compile;
use crate::stage::{MachineDaemon, NO_ACCOUNT};

/// Counts its own calls, and finds its own `name` first if bound deep. It cannot reach the driver.
const HARMLESS: &str = r#"
static int count;
const char *name(void) { return "library"; }
const char *which(void) { return name(); }
int counted(void) { return ++count; }
"#;

/// The same, but it can reach the driver.
const REACHING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
static int count;
const char *name(void) { return "library"; }
const char *which(void) { return name(); }
int counted(void) { return ++count; }
void *look(const char *name) { return dlsym(RTLD_DEFAULT, name); }
"#;

/// Opens a library by a name that only its own search path resolves.
const CALLER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
void *open_private(const char *name, int flags) { return dlopen(name, flags); }
void *open_apart(const char *name, int flags) { return dlmopen(LM_ID_NEWLM, name, flags); }
"#;

/// Lies between the program and the C library, as profilers do.
const BETWEEN: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
void *last_caller;
int calls;
void *dlopen(const char *file, int flags) {
    char aligned[16] __attribute__((aligned(16)));
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    last_caller = __builtin_return_address(0);
    if (next == dlopen || ((unsigned long)aligned & 15)) return 0;
    calls++;
    return next(file, flags);
}
"#;

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define CALL(library, name, type) ((type (*)())dlsym(library, name))
const char *name(void) { return "program"; }
static void said(const char *what, void *got) {
    const char *error = dlerror();
    printf("%s %s %s\n", what, got ? "got" : "nothing", error ? error : "-");
}
static void world(const char *what, void *library) {
    Lmid_t id = 0;
    printf("%s ", what);
    if (!library) { printf("nothing %s\n", dlerror()); return; }
    dlinfo(library, RTLD_DI_LMID, &id);
    printf("%s\n", id == LM_ID_BASE ? "base" : "apart");
}
int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    chdir(argv[1]);
    said("missing-name", dlopen("libthere-is-none.so", RTLD_NOW));
    said("missing-path", dlopen("./none.so", RTLD_LAZY | RTLD_DEEPBIND));
    said("no-mode", dlopen("./harmless.so", 0));
    said("missing-apart", dlmopen(LM_ID_NEWLM, "./none.so", RTLD_NOW));
    said("garbage", dlopen("./garbage.so", RTLD_NOW | RTLD_DEEPBIND));
    said("garbage-apart", dlmopen(LM_ID_NEWLM, "./garbage.so", RTLD_NOW));
    said("program-apart", dlmopen(LM_ID_NEWLM, 0, RTLD_NOW));
    said("global-apart", dlmopen(LM_ID_NEWLM, "./reaching.so", RTLD_NOW | RTLD_GLOBAL));
    said("no-such-namespace", dlmopen(7, "./harmless.so", RTLD_NOW));
    void *self = dlopen(0, RTLD_NOW | RTLD_DEEPBIND);
    printf("program %d\n", self && dlsym(self, "main") == (void *)main);
    said("not-loaded-yet", dlopen("./reaching.so", RTLD_NOW | RTLD_NOLOAD | RTLD_DEEPBIND));

    void *library = dlopen("./local.so", RTLD_NOW);
    printf("local %d", !!dlsym(RTLD_DEFAULT, "counted"));
    printf(" %d\n", library == dlopen("./local.so", RTLD_NOW | RTLD_NOLOAD));
    dlerror();
    library = dlopen("./local.so", RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    printf("global %d\n", !!dlsym(RTLD_DEFAULT, "counted"));

    library = dlopen("./sub/caller.so", RTLD_NOW);
    void *(*private)(const char *, int) = CALL(library, "open_private", void *);
    void *(*apart)(const char *, int) = CALL(library, "open_apart", void *);
    said("private-for-others", dlopen("libprivate.so", RTLD_NOW));
    said("private-origin-for-others", dlopen("$ORIGIN/private/libprivate.so", RTLD_NOW));
    void *found = private("libprivate.so", RTLD_NOW | RTLD_DEEPBIND);
    said("private", found);
    printf("private-origin %d\n", found == private("$ORIGIN/private/libprivate.so", RTLD_NOW));
    said("private-apart", apart("libprivate.so", RTLD_NOW));

    errno = 77;
    library = dlopen("./harmless.so", RTLD_NOW | RTLD_DEEPBIND);
    printf("errno %d\n", errno);
    printf("deep-harmless %s\n", CALL(library, "which", const char *)());
    CALL(library, "counted", int)();
    void *other = dlmopen(LM_ID_NEWLM, "./harmless.so", RTLD_NOW);
    world("harmless", other);
    printf("harmless-count %d\n", CALL(other, "counted", int)());
    world("plain", dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW));
    world("base", dlmopen(LM_ID_BASE, "./harmless.so", RTLD_NOW));

    library = dlopen("./reaching.so", RTLD_NOW | RTLD_DEEPBIND);
    printf("deep-reaching %s\n", CALL(library, "which", const char *)());
    other = dlmopen(LM_ID_NEWLM, "./reaching.so", RTLD_NOW);
    world("reaching", other);
    library = dlopen("./needing.so", RTLD_NOW | RTLD_DEEPBIND);
    printf("deep-needing %s\n", CALL(library, "which", const char *)());
    world("needing", dlmopen(LM_ID_NEWLM, "./needing.so", RTLD_NOW));
    printf("second %d\n", dlclose(library));
    int *calls = dlsym(RTLD_DEFAULT, "calls");
    if (calls) {
        Dl_info where;
        void *caller = *(void **)dlsym(RTLD_DEFAULT, "last_caller");
        printf("between %d %d\n", *calls, dladdr(caller, &where) && !strcmp(where.dli_fname, argv[0]));
    }
    return 0;
}
"#;

/// What differs with a limit: the value without and with it.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("deep-reaching", "library", "program"),
    ("reaching", "apart", "base"),
    ("needing", "apart", "base"),
];

type Facts = BTreeMap<String, String>;

fn facts(command: &mut Command, folder: &Path) -> Facts {
    let output = command.arg(folder).output().expect("it was just built");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.split_once(' ').map(|(a, b)| (a.into(), b.into())))
        .collect()
}

fn make_libraries(folder: &Path) {
    let shared = ["-shared", "-fPIC"];
    let library = |name: &str, source: &str, more: &[&str]| {
        compile(folder, name, source, &[&shared, more].concat())
    };
    fs::create_dir_all(folder.join("sub/private")).expect("the folder is writable");
    library("sub/private/libprivate.so", HARMLESS, &[]);
    library("harmless.so", HARMLESS, &[]);
    library("local.so", HARMLESS, &[]);
    library("reaching.so", REACHING, &["-Wl,-soname,reaching.so"]);
    library("between.so", BETWEEN, &[]);
    library("sub/caller.so", CALLER, &["-Wl,-rpath,$ORIGIN/private"]);
    let reaching = folder.join("reaching.so");
    let reaching = reaching.to_str().expect("the path is plain");
    let needs = ["-Wl,--no-as-needed", reaching, "-Wl,-rpath,$ORIGIN"];
    library("needing.so", HARMLESS, &needs);
    fs::write(folder.join("garbage.so"), "no library at all").expect("the folder is writable");
}

/// Compares the three runs of a program that is built with `flags`.
fn compare(flags: &[&str]) -> Facts {
    let machine = MachineDaemon::start(&[8192]);
    let account = machine.account(&[2000]);
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let folder = folder.path();
    make_libraries(folder);
    let between = folder.join("between.so");
    let flags: Vec<&str> = flags
        .iter()
        .map(|flag| match *flag {
            "between" => between.to_str().expect("the path is plain"),
            flag => flag,
        })
        .collect();
    let flags = [&["-rdynamic"], flags.as_slice()].concat();
    let program = compile(folder, "program", PROGRAM, &flags);
    let plain = facts(&mut Command::new(&program), folder);
    let nowhere = Path::new(NO_ACCOUNT);
    let unlimited = facts(&mut machine.command(&program, nowhere), folder);
    assert_eq!(unlimited, plain, "without a limit nothing is different");
    let mut limited = facts(&mut machine.command(&program, account.folder()), folder);
    for (fact, without, with) in DIFFERENT {
        assert_eq!(plain[*fact], *without, "{fact}");
        assert_eq!(
            limited.insert((*fact).into(), (*without).into()).as_deref(),
            Some(*with),
            "{fact}"
        );
    }
    assert_eq!(limited, plain, "under a limit nothing else is different");
    plain
}

#[test]
fn a_library_is_opened_as_without_us_unless_it_could_reach_the_driver() {
    let plain = compare(&[]);
    for (fact, wanted) in [
        ("deep-harmless", "library"),
        ("deep-needing", "library"),
        ("harmless", "apart"),
        ("harmless-count", "1"),
        ("plain", "apart"),
        ("private", "got -"),
        ("private-origin", "1"),
        ("local", "0 1"),
        ("global", "1"),
    ] {
        assert_eq!(plain[fact], wanted, "{fact}");
    }
    for fact in ["private-for-others", "private-origin-for-others"] {
        assert!(plain[fact].starts_with("nothing "), "{plain:?}");
    }
}

#[test]
fn a_wrapper_between_us_and_the_c_library_keeps_its_place() {
    let plain = compare(&["between", "-Wl,-rpath,$ORIGIN"]);
    assert!(plain["between"].ends_with(" 1"), "{plain:?}");
}
