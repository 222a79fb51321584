//! Gives the library the name that programs ask the loader for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Its own functions reach each other, whatever stands in front of it in a program.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
