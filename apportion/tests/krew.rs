//! The manifest of the kubectl plugin meets krew's requirements, and names the files that the release attaches.

use serde_json::Value;

const MANIFEST: &str = include_str!("../kubectl/krew.yaml");

#[test]
fn the_manifest_of_the_plugin_is_one_that_krew_takes() {
    let sum = "0".repeat(64);
    let filled = MANIFEST
        .replace("OWNER/apportion", "someone/fork")
        .replace("VERSION", "1.2.3")
        .replace("SHA256_AMD64", &sum)
        .replace("SHA256_ARM64", &sum);
    let manifest: Value = serde_norway::from_str(&filled).unwrap();
    assert_eq!(
        manifest["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(manifest["kind"], "Plugin");
    // kubectl finds the plugin by its program's name, krew by this one.
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], "v1.2.3");
    assert_eq!(spec["homepage"], "https://github.com/someone/fork");
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(short.len() <= 50 && !short.ends_with('.'), "{short}");
    let platforms = spec["platforms"].as_array().unwrap();
    let machines = platforms.iter().map(|platform| {
        assert_eq!(platform["bin"], format!("kubectl-{name}"));
        assert_eq!(platform["sha256"], sum);
        let machine = platform["selector"]["matchLabels"]["arch"]
            .as_str()
            .unwrap();
        let folder = "https://github.com/someone/fork/releases/download/v1.2.3";
        let file = format!("kubectl-apportion-1.2.3-linux-{machine}.tar.gz");
        assert_eq!(platform["uri"], format!("{folder}/{file}"));
        let files = platform["files"].as_array().unwrap();
        let from: Vec<&str> = files
            .iter()
            .map(|one| one["from"].as_str().unwrap())
            .collect();
        assert_eq!(from, ["kubectl-apportion", "LICENSE"]);
        machine
    });
    assert_eq!(machines.collect::<Vec<_>>(), ["amd64", "arm64"]);
}
