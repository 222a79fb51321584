//! The committed Rust code matches the `.proto` file. `UPDATE_PROTO=1 cargo test -p apportion-nri` regenerates it.

use std::error::Error;
use std::path::Path;

const FILE: &str = "apportion.nri.rs";

fn generate(into: &Path) -> Result<String, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let descriptors = protox::compile(["nri.proto"], [root])?;
    prost_build::Config::new()
        .btree_map(["."])
        .out_dir(into)
        .compile_fds(descriptors)?;
    Ok(std::fs::read_to_string(into.join(FILE))?)
}

#[test]
fn the_committed_code_is_fresh() -> Result<(), Box<dyn Error>> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/gen")
        .join(FILE);
    let fresh = generate(tempfile::tempdir()?.path())?;
    if std::env::var_os("UPDATE_PROTO").is_some() {
        std::fs::write(&committed, &fresh)?;
    }
    let stale = std::fs::read_to_string(&committed).unwrap_or_default() != fresh;
    assert!(
        !stale,
        "{} is stale; run UPDATE_PROTO=1 cargo test -p apportion-nri",
        committed.display()
    );
    Ok(())
}
