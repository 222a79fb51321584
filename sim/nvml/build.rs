//! Sets the soname by which programs ask the loader for the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Calls between the library's own functions stay inside it, even if a preloaded library exports the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
