//! The steps by which a program denies system calls, descriptors or memory to itself, and to the library in it.

use std::fs::File;
use std::os::fd::IntoRawFd;

use crate::script::{ScriptWords, StepOutcome, VictimProgram, misused};

/// The descriptor limit of a starved program.
const DESCRIPTORS: u64 = 64;

/// The calls that a filter matches: the number, and conditions on the low halves of some arguments.
struct DeniedSyscall {
    call: libc::c_long,
    arguments: Vec<(u32, ArgumentTest)>,
}

#[derive(Clone, Copy)]
enum ArgumentTest {
    Equals(u32),
    HasBit(u32),
}

impl VictimProgram {
    /// A step that takes something from this program. `None` for other verbs.
    pub(crate) fn denial_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let code = match verb {
            "deny" => {
                let kind = words.next().unwrap_or_else(|| misused("deny what?"));
                let errno = u32::try_from(words.number()).unwrap_or(u32::MAX);
                denied(&kind)
                    .iter()
                    .map(|denied| install(denied, errno))
                    .find(|code| *code != 0)
                    .unwrap_or(0)
            }
            "notify" => {
                let kind = words.next().unwrap_or_else(|| misused("notify of what?"));
                notify(&denied(&kind), words.number())
            }
            "prctl" => prctl(words.number(), words.number()),
            "personality" => personality(words.number()),
            "starve" => self.starve(words.number()),
            "feed" => {
                for descriptor in self.descriptors.drain(..) {
                    // SAFETY: it was opened by `starve`, and nothing else owns it.
                    unsafe { libc::close(descriptor) };
                }
                0
            }
            "lock" => lock_memory(words.bytes() as u64),
            "space" => limit(libc::RLIMIT_AS, words.bytes() as u64),
            _ => return None,
        };
        Some(StepOutcome::of(code))
    }

    /// Opens files until only `left` descriptors are free.
    fn starve(&mut self, left: u64) -> i32 {
        let limited = limit(libc::RLIMIT_NOFILE, DESCRIPTORS);
        while let Ok(file) = File::open("/dev/null") {
            self.descriptors.push(file.into_raw_fd());
        }
        for _ in 0..left {
            if let Some(descriptor) = self.descriptors.pop() {
                // SAFETY: it was opened above, and nothing else owns it.
                unsafe { libc::close(descriptor) };
            }
        }
        limited
    }
}

/// The calls of each kind of denial.
fn denied(kind: &str) -> Vec<DeniedSyscall> {
    let always = |call| DeniedSyscall {
        call,
        arguments: Vec::new(),
    };
    let where_bit = |call, place, bit: i32| DeniedSyscall {
        call,
        arguments: vec![(place, ArgumentTest::HasBit(bit.cast_unsigned()))],
    };
    // Younger machines, such as aarch64, have only the calls that name a folder.
    let opening = |bit| {
        vec![
            where_bit(libc::SYS_openat, 2, bit),
            #[cfg(target_arch = "x86_64")]
            where_bit(libc::SYS_open, 1, bit),
            #[cfg(target_arch = "x86_64")]
            always(libc::SYS_access),
            always(libc::SYS_faccessat),
        ]
    };
    match kind {
        // The loader makes no such mapping, so it still loads the library.
        "page" => vec![DeniedSyscall {
            call: libc::SYS_mmap,
            arguments: vec![
                (1, ArgumentTest::Equals(4096)),
                (
                    3,
                    ArgumentTest::Equals((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned()),
                ),
            ],
        }],
        "shared-maps" => vec![where_bit(libc::SYS_mmap, 3, libc::MAP_SHARED)],
        "open-for-writing" => opening(libc::O_RDWR),
        "open" => opening(libc::O_CLOEXEC),
        "advice" => vec![always(libc::SYS_madvise)],
        "locks" => vec![where_bit(libc::SYS_fcntl, 1, 0x20)],
        "pid" => vec![always(libc::SYS_getpid)],
        "stat" => vec![
            always(libc::SYS_fstat),
            always(libc::SYS_newfstatat),
            always(libc::SYS_statx),
        ],
        _ => misused(&format!("{kind} cannot be denied")),
    }
}

/// Makes the kernel return an error for these calls, or end the process if `errno` is 0, in this process and its
/// descendants.
fn install(denied: &DeniedSyscall, errno: u32) -> i32 {
    let verdict = match errno {
        0 => libc::SECCOMP_RET_KILL_PROCESS,
        errno => libc::SECCOMP_RET_ERRNO | errno,
    };
    match filter(denied, verdict, 0) {
        0.. => 0,
        failed => failed,
    }
}

/// Installs a filter with these flags and returns the kernel's result.
fn filter(denied: &DeniedSyscall, verdict: u32, flags: libc::c_ulong) -> i32 {
    let code = |bits: u32| u16::try_from(bits).unwrap_or(u16::MAX);
    let statement = |bits, k| libc::sock_filter {
        code: code(bits),
        jt: 0,
        jf: 0,
        k,
    };
    // A jump past the `left` remaining instructions, to the last one, which allows the call.
    let jump = |bits, k, left: usize| libc::sock_filter {
        code: code(bits),
        jt: 0,
        jf: u8::try_from(left).unwrap_or(u8::MAX),
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let has_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let number = u32::try_from(denied.call).unwrap_or(u32::MAX);
    let all = denied.arguments.len();
    let mut filter = vec![statement(load, 0), jump(equals, number, 2 * all + 1)];
    for (done, (place, test)) in denied.arguments.iter().enumerate() {
        let left = 2 * (all - done) - 1;
        // In a filter's input, the arguments start at byte 16, with eight bytes each.
        filter.push(statement(load, 16 + 8 * place));
        filter.push(match test {
            ArgumentTest::Equals(value) => jump(equals, *value, left),
            ArgumentTest::HasBit(bit) => jump(has_bit, *bit, left),
        });
    }
    filter.push(statement(libc::BPF_RET, verdict));
    filter.push(statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the arguments are numbers.
    let sworn = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if sworn != 0 {
        return sworn;
    }
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program and its instructions live for the call.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    i32::try_from(answer).unwrap_or(-1)
}

/// Lets a second process answer the first kind of these calls with `value`, as if they had succeeded.
///
/// That process shares this one's descriptors, and so the filter's. It ends with this process.
fn notify(denied: &[DeniedSyscall], value: u64) -> i32 {
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    let made = unsafe { libc::pipe(pipe.as_mut_ptr()) };
    let [read, write] = pipe;
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without a stack the call is like fork; this process has one thread.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        answer(read, value);
    }
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // The kernel allows one listener per process, so only one kind of call.
    let Some(first) = denied.first() else {
        return 1;
    };
    let listener = filter(first, libc::SECCOMP_RET_USER_NOTIF, flags);
    // SAFETY: the bytes live for the call.
    let told = unsafe { libc::write(write, (&raw const listener).cast(), size_of::<i32>()) };
    match (made, child, listener) {
        (0, 1.., 0..) if told == 4 => 0,
        _ => 1,
    }
}

/// Answers calls until there are no more.
fn answer(read: i32, value: u64) -> ! {
    let mut listener = -1_i32;
    // SAFETY: the arguments are numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    // SAFETY: the bytes live for the call.
    unsafe { libc::read(read, (&raw mut listener).cast(), size_of::<i32>()) };
    loop {
        // SAFETY: all zeroes is a valid value of this structure.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure lives for the call. The number is that of `SECCOMP_IOCTL_NOTIF_RECV`.
        if unsafe { libc::ioctl(listener, 0xc050_2100, &raw mut asked) } != 0 {
            // SAFETY: this process needs no cleanup.
            unsafe { libc::_exit(0) };
        }
        let mut reply = libc::seccomp_notif_resp {
            id: asked.id,
            val: value.cast_signed(),
            error: 0,
            flags: 0,
        };
        // SAFETY: the structure lives for the call. The number is that of `SECCOMP_IOCTL_NOTIF_SEND`.
        unsafe { libc::ioctl(listener, 0xc018_2101, &raw mut reply) };
    }
}

fn prctl(option: u64, argument: u64) -> i32 {
    let option = i32::try_from(option).unwrap_or(-1);
    match option {
        // SAFETY: the name is a C string constant.
        libc::PR_SET_NAME => unsafe { libc::prctl(option, c"v) R 1 (1".as_ptr(), 0, 0, 0) },
        // SAFETY: the other options in the tests take numbers.
        option => unsafe { libc::prctl(option, argument, 0, 0, 0) },
    }
}

/// Sets the personality of what this process executes next.
fn personality(bits: u64) -> i32 {
    // SAFETY: the argument is a number.
    match unsafe { libc::personality(bits) } {
        -1 => -1,
        _ => 0,
    }
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) -> i32 {
    let limits = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: the structure lives for the call.
    unsafe { libc::setrlimit(resource, &raw const limits) }
}

/// Locks all future mappings of this program, with a limit of `most` bytes. Root may lock without limit, so the
/// capabilities are dropped first.
fn lock_memory(most: u64) -> i32 {
    let limited = limit(libc::RLIMIT_MEMLOCK, most);
    // Version 3 of `capset`'s structures: this process, with no capability in any set.
    let head: [u32; 2] = [0x2008_0522, 0];
    let none = [0_u32; 6];
    // SAFETY: the structures have the sizes of this version and live for the call.
    let dropped = unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) };
    // SAFETY: the argument is a number.
    let locked = unsafe { libc::mlockall(libc::MCL_FUTURE) };
    match (limited, dropped, locked) {
        (0, 0, 0) => 0,
        _ => 1,
    }
}
