//! Links the library against nothing: what it needs of the C library is already in the process.
//!
//! A library that names another one, or a version of one of its symbols, kills every process that it is
//! preloaded into where that is missing. The `libc` crate asks for `-lc`; an empty archive of that name
//! comes first on the linker's path, so the symbols stay open and are bound in the process. What the
//! library says of its own functions is bound at once: a hook that is handed out is ours, whatever else
//! of that name is in the process.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

/// An archive without members.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    fs::write(out.join("libc.a"), EMPTY_ARCHIVE)?;
    println!("cargo:rustc-cdylib-link-arg=-L{}", out.display());
    for argument in [
        "-nostartfiles",
        "-nodefaultlibs",
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libapportion_cuda.so",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    Ok(())
}
