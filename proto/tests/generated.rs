//! The committed Rust code is what the `.proto` file says. `UPDATE_PROTO=1 cargo test -p
//! apportion-proto` writes it anew.

use std::error::Error;
use std::path::Path;

const FILE: &str = "apportion.v1.rs";

fn generate(into: &Path) -> Result<String, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(["apportion/v1/agent.proto"], [root])?;
    tonic_prost_build::configure()
        .build_transport(false)
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
        "{} is stale; run UPDATE_PROTO=1 cargo test -p apportion-proto",
        committed.display()
    );
    Ok(())
}
