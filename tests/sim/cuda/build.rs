//! Gives the library the name by which programs ask the loader for a driver.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its own functions reach each other, whatever stands in front of it in a program.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
