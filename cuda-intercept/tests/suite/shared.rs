//! One account with many processes and threads: the limit applies to the sum.

use std::env;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;

use crate::cuda::OUT_OF_MEMORY;
use crate::harmless::compile;
use crate::stage::{CONTEXT, MIB, eventually, held, limited, this_program};

/// Starts the calling test again as another process that does `what`.
fn beside(test: &str, what: &str) -> Command {
    let mut command = Command::new(this_program());
    command
        .args([test, "--exact", "--nocapture"])
        .env("APPORTION_TEST_BESIDE", what)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn role() -> Option<String> {
    env::var("APPORTION_TEST_BESIDE").ok()
}

#[test]
fn two_processes_share_one_limit() {
    const NAME: &str = "shared::two_processes_share_one_limit";
    limited(&[2000], |cuda, account| {
        if role().is_some() {
            assert_eq!(cuda.info().0, 400 * MIB - CONTEXT + CONTEXT);
            assert_eq!(cuda.alloc(500 * MIB), Err(OUT_OF_MEMORY));
            assert!(cuda.alloc(400 * MIB).is_ok());
            return;
        }
        let bytes = 1600 * MIB - 2 * CONTEXT;
        cuda.alloc(bytes).expect("it fits");
        let status = beside(NAME, "other").status().expect("it starts");
        assert!(status.success());
        assert!(account.claimed(0) <= 2000 * MIB);
        // The other process was killed. What it held is taken out when room is needed.
        cuda.alloc(400 * MIB).expect("the dead make room");
        assert_eq!(account.claimed(0), CONTEXT + bytes + 400 * MIB);
    });
}

#[test]
fn what_a_process_held_is_seen_free_as_soon_as_it_is_gone() {
    const NAME: &str = "shared::what_a_process_held_is_seen_free_as_soon_as_it_is_gone";
    limited(&[2000], |cuda, account| {
        if role().is_some() {
            cuda.alloc(700 * MIB).expect("it fits");
            return;
        }
        let (free, _) = cuda.info();
        let status = beside(NAME, "other").status().expect("it starts");
        assert!(status.success());
        // No agent runs here that could have taken it out.
        assert_eq!(account.claimed(0), 2 * CONTEXT + 700 * MIB);
        assert_eq!(cuda.info().0, free);
        assert_eq!(account.claimed(0), CONTEXT);
    });
}

#[test]
fn threads_and_processes_together_stay_below_the_limit() {
    const NAME: &str = "shared::threads_and_processes_together_stay_below_the_limit";
    limited(&[3000], |cuda, account| {
        let churn = |seed: u64| {
            let mut context = std::ptr::null_mut();
            assert_eq!(cuda.primary_retain(&raw mut context, 0), 0);
            assert_eq!(cuda.set_current(context), 0);
            let mut live = Vec::new();
            for step in 0..150_u64 {
                let bytes = (step * 7919 + seed * 104_729) % (90 * MIB) + 1;
                live.extend(cuda.alloc(bytes));
                assert!(account.claimed(0) <= 3000 * MIB + 4 * 90 * MIB);
                if live.len() > 6 {
                    assert_eq!(cuda.mem_free(live.remove(step as usize % 5)), 0);
                }
            }
            live.into_iter()
                .for_each(|address| assert_eq!(cuda.mem_free(address), 0));
        };
        if role().is_some() {
            return churn(17);
        }
        let mut others: Vec<_> = (0..2)
            .map(|_| beside(NAME, "other").spawn().expect("it starts"))
            .collect();
        let mut most = 0;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|seed| scope.spawn(move || churn(seed)))
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                most = most.max(held(0));
            }
        });
        for other in &mut others {
            assert!(other.wait().expect("it was started").success());
        }
        assert!(most <= 3000 * MIB, "{most}");
        assert_eq!(held(0), CONTEXT);
    });
}

#[test]
fn a_killed_process_s_memory_is_taken_out_once() {
    const NAME: &str = "shared::a_killed_process_s_memory_is_taken_out_once";
    limited(&[2000], |cuda, account| {
        if role().is_some() {
            cuda.alloc(800 * MIB).expect("it fits");
            loop {
                thread::park();
            }
        }
        let mut other = beside(NAME, "other").spawn().expect("it starts");
        let all = 2 * CONTEXT + 800 * MIB;
        eventually("the other allocates", || {
            (account.claimed(0) == all).then_some(())
        });
        assert_eq!(cuda.alloc(1000 * MIB), Err(OUT_OF_MEMORY));
        other.kill().expect("it runs");
        other.wait().expect("it was started");
        cuda.alloc(1000 * MIB).expect("the dead make room");
        assert_eq!(account.claimed(0), CONTEXT + 1000 * MIB);
    });
}

/// Whether a process has ended with all its threads, but nobody has waited for it.
fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    let (_, fields) = stat.rsplit_once(") ").expect("its name is in brackets");
    let fields: Vec<&str> = fields.split(' ').collect();
    // The first thread is a zombie while other threads are still ending.
    (fields[0], fields[17]) == ("Z", "1")
}

/// A zombie holds nothing. Its memory is available at the first attempt, without an agent.
#[test]
fn memory_of_a_process_that_nobody_waited_for_is_had_at_the_first_attempt() {
    const NAME: &str =
        "shared::memory_of_a_process_that_nobody_waited_for_is_had_at_the_first_attempt";
    limited(&[2000], |cuda, account| {
        if role().is_some() {
            cuda.alloc(800 * MIB).expect("it fits");
            loop {
                thread::park();
            }
        }
        for _ in 0..5 {
            let mut other = beside(NAME, "other").spawn().expect("it starts");
            let all = 2 * CONTEXT + 800 * MIB;
            eventually("the other allocates", || {
                (account.claimed(0) == all).then_some(())
            });
            // Twice, so that the second attempt takes the quick check for dead processes.
            assert_eq!(cuda.alloc(1000 * MIB), Err(OUT_OF_MEMORY));
            assert_eq!(cuda.alloc(1000 * MIB), Err(OUT_OF_MEMORY));
            other.kill().expect("it runs");
            eventually("it is a zombie", || is_zombie(other.id()).then_some(()));
            let address = cuda.alloc(1000 * MIB).expect("the dead make room");
            assert_eq!(account.claimed(0), CONTEXT + 1000 * MIB);
            assert_eq!(cuda.mem_free(address), 0);
            other.wait().expect("it was started");
        }
    });
}

/// A query shows what any process freed, at most 10 ms late.
#[test]
fn memory_of_a_process_that_nobody_waited_for_is_seen_free_soon() {
    const NAME: &str = "shared::memory_of_a_process_that_nobody_waited_for_is_seen_free_soon";
    limited(&[2000], |cuda, account| {
        if role().is_some() {
            cuda.alloc(800 * MIB).expect("it fits");
            loop {
                thread::park();
            }
        }
        let (free, _) = cuda.info();
        let mut other = beside(NAME, "other").spawn().expect("it starts");
        let all = 2 * CONTEXT + 800 * MIB;
        eventually("the other allocates", || {
            (account.claimed(0) == all).then_some(())
        });
        assert!(cuda.info().0 < free);
        other.kill().expect("it runs");
        eventually("it is seen", || (cuda.info().0 == free).then_some(()));
        other.wait().expect("it was started");
    });
}

/// The processor time of this thread, in nanoseconds.
fn processor_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is a time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The processor time of one call, averaged over many, in the best of several rounds: the others were disturbed.
fn cost(call: impl Fn()) -> u64 {
    const CALLS: u64 = 200;
    (0..7)
        .map(|_| {
            let before = processor_time();
            (0..CALLS).for_each(|_| call());
            (processor_time() - before) / CALLS
        })
        .min()
        .expect("there are rounds")
}

/// The other processes only have to exist. To read `/proc` takes 3 to 8 us for each, so at least 120 us for 40; both
/// figures include the driver's own answer.
#[test]
fn questions_and_refusals_cost_the_same_whoever_is_in_the_account() {
    const NAME: &str = "shared::questions_and_refusals_cost_the_same_whoever_is_in_the_account";
    const OTHERS: usize = 40;
    crate::stage::on(&[65_536], &[60_000], |cuda, account| {
        if role().is_some() {
            std::io::stdin()
                .read_to_end(&mut Vec::new())
                .expect("it is a pipe");
            return;
        }
        let question = || assert!(cuda.info().1 > 0);
        let refusal = || assert_eq!(cuda.alloc(61_000 * MIB), Err(OUT_OF_MEMORY));
        let alone = (cost(question), cost(refusal));
        let descriptors = || {
            fs::read_dir("/proc/self/fd")
                .expect("it is mounted")
                .count()
        };
        let others: Vec<_> = (0..OTHERS)
            .map(|_| beside(NAME, "other").stdin(Stdio::piped()).spawn())
            .map(|other| other.expect("it starts"))
            .collect();
        let before = descriptors();
        let all = OTHERS + 1;
        eventually("all are in", || {
            let processes = account.usage.usage().processes().count();
            (processes == all && account.claimed(0) == all as u64 * CONTEXT).then_some(())
        });
        let among = (cost(question), cost(refusal));
        assert_eq!(descriptors(), before, "nothing is kept open");
        println!("alone {alone:?} ns, among {OTHERS} others {among:?} ns");
        assert!(
            among.0 < alone.0 + 15_000,
            "a question: {alone:?}, {among:?}"
        );
        assert!(
            among.1 < alone.1 + 60_000,
            "a refusal: {alone:?}, {among:?}"
        );
        for mut other in others {
            drop(other.stdin.take());
            assert!(other.wait().expect("it was started").success());
        }
    });
}

/// A child of `fork` has its own state and its own slot, even if another thread of the parent was inside a hook.
#[test]
fn a_forked_child_starts_with_nothing() {
    limited(&[2000], |cuda, account| {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut context = std::ptr::null_mut();
                cuda.primary_retain(&raw mut context, 0);
                cuda.set_current(context);
                for _ in 0..2000 {
                    let address = cuda.alloc(4096).expect("it fits");
                    assert_eq!(cuda.mem_free(address), 0);
                }
            });
            let mut children = 0;
            while !worker.is_finished() {
                // SAFETY: the child calls the hooks and leaves.
                match unsafe { libc::fork() } {
                    0 => {
                        // SAFETY: has no preconditions; a child that hangs ends and fails the test.
                        unsafe { libc::alarm(5) };
                        // This pointer is not the child's, so the driver decides about it.
                        cuda.mem_free(0xdead_0000);
                        let mut address = 0;
                        cuda.mem_alloc(&raw mut address, 4096);
                        // SAFETY: ends the child without running what belongs to the parent.
                        unsafe { libc::_exit(9) };
                    }
                    child => {
                        assert!(child > 0);
                        let status = eventually("the child ends", || {
                            let mut status = 0;
                            // SAFETY: the child is ours, the pointer is to a local variable.
                            let done =
                                unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
                            (done == child).then_some(status)
                        });
                        assert_eq!(
                            (libc::WIFEXITED(status), libc::WEXITSTATUS(status)),
                            (true, 9)
                        );
                        children += 1;
                    }
                }
            }
            assert!(children > 0);
        });
        assert!(account.claimed(0) >= CONTEXT);
    });
}

/// A process whose first thread has exited looks dead, while the others continue with all that it holds.
#[test]
fn a_process_without_its_first_thread_is_not_taken_for_dead() {
    const PROGRAM: &str = r#"
        #include <dlfcn.h>
        #include <pthread.h>
        #include <unistd.h>
        static void *stay(void *_) { for (;;) pause(); }
        int main(void) {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
            unsigned long address;
            pthread_t other;
            if (((int (*)(unsigned))dlsym(driver, "cuInit"))(0)) return 1;
            if (((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)) return 2;
            if (((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context)) return 3;
            if (((int (*)(void *, long))dlsym(driver, "cuMemAlloc_v2"))(&address, 800l << 20)) return 4;
            pthread_create(&other, 0, stay, 0);
            pthread_exit(0);
        }"#;
    limited(&[2000], |cuda, account| {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let program = compile(folder.path(), "headless", PROGRAM, &["-pthread"]);
        let mut other = Command::new(program)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it was just built");
        let stat = format!("/proc/{}/stat", other.id());
        eventually("the first thread leaves", || {
            let stat = fs::read_to_string(&stat).expect("the process is there");
            stat.contains(") Z ").then_some(())
        });
        let all = 2 * CONTEXT + 800 * MIB;
        assert_eq!(account.claimed(0), all);
        assert_eq!(cuda.alloc(1000 * MIB), Err(OUT_OF_MEMORY));
        assert_eq!(account.claimed(0), all);
        other.kill().expect("it runs");
        other.wait().expect("it was started");
    });
}

/// `exec` keeps pid and start time, but what the old program held is gone.
#[test]
fn an_exec_leaves_nothing_behind() {
    const NAME: &str = "shared::an_exec_leaves_nothing_behind";
    limited(&[2000], |cuda, account| {
        if role().is_some() {
            cuda.alloc(100 * MIB).expect("it fits");
            assert_eq!(account.claimed(0), CONTEXT + 100 * MIB);
            return;
        }
        cuda.alloc(900 * MIB).expect("it fits");
        let error = std::os::unix::process::CommandExt::exec(
            beside(NAME, "after").stdout(Stdio::inherit()),
        );
        panic!("{error}");
    });
}
