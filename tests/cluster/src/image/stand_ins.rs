//! Stand-ins for the images of the examples. They use a card's memory as the real programs do, and do nothing else.

use std::path::Path;

use apportion_image::{ContainerImage, ENV, ImageFiles};

/// NVIDIA's runtime brings `nvidia-smi` into containers on a real node. This one prints the card's total and used
/// memory.
const NVIDIA_SMI: &str = "exec victim nvml";
/// vLLM takes 90 % of the memory that it sees, and serves.
const VLLM: &str = "exec victim take 90 hold";
/// The three vectors of the vector addition sample.
const VECTOR_ADD: &str = "exec victim alloc 196K alloc 196K alloc 196K sync";

/// Name and entry point.
const STAND_INS: [(&str, &[&str]); 5] = [
    ("docker.io/library/ubuntu:latest", &["/bin/sh"]),
    // These two are in the specs of NVIDIA's DRA driver.
    ("docker.io/library/ubuntu:22.04", &["/bin/bash"]),
    (
        "nvcr.io/nvidia/cuda:12.2.0-base-ubuntu22.04",
        &["/bin/bash"],
    ),
    ("docker.io/vllm/vllm-openai:latest", &["/usr/bin/vllm"]),
    (
        "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
        &["/usr/bin/vectorAdd"],
    ),
];

/// The images, made from the victim programs.
pub(super) fn images(mut files: ImageFiles) -> impl Iterator<Item = ContainerImage> {
    for (name, line) in [
        ("nvidia-smi", NVIDIA_SMI),
        ("vllm", VLLM),
        ("vectorAdd", VECTOR_ADD),
    ] {
        files.script(&Path::new("/usr/bin").join(name), line);
    }
    STAND_INS
        .into_iter()
        .map(move |(name, entrypoint)| ContainerImage {
            name,
            entrypoint,
            env: ENV,
            labels: &[],
            files: files.clone(),
        })
}
