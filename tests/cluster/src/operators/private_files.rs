//! Programs that look for their files at a fixed path. They see them there, and nobody else on this machine does.

use std::path::Path;
use std::process::Command;

/// Runs a program in a mount namespace of its own. The first folder of the path `$1` is a copy in memory there, with
/// the folder `$2` at `$1`. The copy of `/tmp` is empty but for the folder `$3`, if that lies in it.
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

/// A command that runs `program`, which finds the folder `files` at `path`. It still finds the folder `kept`.
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
