//! Sets the soname `libcuda.so.1`, by which programs ask the loader for the driver.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Calls between the library's own functions stay inside it, even if a preloaded library exports the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
