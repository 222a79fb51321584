//! The committed Rust code matches the `.proto` files. `UPDATE_PROTO=1 cargo test -p apportion-proto` regenerates it.

use std::error::Error;
use std::path::Path;

/// Each contract and the file that is generated from it. The file is named after the contract's package, in a
/// separate folder, because two packages are called `v1`.
const CONTRACTS: &[(&str, &str)] = &[
    ("apportion/v1/agent.proto", "apportion.v1.rs"),
    (
        "kubelet/deviceplugin/v1beta1/api.proto",
        "deviceplugin/v1beta1.rs",
    ),
    ("kubelet/podresources/v1/api.proto", "podresources/v1.rs"),
    ("kubelet/pods/v1alpha1/api.proto", "pods/v1alpha1.rs"),
    ("kubelet/cri/v1/api.proto", "cri/runtime.v1.rs"),
    (
        "kubelet/dra/v1/api.proto",
        "dra/k8s.io.kubelet.pkg.apis.dra.v1.rs",
    ),
    (
        "kubelet/dra/v1beta1/api.proto",
        "dra/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs",
    ),
    (
        "kubelet/pluginregistration/v1/api.proto",
        "pluginregistration/pluginregistration.rs",
    ),
];

fn generate(contract: &str, file: &str, into: &Path) -> Result<String, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = into.join(file);
    let folder = made.parent().ok_or("a file has a folder")?;
    std::fs::create_dir_all(folder)?;
    let descriptors = protox::compile([contract], [root])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::SmallBufferCodec")
        .out_dir(folder)
        .compile_fds(descriptors)?;
    Ok(std::fs::read_to_string(made)?)
}

#[test]
fn the_committed_code_is_fresh() -> Result<(), Box<dyn Error>> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gen");
    for (contract, file) in CONTRACTS {
        let fresh = generate(contract, file, tempfile::tempdir()?.path())?;
        let path = committed.join(file);
        if std::env::var_os("UPDATE_PROTO").is_some() {
            std::fs::create_dir_all(path.parent().ok_or("a file has a folder")?)?;
            std::fs::write(&path, &fresh)?;
        }
        let stale = std::fs::read_to_string(&path).unwrap_or_default() != fresh;
        assert!(
            !stale,
            "{} is stale; run UPDATE_PROTO=1 cargo test -p apportion-proto",
            path.display()
        );
    }
    Ok(())
}
