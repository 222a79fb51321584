//! Runs programs that look for their files at a fixed path. Only they see the files there.

use std::path::Path;
use std::process::Command;

/// Runs a program in its own mount namespace. There, the first folder of the path `$1` is a copy in memory, and the
/// folder `$2` is mounted at `$1`. A copy of `/tmp` is empty except for the folder `$3`, if that is in it.
const SCRIPT: &str = r#"
set -e
path=$1 files=$2 kept=$3
shift 3
top=/$(echo "$path" | cut -d / -f 2)
copy=$files/copy
mkdir -p "$copy"
mount -t tmpfs tmpfs "$copy"
[ "$top" = /tmp ] || cp -a "$top/." "$copy/"
mkdir -p "$copy${path#"$top"}"
mount --bind "$files" "$copy${path#"$top"}"
case $kept in "$top"/*)
    mkdir -p "$copy${kept#"$top"}"
    mount --bind "$kept" "$copy${kept#"$top"}" ;;
esac
mount --rbind "$copy" "$top"
exec "$@"
"#;

/// A command that runs `program` with the folder `files` at `path`. The folder `kept` stays visible.
pub(super) fn command_with(program: &Path, path: &str, files: &Path, kept: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        SCRIPT,
        "sh",
    ]);
    command.arg(path).arg(files).arg(kept).arg(program);
    command
}
