//! A capture survives with a limit exactly what it survives without one.
//!
//! One script runs twice, with the driver alone and with a limit, and records every status. For each capture mode and
//! each mode of the calling thread it begins a capture, calls one function, in the capturing thread and in another,
//! and ends the capture. The calls are every row of the table with zeroes as arguments, and a list that makes hooks
//! query the driver.

use std::env;
use std::ffi::{CStr, c_int};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread;

use apportion_intercept::{DriverLibrary, ROWS};

use crate::cuda::{LoadedCuda, PinnedProperties, Pointer};
use crate::stage::{MIB, MachineDaemon, NO_ACCOUNT, run_inside, this_program};

/// The file in which a run records its results.
const TRANSCRIPT: &str = "APPORTION_TEST_TRANSCRIPT";
/// In this calling convention, a function takes the arguments that it needs and ignores the rest.
type Any =
    unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> c_int;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, `_THREAD_LOCAL` and `_RELAXED`.
const MODES: [u32; 3] = [0, 1, 2];
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u64 = 1;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: u64 = 4;
/// The text of an image without variables.
const IMAGE: &CStr = c".version 8.0\n.target sm_80\n.address_size 64\n";

/// Calls a function of the driver with these arguments, and zeroes for the rest.
fn call(cuda: &LoadedCuda, symbol: &CStr, arguments: &[u64]) -> c_int {
    let address = cuda.address(symbol);
    assert!(address != 0, "the driver has no {symbol:?}");
    let mut all = [0; 12];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f, g, h, i, j, k, l] = all;
    // SAFETY: the address is that of a function with at most twelve arguments of at most 64 bits.
    let function: Any = unsafe { std::mem::transmute(address) };
    // SAFETY: the caller passes what the driver takes; drivers refuse null pointers.
    unsafe { function(a, b, c, d, e, f, g, h, i, j, k, l) }
}

/// Calls a function that writes one number to its first argument; it must succeed.
#[track_caller]
fn get(cuda: &LoadedCuda, symbol: &CStr, rest: &[u64]) -> u64 {
    let mut value = 0_u64;
    let place = [&raw mut value as u64];
    let status = call(cuda, symbol, &[&place, rest].concat());
    assert_eq!(status, 0, "{symbol:?}");
    value
}

/// The state of a program when a capture begins.
struct CaptureFixture<'a> {
    cuda: &'a LoadedCuda,
    context: u64,
    /// The stream that is captured, and one that is not.
    captured: u64,
    other: u64,
    /// Linear memory, memory of the default pool, and memory of a pool that was destroyed.
    linear: u64,
    pooled: u64,
    doomed: u64,
    /// A pool that reserves more than it uses.
    pool: u64,
    /// A function that was never launched, one that uses local memory, and their module.
    module: u64,
    function: u64,
    spilling: u64,
    /// An executable graph that allocates, and the graph that it was instantiated from.
    exec: u64,
    graph: u64,
    event: u64,
}

/// Allocates from a pool in a stream.
fn from_pool(cuda: &LoadedCuda, pool: u64, bytes: u64, stream: u64) -> u64 {
    get(cuda, c"cuMemAllocFromPoolAsync", &[bytes, pool, stream])
}

fn keeping_pool(cuda: &LoadedCuda) -> u64 {
    let (mut pool, mut keep): (Pointer, _) = (std::ptr::null_mut(), u64::MAX);
    assert_eq!(
        cuda.pool_create(&raw mut pool, &PinnedProperties::device(0)),
        0
    );
    let keep = [pool as u64, RELEASE_THRESHOLD, &raw mut keep as u64];
    assert_eq!(call(cuda, c"cuMemPoolSetAttribute", &keep), 0);
    pool as u64
}

impl<'a> CaptureFixture<'a> {
    /// A fixture whose captured stream has these flags.
    fn new(cuda: &'a LoadedCuda, flags: u64) -> Self {
        let context = get(cuda, c"cuDevicePrimaryCtxRetain", &[0]);
        assert_eq!(call(cuda, c"cuCtxSetCurrent", &[context]), 0);
        let captured = get(cuda, c"cuStreamCreate", &[flags]);
        let other = get(cuda, c"cuStreamCreate", &[NON_BLOCKING]);
        let pool = keeping_pool(cuda);
        let spare = from_pool(cuda, pool, 8 * MIB, other);
        assert_eq!(call(cuda, c"cuMemFreeAsync", &[spare, other]), 0);
        let destroyed = keeping_pool(cuda);
        let doomed = from_pool(cuda, destroyed, MIB, other);
        assert_eq!(call(cuda, c"cuMemPoolDestroy", &[destroyed]), 0);
        let module = get(cuda, c"cuModuleLoadData", &[IMAGE.as_ptr() as u64]);
        let function = |name: &CStr| {
            get(
                cuda,
                c"cuModuleGetFunction",
                &[module, name.as_ptr() as u64],
            )
        };
        let (graph, exec) = allocating(cuda);
        Self {
            cuda,
            context,
            captured,
            other,
            linear: get(cuda, c"cuMemAlloc_v2", &[MIB]),
            pooled: get(cuda, c"cuMemAllocAsync", &[MIB, other]),
            doomed,
            pool,
            module,
            function: function(c"plain"),
            spilling: function(c"local_2048b"),
            exec,
            graph,
            event: get(cuda, c"cuEventCreate", &[0]),
        }
    }

    /// Frees what is left.
    fn end(self) {
        let cuda = self.cuda;
        let _ = call(cuda, c"cuGraphExecDestroy", &[self.exec]);
        let _ = call(cuda, c"cuGraphDestroy", &[self.graph]);
        let _ = call(cuda, c"cuModuleUnload", &[self.module]);
        for address in [self.linear, self.pooled, self.doomed] {
            let _ = call(cuda, c"cuMemFree_v2", &[address]);
        }
        let _ = call(cuda, c"cuMemPoolDestroy", &[self.pool]);
        let _ = call(cuda, c"cuEventDestroy_v2", &[self.event]);
        let _ = call(cuda, c"cuStreamDestroy_v2", &[self.captured]);
        let _ = call(cuda, c"cuStreamDestroy_v2", &[self.other]);
        let _ = call(cuda, c"cuDevicePrimaryCtxRelease_v2", &[0]);
    }

    fn call(&self, symbol: &CStr, arguments: &[u64]) -> c_int {
        call(self.cuda, symbol, arguments)
    }

    /// Launches one thread of a function.
    fn launch(&self, function: u64, stream: u64) -> c_int {
        let shape = [function, 1, 1, 1, 1, 1, 1, 0, stream];
        self.call(c"cuLaunchKernel", &shape)
    }
}

/// A captured graph that allocates and frees, and its executable form.
fn allocating(cuda: &LoadedCuda) -> (u64, u64) {
    let stream = get(cuda, c"cuStreamCreate", &[NON_BLOCKING]);
    assert_eq!(call(cuda, c"cuStreamBeginCapture_v2", &[stream, 2]), 0);
    let address = get(cuda, c"cuMemAllocAsync", &[4 * MIB, stream]);
    assert_eq!(call(cuda, c"cuMemFreeAsync", &[address, stream]), 0);
    let mut graph = 0_u64;
    let end = [stream, &raw mut graph as u64];
    assert_eq!(call(cuda, c"cuStreamEndCapture", &end), 0);
    assert_eq!(call(cuda, c"cuStreamDestroy_v2", &[stream]), 0);
    let exec = get(cuda, c"cuGraphInstantiateWithFlags", &[graph, 0]);
    (graph, exec)
}

/// A place for results that the calls below ignore.
fn out() -> u64 {
    Box::leak(Box::new([0_u64; 16])).as_mut_ptr() as u64
}

/// A call of a program, with its name.
type Step = (&'static str, fn(&CaptureFixture<'_>) -> c_int);

/// Calls with valid arguments, which succeed if no stream is captured.
const STEPS: &[Step] = &[
    ("allocate", |s| s.call(c"cuMemAlloc_v2", &[out(), MIB])),
    ("free", |s| s.call(c"cuMemFree_v2", &[s.linear])),
    ("free pooled", |s| s.call(c"cuMemFree_v2", &[s.pooled])),
    ("allocate in the capture", |s| {
        s.call(c"cuMemAllocAsync", &[out(), MIB, s.captured])
    }),
    ("allocate beside the capture", |s| {
        s.call(c"cuMemAllocAsync", &[out(), MIB, s.other])
    }),
    ("allocate in the null stream", |s| {
        s.call(c"cuMemAllocAsync", &[out(), MIB, 0])
    }),
    ("allocate from a pool beside it", |s| {
        s.call(c"cuMemAllocFromPoolAsync", &[out(), MIB, s.pool, s.other])
    }),
    ("allocate and free in the capture", |s| {
        let place = out();
        let status = s.call(c"cuMemAllocAsync", &[place, MIB, s.captured]);
        // SAFETY: the place was made above and holds an address.
        let address = unsafe { (place as *const u64).read() };
        match status {
            0 => s.call(c"cuMemFreeAsync", &[address, s.captured]),
            status => status,
        }
    }),
    ("free pooled memory in the capture", |s| {
        s.call(c"cuMemFreeAsync", &[s.pooled, s.captured])
    }),
    ("free pooled memory beside it", |s| {
        s.call(c"cuMemFreeAsync", &[s.pooled, s.other])
    }),
    ("free memory of a destroyed pool beside it", |s| {
        s.call(c"cuMemFreeAsync", &[s.doomed, s.other])
    }),
    ("free memory of a destroyed pool in the null stream", |s| {
        s.call(c"cuMemFreeAsync", &[s.doomed, 0])
    }),
    ("how much is free", |s| {
        s.call(c"cuMemGetInfo_v2", &[out(), out()])
    }),
    ("how large the card is", |s| {
        s.call(c"cuDeviceTotalMem_v2", &[out(), 0])
    }),
    ("create physical memory", |s| {
        let mut handle = 0;
        let properties = PinnedProperties::device(0);
        let bytes = (2 * MIB) as usize;
        let status = s.cuda.mem_create(&raw mut handle, bytes, &properties, 0);
        match status {
            0 => s.cuda.mem_release(handle),
            status => status,
        }
    }),
    (
        "create physical memory in place of what a pool keeps",
        |s| {
            let mut handle = 0;
            let properties = PinnedProperties::device(0);
            let bytes = s.spare() as usize;
            let status = s.cuda.mem_create(&raw mut handle, bytes, &properties, 0);
            match status {
                0 => s.cuda.mem_release(handle),
                status => status,
            }
        },
    ),
    ("launch in the capture", |s| {
        s.launch(s.function, s.captured)
    }),
    ("launch beside it", |s| s.launch(s.function, s.other)),
    ("launch what needs room in the capture", |s| {
        s.launch(s.spilling, s.captured)
    }),
    ("launch what needs room beside it", |s| {
        s.launch(s.spilling, s.other)
    }),
    ("load code", |s| {
        s.call(c"cuModuleLoadData", &[out(), IMAGE.as_ptr() as u64])
    }),
    ("launch a graph in the capture", |s| {
        s.call(c"cuGraphLaunch", &[s.exec, s.captured])
    }),
    ("launch a graph beside it", |s| {
        s.call(c"cuGraphLaunch", &[s.exec, s.other])
    }),
    ("upload a graph beside it", |s| {
        s.call(c"cuGraphUpload", &[s.exec, s.other])
    }),
    ("make a graph executable", |s| {
        s.call(c"cuGraphInstantiateWithFlags", &[out(), s.graph, 0])
    }),
    ("wait for the captured stream", |s| {
        s.call(c"cuStreamSynchronize", &[s.captured])
    }),
    ("wait for another stream", |s| {
        s.call(c"cuStreamSynchronize", &[s.other])
    }),
    ("wait for the null stream", |s| {
        s.call(c"cuStreamSynchronize", &[0])
    }),
    ("wait for the context", |s| s.call(c"cuCtxSynchronize", &[])),
    ("wait for an event", |s| {
        s.call(c"cuEventSynchronize", &[s.event])
    }),
    ("record and wait for an event of the capture", |s| {
        match s.call(c"cuEventRecord", &[s.event, s.captured]) {
            0 => s.call(c"cuEventSynchronize", &[s.event]),
            status => status,
        }
    }),
    ("trim a pool", |s| s.call(c"cuMemPoolTrimTo", &[s.pool, 0])),
    ("trim the pool of graphs", |s| {
        s.call(c"cuDeviceGraphMemTrim", &[0])
    }),
    ("destroy a pool", |s| s.call(c"cuMemPoolDestroy", &[s.pool])),
    ("create a pool", |s| {
        let mut pool = std::ptr::null_mut();
        s.cuda
            .pool_create(&raw mut pool, &PinnedProperties::device(0))
    }),
    ("set a limit of the context", |s| {
        s.call(c"cuCtxSetLimit", &[2, 8 * MIB])
    }),
    ("copy to the host", |s| {
        s.call(c"cuMemcpyDtoH_v2", &[out(), s.linear, 8])
    }),
];

impl CaptureFixture<'_> {
    /// A little more than a limit of 1500 MiB leaves free, so that it fits only if the pool is trimmed. A run without a
    /// limit gets a fixed size.
    fn spare(&self) -> u64 {
        const LIMIT: u64 = 1500 * MIB;
        let account = env::var_os(apportion_abi::paths::ENV_ACCOUNT).expect("every run has one");
        let claimed = if Path::new(&account).exists() {
            crate::stage::AgentAccount::inherited().claimed(0)
        } else {
            return 64 * MIB;
        };
        (LIMIT - claimed + 2 * MIB).next_multiple_of(2 * MIB)
    }
}

/// One case: the status of the call, the state of the capture, and how it ended.
fn case(
    scene: &CaptureFixture<'_>,
    modes: (u32, u32),
    is_aside: bool,
    step: &(dyn Fn() -> c_int + Sync),
) -> String {
    let (capture_mode, thread_mode) = modes;
    let begin = [scene.captured, u64::from(capture_mode)];
    assert_eq!(scene.call(c"cuStreamBeginCapture_v2", &begin), 0);
    let in_mode = || {
        let mut mode = thread_mode;
        let exchange = |mode: &mut u32| {
            let place = [std::ptr::from_mut(mode) as u64];
            scene.call(c"cuThreadExchangeStreamCaptureMode", &place)
        };
        assert_eq!(exchange(&mut mode), 0);
        let status = step();
        assert_eq!(exchange(&mut mode), 0);
        assert_eq!(mode, thread_mode, "the mode is as the program set it");
        status
    };
    let status = if is_aside {
        thread::scope(|threads| {
            let aside = threads.spawn(|| {
                let _ = scene.call(c"cuCtxSetCurrent", &[scene.context]);
                in_mode()
            });
            aside.join().expect("it does not panic")
        })
    } else {
        in_mode()
    };
    let (mut capturing, mut graph) = (0_u64, 7_u64);
    let asked = scene.call(
        c"cuStreamIsCapturing",
        &[scene.captured, &raw mut capturing as u64],
    );
    let ended = scene.call(
        c"cuStreamEndCapture",
        &[scene.captured, &raw mut graph as u64],
    );
    if graph > 7 {
        let _ = scene.call(c"cuGraphDestroy", &[graph]);
    }
    let has_graph = graph > 7;
    format!("{status}, asked {asked} {capturing}, ended {ended} {has_graph}")
}

/// All cases of one call.
fn cases(
    cuda: &LoadedCuda,
    name: &str,
    seen: &mut String,
    step: &(dyn Fn(&CaptureFixture<'_>) -> c_int + Sync),
) {
    for (capture_mode, thread_mode) in MODES
        .into_iter()
        .flat_map(|one| MODES.map(|two| (one, two)))
    {
        for is_aside in [false, true] {
            // A blocking stream in every other case.
            let flags = u64::from(capture_mode == thread_mode);
            let scene = CaptureFixture::new(cuda, flags);
            let modes = (capture_mode, thread_mode);
            let line = case(&scene, modes, is_aside, &|| step(&scene));
            writeln!(seen, "{name}, {modes:?}, aside {is_aside}: {line}").expect("room");
            scene.end();
        }
    }
}

fn script(cuda: &LoadedCuda) -> String {
    let mut seen = String::new();
    for (name, step) in STEPS {
        cases(cuda, name, &mut seen, &|scene| step(scene));
    }
    for row in ROWS.iter().filter(|row| row.library == DriverLibrary::Cuda) {
        if cuda.address(row.symbol) != 0 {
            let name = row.symbol.to_str().expect("names are plain");
            cases(cuda, name, &mut seen, &|scene| scene.call(row.symbol, &[]));
        }
    }
    seen
}

#[test]
fn a_capture_survives_under_a_limit_what_it_survives_without() {
    fn run<F: Fn()>(machine: &MachineDaemon, account: &Path, is_limited: bool, _: &F) -> String {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let file = folder.path().join("transcript");
        let mut command = machine.command(this_program(), account);
        command.env(TRANSCRIPT, &file);
        if !is_limited {
            command.env_remove("LD_PRELOAD");
        }
        run_inside::<F>(&mut command);
        fs::read_to_string(file).expect("the run wrote it")
    }
    let body = || {
        let file = env::var_os(TRANSCRIPT).expect("the run outside has set it");
        fs::write(file, script(&LoadedCuda::load())).expect("the folder is writable");
    };
    if env::var_os(TRANSCRIPT).is_some() {
        return body();
    }
    let machine = MachineDaemon::start(&[8192]);
    let account = machine.account(&[1500]);
    let alone = run(&machine, Path::new(NO_ACCOUNT), false, &body);
    let limited = run(&machine, account.folder(), true, &body);
    let differences: Vec<_> = alone
        .lines()
        .zip(limited.lines())
        .filter(|(alone, limited)| alone != limited)
        .collect();
    assert_eq!(alone.lines().count(), limited.lines().count());
    assert!(
        differences.is_empty(),
        "{} of {} cases, alone and limited: {differences:#?}",
        differences.len(),
        alone.lines().count(),
    );
    // The script must be meaningful: some captures were broken, and others were not.
    let ended = |how| alone.lines().filter(|line| line.ends_with(how)).count();
    let (broken, kept) = (ended("901 false"), ended("0 true"));
    assert!(broken > 200 && kept > 1000, "{broken} broken, {kept} kept");
}
