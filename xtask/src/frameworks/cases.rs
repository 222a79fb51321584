//! The cases: one row for each framework, with its programs, their environments and the size of their shares.

pub(crate) struct Framework {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What it tests, in a few words.
    pub(crate) about: &'static str,
    /// Its cases, in order.
    pub(crate) cases: &'static [FrameworkCase],
}

impl Framework {
    /// The environments of its programs, each once.
    pub(crate) fn environments(&self) -> impl Iterator<Item = &'static str> {
        let mut names: Vec<_> = self
            .cases
            .iter()
            .flat_map(|case| case.members)
            .map(|member| member.environment)
            .collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }

    /// The system programs that its programs need.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &'static str> {
        let members = self.cases.iter().flat_map(|case| case.members);
        members.filter_map(|member| member.tool)
    }
}

/// One program, or several that run at the same time on one card.
pub(crate) struct FrameworkCase {
    /// Its title in the table.
    pub(crate) title: &'static str,
    pub(crate) members: &'static [CaseProgram],
    /// Whether all checks must also hold without a limit. Programs that share a card without limits disturb each other;
    /// that is what such a case shows.
    pub(crate) holds_without_a_limit: bool,
    /// The memory of the card, in MiB.
    pub(crate) card_mib: u64,
}

/// The memory of the card in most cases, in MiB.
const CARD_MIB: u64 = 16_384;

/// A program and how it is started.
pub(crate) struct CaseProgram {
    /// Its title where several run together.
    pub(crate) title: &'static str,
    /// Its environment: the requirements are in `requirements-NAME.txt`.
    pub(crate) environment: &'static str,
    /// Its file below `tests/frameworks/programs`.
    pub(crate) program: &'static str,
    /// The arguments between `python` and the program.
    pub(crate) launcher: &'static [&'static str],
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// A system program that it needs: `TOOL` has the path.
    pub(crate) tool: Option<&'static str>,
    /// Its share, in the run with a limit.
    pub(crate) share: ShareSize,
}

/// The size of a share.
#[derive(Clone, Copy)]
pub(crate) enum ShareSize {
    /// This many MiB.
    Mib(u64),
    /// A part of the card.
    Fraction(&'static str),
}

/// `torchrun` with two ranks on this machine.
const TWO_RANKS: &[&str] = &[
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
];

const fn alone(title: &'static str, member: &'static [CaseProgram; 1]) -> FrameworkCase {
    FrameworkCase {
        title,
        members: member,
        holds_without_a_limit: true,
        card_mib: CARD_MIB,
    }
}

/// One program alone that fills the card from the host's memory. The card is small, because every byte is also the
/// host's.
const fn filled(title: &'static str, member: &'static [CaseProgram; 1]) -> FrameworkCase {
    FrameworkCase {
        card_mib: 4096,
        ..alone(title, member)
    }
}

const fn pytorch(
    program: &'static str,
    variables: &'static [(&'static str, &'static str)],
    share: ShareSize,
) -> CaseProgram {
    CaseProgram {
        title: "PyTorch",
        environment: "pytorch",
        program,
        launcher: &[],
        variables,
        tool: None,
        share,
    }
}

const fn jax(variables: &'static [(&'static str, &'static str)], share: ShareSize) -> CaseProgram {
    CaseProgram {
        title: "JAX",
        environment: "jax",
        program: "jax_arrays.py",
        launcher: &[],
        variables,
        tool: None,
        share,
    }
}

const fn other(environment: &'static str, program: &'static str, mib: u64) -> CaseProgram {
    CaseProgram {
        title: environment,
        environment,
        program,
        launcher: &[],
        variables: &[],
        tool: None,
        share: ShareSize::Mib(mib),
    }
}

/// JAX checks the versions of cuBLAS, cuDNN and others, which are not installed because nothing here calls them.
const SKIP: (&str, &str) = ("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1");

pub(crate) const FRAMEWORKS: &[Framework] = &[
    Framework {
        name: "pytorch",
        about: "caching, expandable and asynchronous allocators, pools, graphs, workers, ranks",
        cases: &[
            alone(
                "PyTorch",
                &[pytorch("pytorch.py", &[], ShareSize::Mib(2000))],
            ),
            alone(
                "PyTorch, expandable segments",
                &[pytorch(
                    "pytorch.py",
                    &[("PYTORCH_ALLOC_CONF", "expandable_segments:True")],
                    ShareSize::Mib(3000),
                )],
            ),
            alone(
                "PyTorch, cudaMallocAsync",
                &[pytorch(
                    "pytorch.py",
                    &[("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")],
                    ShareSize::Mib(5000),
                )],
            ),
            alone(
                "PyTorch, workers and shared tensors",
                &[pytorch("pytorch_processes.py", &[], ShareSize::Mib(6000))],
            ),
            alone(
                "PyTorch, torchrun with two ranks",
                &[CaseProgram {
                    launcher: TWO_RANKS,
                    ..pytorch("pytorch_ranks.py", &[], ShareSize::Mib(4000))
                }],
            ),
        ],
    },
    Framework {
        name: "jax",
        about: "preallocation and the allocators platform, cuda_async and vmm",
        cases: &[
            filled("JAX", &[jax(&[SKIP], ShareSize::Mib(2000))]),
            filled(
                "JAX, MEM_FRACTION=.5",
                &[jax(
                    &[SKIP, ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5")],
                    ShareSize::Mib(1500),
                )],
            ),
            filled(
                "JAX, PREALLOCATE=false",
                &[jax(
                    &[SKIP, ("XLA_PYTHON_CLIENT_PREALLOCATE", "false")],
                    ShareSize::Mib(3000),
                )],
            ),
            filled(
                "JAX, platform allocator",
                &[jax(
                    &[SKIP, ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")],
                    ShareSize::Mib(2000),
                )],
            ),
            // The simulated driver's pools grow in pieces that divide this share, so rounding wastes nothing.
            filled(
                "JAX, cuda_async allocator",
                &[jax(
                    &[SKIP, ("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async")],
                    ShareSize::Mib(2048),
                )],
            ),
            filled(
                "JAX, vmm allocator",
                &[jax(
                    &[SKIP, ("XLA_PYTHON_CLIENT_ALLOCATOR", "vmm")],
                    ShareSize::Mib(3000),
                )],
            ),
        ],
    },
    Framework {
        name: "together",
        about: "PyTorch with 0.7 and JAX with 0.2 of one card at the same time",
        cases: &[FrameworkCase {
            title: "one card",
            members: &[
                CaseProgram {
                    program: "beside_pytorch.py",
                    ..pytorch("", &[], ShareSize::Fraction("0.7"))
                },
                CaseProgram {
                    program: "beside_jax.py",
                    ..jax(&[SKIP], ShareSize::Fraction("0.2"))
                },
            ],
            holds_without_a_limit: false,
            card_mib: 10_240,
        }],
    },
    Framework {
        name: "triton",
        about: "kernels compiled and launched",
        cases: &[alone(
            "Triton",
            &[pytorch("triton_kernel.py", &[], ShareSize::Mib(2000))],
        )],
    },
    Framework {
        name: "tensorflow",
        about: "its own pool, and one that grows",
        cases: &[
            alone(
                "TensorFlow",
                &[other("tensorflow", "tensorflow_arrays.py", 6000)],
            ),
            alone(
                "TensorFlow, allow_growth",
                &[CaseProgram {
                    variables: &[("TF_FORCE_GPU_ALLOW_GROWTH", "true")],
                    ..other("tensorflow", "tensorflow_arrays.py", 7000)
                }],
            ),
        ],
    },
    Framework {
        name: "numba",
        about: "arrays and a compiled kernel",
        cases: &[alone("Numba", &[other("numba", "numba_arrays.py", 2000)])],
    },
    Framework {
        name: "cuda-core",
        about: "buffers of the device's pool",
        cases: &[alone(
            "cuda-core",
            &[other("cuda-core", "cuda_core_buffers.py", 2000)],
        )],
    },
    Framework {
        name: "pycuda",
        about: "memory of the driver and of its own pool; compiled here",
        cases: &[alone(
            "PyCUDA",
            &[other("pycuda", "pycuda_memory.py", 2000)],
        )],
    },
    Framework {
        name: "onnxruntime",
        about: "values in its own arena; sessions as far as they go without cuBLAS",
        cases: &[alone(
            "ONNX Runtime",
            &[other("onnxruntime", "onnxruntime_values.py", 3000)],
        )],
    },
    Framework {
        name: "viewers",
        about: "gpustat, nvitop and NVML for Python beside a process that holds memory",
        cases: &[alone(
            "gpustat, nvitop, nvidia-ml-py",
            &[other("viewers", "viewers.py", 2000)],
        )],
    },
    Framework {
        name: "nvtop",
        about: "the same for nvtop, a package of Debian",
        cases: &[alone(
            "nvtop",
            &[CaseProgram {
                tool: Some("nvtop"),
                ..other("viewers", "viewers.py", 2000)
            }],
        )],
    },
    Framework {
        name: "vllm",
        about: "two engines with 0.7 and 0.2 of one card, each finding its KV cache",
        cases: &[FrameworkCase {
            title: "vLLM twice",
            members: &[
                CaseProgram {
                    title: "one",
                    share: ShareSize::Fraction("0.7"),
                    ..other("vllm", "vllm_profile.py", 0)
                },
                CaseProgram {
                    title: "other",
                    share: ShareSize::Fraction("0.2"),
                    ..other("vllm", "vllm_profile.py", 0)
                },
            ],
            holds_without_a_limit: false,
            // On a smaller card a fifth is too little: a context then needs more than vLLM leaves free.
            card_mib: 49_152,
        }],
    },
];
