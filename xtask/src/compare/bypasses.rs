//! Bypasses of a limit. Each is one program that takes memory in one way until it is refused or has three times the
//! limit.
//!
//! A row names the bypass and what the documentation says that Apportion does about it. A bypass that does not exceed
//! the limit even without a library says nothing about libraries. The table shows it as not covered by the simulated
//! driver.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;

use super::CompareSetup;
use super::machine::CompareMachine;
use super::memory_limiter::MemoryLimiter;
use super::report::{CompareReport, CompareTable};

/// The timeout of one program.
const TIME: Duration = Duration::from_secs(30);
/// The memory of the card, in GiB.
const CARD_GIB: u64 = 16;

/// What the documentation says that Apportion does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DocumentedResult {
    Holds,
    /// The limit is bypassed.
    LetsThrough,
}
use DocumentedResult::{Holds, LetsThrough};

struct BypassAttempt {
    what: &'static str,
    program: &'static str,
    name: &'static str,
    load: BypassLoad,
    documented: DocumentedResult,
}

/// The arguments of the program.
#[derive(Clone, Copy)]
struct BypassLoad {
    limit: u64,
    target: u64,
    block: u64,
    processes: u64,
    threads: u64,
}

/// Blocks of 32 MiB up to 6016 MiB, under a limit of 2000 MiB.
const USUAL: BypassLoad = BypassLoad {
    limit: 2000,
    target: 6016,
    block: 32,
    processes: 1,
    threads: 1,
};

const fn way(
    what: &'static str,
    name: &'static str,
    documented: DocumentedResult,
) -> BypassAttempt {
    BypassAttempt {
        what,
        program: "ways",
        name,
        load: USUAL,
        documented,
    }
}

const fn loaded(
    what: &'static str,
    name: &'static str,
    load: BypassLoad,
    documented: DocumentedResult,
) -> BypassAttempt {
    BypassAttempt {
        what,
        program: "ways",
        name,
        load,
        documented,
    }
}

const WAYS: &[BypassAttempt] = &[
    way("`cuMemAlloc`", "cuMemAlloc", Holds),
    // 32-bit addresses end before 2000 MiB do.
    loaded(
        "`cuMemAlloc` of CUDA 3.1 (limit 1000 MiB)",
        "cuMemAlloc-v1",
        BypassLoad {
            limit: 1000,
            ..USUAL
        },
        Holds,
    ),
    way("managed memory", "managed", Holds),
    way("`cuMemAllocPitch` with rows of 513 bytes", "pitch", Holds),
    way("freed twice", "free-twice", Holds),
    way(
        "freed in stream order, then again at once",
        "free-both-ways",
        Holds,
    ),
    way("arrays of two dimensions", "array", Holds),
    way("arrays of three dimensions", "array-3d", Holds),
    way("mipmaps", "mipmaps", Holds),
    way("`cuMemAllocAsync`", "async", Holds),
    way("`cuMemAllocAsync_ptsz`", "async-ptsz", Holds),
    way(
        "`cuDeviceSetMemPool`, then `cuMemAllocAsync`",
        "own-pool",
        Holds,
    ),
    way("`cuMemAllocFromPoolAsync`", "from-pool", Holds),
    way("`cuMemAllocFromPoolAsync_ptsz`", "from-pool-ptsz", Holds),
    way(
        "a pool that keeps what is freed, then `cuMemAlloc`",
        "after-pool",
        Holds,
    ),
    way("`cuMemCreate` alone", "physical", Holds),
    way("`cuMemCreate`, mapped, handle released", "mapped", Holds),
    way(
        "`cuMemRetainAllocationHandle`, then unmapped and released once",
        "retained",
        Holds,
    ),
    way(
        "a handle that only its descriptor keeps",
        "descriptor",
        Holds,
    ),
    loaded(
        "a handle of another process, which has ended",
        "imported",
        BypassLoad {
            block: 128,
            ..USUAL
        },
        Holds,
    ),
    way("memory nodes of graphs", "graph-node", Holds),
    way(
        "the same, by `cuGetProcAddress`",
        "graph-node-looked-up",
        Holds,
    ),
    way("the same, by `cuGraphAddNode`", "generic-node", Holds),
    way("the same, by `cuGraphAddNode_v2`", "generic-node-v2", Holds),
    way("capture of `cuMemAllocAsync`", "captured", Holds),
    way("variables of modules", "module", Holds),
    way("variables in bundles", "bundle", Holds),
    way("variables of libraries", "library", Holds),
    loaded(
        "contexts (100)",
        "context",
        BypassLoad {
            target: 100,
            block: 1,
            ..USUAL
        },
        Holds,
    ),
    loaded(
        "the kernels' heap (3000 MiB)",
        "heap",
        BypassLoad {
            target: 3000,
            block: 3000,
            ..USUAL
        },
        Holds,
    ),
    loaded(
        "the stack of one kernel's threads (8 KiB each)",
        "kernel-stack",
        BypassLoad {
            target: 1,
            block: 1,
            ..USUAL
        },
        Holds,
    ),
    loaded(
        "eight threads",
        "cuMemAlloc",
        BypassLoad {
            threads: 8,
            target: 6144,
            ..USUAL
        },
        Holds,
    ),
    loaded(
        "four processes",
        "cuMemAlloc",
        BypassLoad {
            processes: 4,
            target: 1536,
            ..USUAL
        },
        Holds,
    ),
    way("`dlopen(\"libcuda.so\")`", "name-without-version", Holds),
    way("`dlopen` by path", "path", Holds),
    way("`dlsym(RTLD_DEFAULT)`", "default-scope", Holds),
    way("`dlsym(RTLD_NEXT)`", "next-object", Holds),
    way("`dlvsym`", "symbol-version", Holds),
    way("`cuGetProcAddress`", "get-proc-address", Holds),
    way("`cuGetProcAddress_v2`", "get-proc-address-v2", Holds),
    way(
        "`cuGetProcAddress` that it gives of itself",
        "get-proc-address-itself",
        Holds,
    ),
    way(
        "`cuGetProcAddress_v2` for per-thread streams",
        "get-proc-address-ptsz",
        Holds,
    ),
    BypassAttempt {
        program: "ways-linked",
        ..way("a program that is linked with the driver", "linked", Holds)
    },
    BypassAttempt {
        program: "ways-static",
        ..way("a static program", "cuMemAlloc", LetsThrough)
    },
    way("a copy of the driver's file", "own-copy", Holds),
    way("the same beside the driver", "second-copy", Holds),
    way(
        "a library opened with `RTLD_DEEPBIND` that calls `dlsym`",
        "deepbind",
        Holds,
    ),
    way(
        "a library opened with `RTLD_DEEPBIND` that is linked with the driver",
        "deepbind-linked",
        Holds,
    ),
    way("a namespace of its own (`dlmopen`)", "namespace", Holds),
    way(
        "the driver's symbol table, read by hand",
        "symbol-table",
        LetsThrough,
    ),
    way(
        "`LD_PRELOAD` taken out of the environment (on a bare machine)",
        "without-preload",
        LetsThrough,
    ),
];

/// The result of one bypass under one library, in MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BypassResult {
    /// The memory that was held, and the memory that the program got.
    Held(u64, u64),
    /// More than the limit was held.
    Bypassed(u64),
    Failed(String),
}

impl BypassAttempt {
    fn try_on(&self, setting: &CompareSetup, machine: &CompareMachine<'_>) -> Result<BypassResult> {
        machine.settle(self.load.limit)?;
        let load = &self.load;
        let numbers = [load.target, load.block, load.processes, load.threads];
        let mut words = vec![setting.programs.named(self.program).into_os_string()];
        words.push(self.name.into());
        words.extend(numbers.map(|number| OsString::from(number.to_string())));
        let outcome = machine.run(load.limit, TIME, &words)?;
        let held = machine.high_water()?;
        if held > load.limit {
            return Ok(BypassResult::Bypassed(held));
        }
        let given = outcome.words().first().and_then(|word| word.parse().ok());
        Ok(match given {
            Some(given) if outcome.is_done() => BypassResult::Held(held, given),
            Some(_) | None => BypassResult::Failed(outcome.failure()),
        })
    }

    /// Whether Apportion did what the documentation says.
    fn is_as_documented(&self, came: &BypassResult) -> bool {
        match (self.documented, came) {
            (Holds, BypassResult::Held(..)) | (LetsThrough, BypassResult::Bypassed(_)) => true,
            (Holds | LetsThrough, _) => false,
        }
    }

    fn cell(&self, came: &BypassResult) -> String {
        match came {
            BypassResult::Bypassed(held) => format!("**{held}**"),
            // Say so if a library allows much less than the limit.
            BypassResult::Held(held, given)
                if given * 2 < self.load.limit && self.load.block > 1 =>
            {
                format!("{held} ({given} given)")
            }
            BypassResult::Held(held, _) => held.to_string(),
            BypassResult::Failed(why) => why.clone(),
        }
    }
}

/// Tries every bypass under every library.
pub(crate) fn compare(setting: &CompareSetup, report: &mut CompareReport) -> Result<()> {
    let machines: Vec<CompareMachine<'_>> = setting
        .contenders
        .iter()
        .map(|contender| CompareMachine::start(setting, contender, CARD_GIB))
        .collect::<Result<_>>()?;
    let columns = std::iter::once("way".to_owned()).chain(setting.columns());
    let words = format!(
        "{} ways under a limit of 2000 MiB, of which a context takes 384: MiB held at the most, as the driver counted; what is **bold** was \
         let through. A dash: the way does not lead past the limit without a library either, so that it says nothing.",
        WAYS.len()
    );
    let mut table = CompareTable::new("Ways round a limit", &words, columns);
    let (mut played, mut passed) = (0, vec![0; machines.len()]);
    for way in WAYS {
        eprintln!("ways: {}", way.what);
        let mut cells = Vec::new();
        let mut is_played = true;
        for ((machine, contender), passed) in
            machines.iter().zip(&setting.contenders).zip(&mut passed)
        {
            if !is_played {
                cells.push("-".to_owned());
                continue;
            }
            let came = way.try_on(setting, machine)?;
            is_played = !contender.is_plain() || matches!(came, BypassResult::Bypassed(_));
            *passed += u32::from(matches!(came, BypassResult::Bypassed(_)));
            if contender.is_ours() && !way.is_as_documented(&came) {
                report.surprise(format!("{}: {}", way.what, way.cell(&came)));
            }
            cells.push(if is_played {
                way.cell(&came)
            } else {
                "-".to_owned()
            });
        }
        played += u32::from(is_played);
        table.row(way.what, cells);
    }
    let through = setting.contenders.iter().zip(passed);
    table.row(
        &format!("**let through, of {played}**"),
        through.map(|(contender, passed)| match contender {
            MemoryLimiter::Plain => String::new(),
            MemoryLimiter::Apportion
            | MemoryLimiter::HamiCore { .. }
            | MemoryLimiter::VgpuManager { .. } => {
                format!("**{passed}**")
            }
        }),
    );
    report.add(&table);
    Ok(())
}
