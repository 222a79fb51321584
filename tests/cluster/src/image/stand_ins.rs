//! Stand-ins for the images that the examples name: what their programs do to a card's memory, and nothing
//! else that they do.

use std::path::Path;

use super::{ContainerImage, ENV, ImageFiles};

/// What NVIDIA's runtime brings into a container on a real node: the size of the card, and what is used.
const NVIDIA_SMI: &str = "exec victim nvml";
/// vLLM takes 90 % of the memory that it is told of, and serves.
const VLLM: &str = "exec victim take 90 hold";
/// Three vectors of the sample that adds two of them up.
const VECTOR_ADD: &str = "exec victim alloc 196K alloc 196K alloc 196K sync";

/// Name and entry point.
const STAND_INS: [(&str, &[&str]); 3] = [
    ("docker.io/library/ubuntu:latest", &["/bin/sh"]),
    ("docker.io/vllm/vllm-openai:latest", &["/usr/bin/vllm"]),
    (
        "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
        &["/usr/bin/vectorAdd"],
    ),
];

/// The images, made of the programs that allocate.
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
