//! Links the library against nothing: what it needs of the C library is already in the process.
//!
//! If a library names another one, or a version of a symbol, and that is missing, every process that preloads it
//! dies. The `libc` crate asks for `-lc`. An empty archive of that name comes first on the linker's path, so the
//! symbols stay undefined and are bound in the process. The library's references to its own functions are bound at
//! link time. So a hook that is handed out is ours, whatever else of that name is in the process.

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
