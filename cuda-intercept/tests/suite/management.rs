//! NVML with a limit: its own internal calls, and the process lists.
//!
//! The library is a C library of the test. It calls its own exported names, as the driver's does, and returns the
//! lists that a test wants.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harmless::compile;
use crate::stage::{AgentAccount, MachineDaemon, NO_ACCOUNT, uuid};

/// An NVML with one card of 16 GiB, whose processes have the pids in `PIDS`. With `WIDE`, entries of the third
/// version are 8 bytes longer. Its internal calls use its exported names.
const LIBRARY: &str = r#"
    #include <stdlib.h>
    #include <string.h>
    typedef unsigned int u32; typedef unsigned long long u64;
    struct memory { u64 total, free, used; };
    struct memory_v2 { u32 version; u64 total, reserved, free, used; };
    int nvmlDeviceGetUUID(void *device, char *text, u32 length) {
        if (!device) return 2;
        strncpy(text, getenv("CARD"), length);
        return 0;
    }
    int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
        if (!device || !memory) return 2;
        *memory = (struct memory){16ull << 30, 15ull << 30, 1ull << 30};
        return 0;
    }
    int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
        if (!device || !memory) return 2;
        *memory = (struct memory_v2){memory->version, 16ull << 30, 1 << 20, 15ull << 30, 1ull << 30};
        return 0;
    }
    u64 own_total(void *device) {
        struct memory memory = {0};
        return nvmlDeviceGetMemoryInfo(device, &memory) ? 0 : memory.total;
    }
    u64 own_total_v2(void *device) {
        struct memory_v2 memory = {0};
        return nvmlDeviceGetMemoryInfo_v2(device, &memory) ? 0 : memory.total;
    }

    static u32 pids[4096];
    static u32 all(void) {
        u32 count = 0;
        char *at = getenv("PIDS");
        while (at && *at) { pids[count++] = strtoul(at, &at, 10); at += *at == ','; }
        return count;
    }
    /* Writes entries of so many bytes, each with its pid there and its number in all other bytes. */
    static int list(void *device, u32 *room, char *to, u32 bytes, u32 pid_at, int none, int sized_by_null) {
        if (!device || !room) return 2;
        u32 count = all(), had = *room;
        if (!to && had && !sized_by_null) return 2;
        *room = count;
        if (!count) return none;
        if (had < count || !to) return 7;
        for (u32 i = 0; i < count; i++) {
            memset(to + i * bytes, 1 + i % 100, bytes);
            memcpy(to + i * bytes + pid_at, &pids[i], 4);
        }
        return 0;
    }
    #define LIST(name, bytes) int name(void *device, u32 *count, void *to) { \
        return list(device, count, to, bytes, 0, 0, 0); }
    #define LISTS(name) LIST(name, 16) LIST(name##_v2, 24) LIST(name##_v3, getenv("WIDE") ? 32 : 24)
    LISTS(nvmlDeviceGetComputeRunningProcesses)
    LISTS(nvmlDeviceGetGraphicsRunningProcesses)
    LISTS(nvmlDeviceGetMPSComputeRunningProcesses)
    LIST(nvmlDeviceGetAccountingPids, 4)
    int nvmlDeviceGetProcessUtilization(void *device, void *to, u32 *count, u64 since) {
        return list(device, count, to, 32, 0, 6, 1);
    }
    struct details { u32 version, mode, count; void *to; };
    int nvmlDeviceGetRunningProcessDetailList(void *device, struct details *of) {
        if (!of || of->version != 11) return 25;
        return list(device, &of->count, of->to, 32, 0, 0, 0);
    }
    struct uses { u32 version, count; u64 since; void *to; };
    int nvmlDeviceGetProcessesUtilizationInfo(void *device, struct uses *of) {
        if (!of || of->version != 11) return 25;
        return list(device, &of->count, of->to, 40, 8, 6, 1);
    }
    int nvmlDeviceGetAccountingStats(void *device, u32 pid, u64 *stats) {
        if (!device || !stats) return 2;
        for (u32 i = all(); i-- > 0;) if (pids[i] == pid) { memset(stats, 5, 56); return 0; }
        return 6;
    }
    int nvmlDeviceGetAccountingStats_v2(void *device, u32 *stats) {
        if (!device || !stats) return 2;
        return nvmlDeviceGetAccountingStats(device, *stats, (u64 *)stats);
    }
    u32 own_processes(void *device) {
        u32 count = 0;
        nvmlDeviceGetComputeRunningProcesses_v3(device, &count, 0);
        return count;
    }
"#;

/// Prints every list, with a buffer of no size, too small, just large enough and large.
const PROGRAM: &str = r#"
    #include <dlfcn.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    typedef unsigned int u32; typedef unsigned long long u64;
    struct details { u32 version, mode, count; void *to; };
    struct uses { u32 version, count; u64 since; void *to; };
    static void *nvml, *device = (void *)1;
    static void *at(const char *name) {
        void *found = dlsym(nvml, name);
        if (!found) { printf("no %s\n", name); exit(1); }
        return found;
    }
    static int ask(const char *name, u32 *count, void *to) {
        if (strstr(name, "ProcessUtilization"))
            return ((int (*)(void *, void *, u32 *, u64))at(name))(device, to, count, 0);
        if (strstr(name, "DetailList")) {
            struct details of = {11, 3, *count, to};
            int status = ((int (*)(void *, struct details *))at(name))(device, &of);
            *count = of.count;
            return of.version == 11 && of.mode == 3 && of.to == to ? status : -1;
        }
        if (strstr(name, "UtilizationInfo")) {
            struct uses of = {11, *count, 9, to};
            int status = ((int (*)(void *, struct uses *))at(name))(device, &of);
            *count = of.count;
            return of.version == 11 && of.since == 9 && of.to == to ? status : -1;
        }
        return ((int (*)(void *, u32 *, void *))at(name))(device, count, to);
    }
    static void show(const char *name, u32 bytes, u32 pid_at) {
        static unsigned char place[65536];
        u32 count = 0;
        int status = ask(name, &count, 0);
        u32 needed = count;
        printf("%s: %d %u;", name, status, count);
        count = 5; status = ask(name, &count, 0); printf(" %d %u;", status, count);
        if (needed) {
            count = needed - 1; status = ask(name, &count, place); printf(" %d %u;", status, count);
        }
        for (u32 room = needed; room <= needed + 9; room += 9) {
            memset(place, 0, sizeof place);
            count = room; status = ask(name, &count, place);
            printf(" %d %u", status, count);
            for (u32 i = 0; !status && i < count; i++) {
                u32 pid; memcpy(&pid, place + i * bytes + pid_at, 4);
                printf(" %u", pid);
                if (bytes > 4) printf("/%u", place[i * bytes + bytes - 1]);
            }
            for (u32 i = status ? 0 : count * bytes; i < sizeof place; i++)
                if (place[i]) { printf(" wrote beyond"); break; }
            printf(";");
        }
        printf("\n");
    }
    int main(void) {
        nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!nvml) return 1;
        u64 memory[3] = {0};
        ((int (*)(void *, u64 *))at("nvmlDeviceGetMemoryInfo"))(device, memory);
        printf("total %llu, its own %llu %llu\n", memory[0] >> 20, ((u64 (*)(void *))at("own_total"))(device) >> 20,
               ((u64 (*)(void *))at("own_total_v2"))(device) >> 20);
        printf("its own processes %u\n", ((u32 (*)(void *))at("own_processes"))(device));
        u32 wide = getenv("WIDE") ? 32 : 24;
        const char *kinds[] = {"Compute", "Graphics", "MPSCompute"};
        for (int i = 0; i < 3; i++) {
            char name[99];
            sprintf(name, "nvmlDeviceGet%sRunningProcesses", kinds[i]); show(name, 16, 0);
            sprintf(name, "nvmlDeviceGet%sRunningProcesses_v2", kinds[i]); show(name, 24, 0);
            sprintf(name, "nvmlDeviceGet%sRunningProcesses_v3", kinds[i]); show(name, wide, 0);
        }
        show("nvmlDeviceGetRunningProcessDetailList", 32, 0);
        show("nvmlDeviceGetProcessUtilization", 32, 0);
        show("nvmlDeviceGetProcessesUtilizationInfo", 40, 8);
        show("nvmlDeviceGetAccountingPids", 4, 0);
        char *next = getenv("PIDS");
        while (*next) {
            u32 stats[64] = {0}, again[64] = {0}, pid = strtoul(next, &next, 10);
            next += *next == ',';
            again[0] = pid;
            int one = ((int (*)(void *, u32, void *))at("nvmlDeviceGetAccountingStats"))(device, pid, stats);
            int two = ((int (*)(void *, void *))at("nvmlDeviceGetAccountingStats_v2"))(device, again);
            printf("stats of %u: %d %u, %d %u\n", pid, one, stats[1], two, again[1]);
        }
        printf("nothing: %d %d\n", ((int (*)(void *, u32 *, void *))at("nvmlDeviceGetAccountingPids"))(device, 0, 0),
               ((int (*)(void *, void *))at("nvmlDeviceGetRunningProcessDetailList"))(device, 0));
        return 0;
    }
"#;

/// A process that sleeps until it is dropped.
struct SleepingProcess(Child);

impl SleepingProcess {
    fn start() -> Self {
        let child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("there is a sleep"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for SleepingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process's start time in `/proc`.
fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let after = stat.rsplit(") ").next().expect("a name in brackets");
    let field = after.split(' ').nth(19).expect("a start time");
    field.parse().expect("a number")
}

/// Registers a process in an account, as its hooks would.
fn enter(account: &AgentAccount, pid: u32) {
    use std::os::unix::fs::MetadataExt;
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid")).expect("it runs");
    let registration = apportion_abi::account::ProcessRegistration {
        pid,
        start_time: start_time(pid),
        pid_namespace: namespace.ino(),
    };
    assert!(account.usage.usage().register(registration).is_some());
}

/// The library and the program, with a machine and an account to run them.
struct NvmlFixture {
    machine: MachineDaemon,
    account: AgentAccount,
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl NvmlFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"];
        compile(folder.path(), "libnvidia-ml.so.1", LIBRARY, &flags);
        let program = compile(folder.path(), "program", PROGRAM, &[]);
        let machine = MachineDaemon::start(&[8192]);
        let account = machine.account(&[1000]);
        Self {
            machine,
            account,
            folder,
            program,
        }
    }

    /// The program's output with these processes on the card, with a limit or without the library.
    fn said(&self, is_limited: bool, pids: &[u32], is_wide: bool) -> Vec<String> {
        let account = if is_limited {
            self.account.folder()
        } else {
            Path::new(NO_ACCOUNT)
        };
        let mut command = self.machine.command(&self.program, account);
        if !is_limited {
            command.env_remove("LD_PRELOAD");
        }
        let list: Vec<_> = pids.iter().map(ToString::to_string).collect();
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("CARD", uuid(0))
            .env("PIDS", list.join(","));
        if is_wide {
            command.env("WIDE", "1");
        }
        let output = command.output().expect("it was just built");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("plain text");
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn what_nvml_asks_itself_is_answered_by_nvml() {
    let stage = NvmlFixture::new();
    let neighbour = SleepingProcess::start();
    let limited = stage.said(true, &[neighbour.pid()], false);
    assert_eq!(limited[0], "total 1000, its own 16384 16384");
    assert_eq!(limited[1], "its own processes 1");
    assert!(limited[2].ends_with(" 0 0;"), "{}", limited[2]);
    let alone = stage.said(false, &[neighbour.pid()], false);
    assert_eq!(alone[0], "total 16384, its own 16384 16384");
}

/// With a limit, a program gets the lists that NVML would return if only its allocation's processes existed. That
/// holds for every buffer size: none, too small, enough, large, and for an empty list.
#[test]
fn lists_have_the_processes_of_the_allocation_and_no_others() {
    let stage = NvmlFixture::new();
    let all: Vec<_> = (0..100).map(|_| SleepingProcess::start()).collect();
    // Any subset would do: some from the front, the end, and between.
    let is_ours = |place: usize| place.is_multiple_of(7) || place == 99;
    for (_, sleeper) in all.iter().enumerate().filter(|(place, _)| is_ours(*place)) {
        enter(&stage.account, sleeper.pid());
    }
    for (from, to) in [(0, 100), (0, 1), (1, 7), (3, 20), (99, 100), (0, 0)] {
        for is_wide in [false, true] {
            let pids: Vec<_> = all[from..to].iter().map(SleepingProcess::pid).collect();
            let ours: Vec<_> = (from..to).filter(|place| is_ours(*place)).collect();
            let our_pids: Vec<_> = ours.iter().map(|place| all[*place].pid()).collect();
            let limited = stage.said(true, &pids, is_wide);
            let alone = stage.said(false, &our_pids, is_wide);
            // An entry is filled with its index in the whole list. The program must not see the filling of another
            // entry.
            let as_alone = renumbered(&limited, &ours, from);
            let lists = |lines: &[String]| -> Vec<String> {
                let lines = lines.iter().filter(|line| line.starts_with("nvml"));
                lines.cloned().collect()
            };
            assert_eq!(
                lists(&as_alone),
                lists(&alone),
                "{from}..{to}, wide {is_wide}"
            );
            for (pid, line) in pids
                .iter()
                .zip(limited.iter().filter(|line| line.starts_with("stats")))
            {
                let expected = if our_pids.contains(pid) {
                    format!("stats of {pid}: 0 84215045, 0 84215045")
                } else {
                    format!("stats of {pid}: 6 0, 6 0")
                };
                assert_eq!(*line, expected);
            }
            assert_eq!(limited.last(), alone.last(), "errors are the driver's own");
        }
    }
}

/// The lines with each entry's filling as if only our processes had been there.
fn renumbered(lines: &[String], ours: &[usize], from: usize) -> Vec<String> {
    let filling = |place: usize| (1 + place % 100).to_string();
    lines
        .iter()
        .map(|line| {
            let words = line.split(' ').map(|word| {
                let renamed = word.split_once('/').and_then(|(pid, was)| {
                    let was = was.trim_end_matches(';');
                    let now = ours.iter().position(|place| filling(place - from) == was)?;
                    Some(word.replace(&format!("{pid}/{was}"), &format!("{pid}/{}", filling(now))))
                });
                renamed.unwrap_or_else(|| word.to_owned())
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn a_process_of_another_namespace_with_the_same_number_is_not_ours() {
    let stage = NvmlFixture::new();
    let neighbour = SleepingProcess::start();
    let registration = apportion_abi::account::ProcessRegistration {
        pid: neighbour.pid(),
        start_time: start_time(neighbour.pid()),
        pid_namespace: 1,
    };
    assert!(stage.account.usage.usage().register(registration).is_some());
    let limited = stage.said(true, &[neighbour.pid()], false);
    assert!(limited[2].ends_with(" 0 0;"), "{}", limited[2]);
}
