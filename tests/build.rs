//! Builds three helpers. The first is the library that `victim-linked` links with: it has the driver's soname and empty
//! versions of the functions that a victim calls. At run time the loader finds the real driver under that name. The
//! other two are the program without a loader and the host library, which `victim` embeds.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let table = "victims/functions.in";
    println!("cargo::rerun-if-changed={table}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let source = out.join("stub.c");
    let functions = fs::read_to_string(table)?;
    let stubs: String = functions
        .lines()
        .filter_map(|line| line.trim_start().split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("cu"))
        .map(|name| format!("void {name}(void) {{}}\n"))
        .collect();
    fs::write(&source, stubs)?;
    let library = out.join("libcuda.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&library, &source])
        .status()?;
    if !status.success() {
        return Err("cc did not link the stub of libcuda.so.1".into());
    }
    let bare = "victims/bare.c";
    println!("cargo::rerun-if-changed={bare}");
    let status = Command::new("cc")
        .args(["-static", "-O1", "-s", "-o"])
        .arg(out.join("bare"))
        .arg(bare)
        .status()?;
    if !status.success() {
        return Err("cc did not link a static program".into());
    }
    let plugin = "victims/plugin.c";
    println!("cargo::rerun-if-changed={plugin}");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-s", "-o"])
        .arg(out.join("plugin.so"))
        .arg(plugin)
        .arg("-ldl")
        .status()?;
    if !status.success() {
        return Err("cc did not link a library".into());
    }
    println!(
        "cargo::rustc-link-arg-bin=victim-linked={}",
        library.display()
    );
    Ok(())
}
