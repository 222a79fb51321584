#!/usr/bin/env python3
"""Lists what the libraries below a folder may ask of the driver, of NVML and of the CUDA runtime.

    tests/names/collect.py VENV/lib/python3.11/site-packages/torch > tests/names/pytorch.txt
    tests/names/collect.py VENV/lib/python3.11/site-packages/jax_plugins 12 > tests/names/jax.txt

A name counts if it stands alone as a string in a library: that is how symbols are linked and how `dlsym` and
`cuGetProcAddress` are asked. NVIDIA's own libraries are left out, as they bring a runtime of their own; so are NVML's
internal functions, which nobody but NVIDIA can provide.

Most libraries name the runtime's file, and so its major version. XLA's, which JAX and TensorFlow have, put that name
together when they open it: they know no number but the one that they were built with, which is the second argument.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
OWN = re.compile(r"lib(cu(blas|dnn|fft|rand|solver|sparse|dss|pti|file|tensor)|nccl|nv|cudart)")


def first_words(path):
    lines = path.read_text().splitlines()
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


DRIVER = first_words(HERE.parent / "conformance/src/cases/entry_points.txt")
RUNTIME = {12: first_words(HERE.parent / "sim/cudart/names-12.txt"), 13: first_words(HERE.parent / "sim/cudart/names-13.txt")}


def main(folder, *majors):
    strings = set()
    majors = {int(major) for major in majors}
    for path in sorted(pathlib.Path(folder).rglob("*.so*")):
        if OWN.match(path.name) or not path.is_file():
            continue
        content = path.read_bytes()
        # A string of a library's tables ends with a zero byte and begins behind one.
        for word in re.findall(rb"(?<=\0)((?:__cuda|cuda|cu|nvml)[A-Z]\w{2,60})(?=\0)", content):
            strings.add(word.decode())
        majors |= {int(major) for major in re.findall(rb"\0libcudart\.so\.(\d\d)(?=\0)", content)}
    for name in sorted(strings):
        base = re.sub(r"_v\d+$", "", name)
        if base in DRIVER or name in DRIVER:
            print("libcuda.so.1", base if base in DRIVER else name)
        elif re.match(r"nvml[A-Z]\w*[a-z0-9A-Z]$", name) and not re.search(r"^nvmlInternal|_(t|st|enum)$", name):
            print("libnvidia-ml.so.1", name)
        for major in sorted(majors & set(RUNTIME)):
            if name in RUNTIME[major]:
                print(f"libcudart.so.{major}", name)


if __name__ == "__main__":
    main(*sys.argv[1:])
