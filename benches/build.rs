//! Gives the null driver the name `libcuda.so.1`, by which every CUDA program loads the driver.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
