//! The settings of an agent that serves a kubelet.

use std::path::PathBuf;

use super::{Row, Unplaced};

pub(super) const ROWS: &[Row] = &[
    Row {
        flag: "--kubelet-dir",
        env: "APPORTION_KUBELET_DIR",
        form: "PATH",
        default: "none: no kubelet is served",
        help: "the kubelet's folder, usually /var/lib/kubelet: GPU slots are offered to the kubelet there",
        set: |options, text| {
            options.kubelet_dir = Some(PathBuf::from(text));
            !text.is_empty()
        },
    },
    Row {
        flag: "--cdi-dir",
        env: "APPORTION_CDI_DIR",
        form: "PATH",
        default: "/var/run/cdi",
        help: "where the container runtime looks for descriptions of devices that come and go",
        set: |options, text| {
            options.cdi_dir = PathBuf::from(text);
            !text.is_empty()
        },
    },
    Row {
        flag: "--slots",
        env: "APPORTION_SLOTS",
        form: "number, 1 to 4096",
        default: "128",
        help: "how many containers of this node may have a share at a time",
        set: |options, text| {
            let count = text.parse().ok().filter(|count| (1..=4096).contains(count));
            options.slots = count.unwrap_or_default();
            count.is_some()
        },
    },
    Row {
        flag: "--unplaced",
        env: "APPORTION_UNPLACED",
        form: "deny or local-fit",
        default: "deny",
        help: "what becomes of a pod with a slot that nobody placed: it is refused, or gets what it asks for here",
        set: |options, text| {
            options.unplaced = match text {
                "deny" => Unplaced::Deny,
                "local-fit" => Unplaced::LocalFit,
                _ => return false,
            };
            true
        },
    },
    Row {
        flag: "--whole-cards",
        env: "APPORTION_WHOLE_CARDS",
        form: "on or off",
        default: "off",
        help: "whether whole cards are offered to the kubelet as nvidia.com/gpu, from the same book as the shares",
        set: |options, text| {
            options.has_whole_cards = text == "on";
            matches!(text, "on" | "off")
        },
    },
    Row {
        flag: "--preload-file",
        env: "APPORTION_PRELOAD_FILE",
        form: "on or off",
        default: "on",
        help: "whether containers also get /etc/ld.so.preload; off for nodes with pods whose /etc is a read-only volume",
        set: |options, text| {
            options.has_preload_list = text == "on";
            matches!(text, "on" | "off")
        },
    },
];
