//! Replaces this process with the user's command.
//!
//! So the command's exit status, signals and place in the terminal are its own. It is looked up first, so that a
//! mistyped name allocates nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_exit::CommandFailure;
use nix::unistd::{AccessFlags, access};

/// A command that exists.
#[derive(Debug)]
pub(crate) struct ResolvedCommand {
    /// The file that will run.
    file: PathBuf,
    /// The words as typed. The first is the program's `argv[0]`.
    words: Vec<OsString>,
}

impl ResolvedCommand {
    /// Finds the file of `words`, as a shell would.
    pub(crate) fn find(words: Vec<OsString>) -> Result<Self, CommandFailure> {
        let name = words.first().cloned().unwrap_or_default();
        let missing = |why: &str| {
            let what = format!("cannot run {:?}: {why}", name.to_string_lossy());
            CommandFailure::new(what)
                .hint("put the command after `--`, as you would type it in a shell")
        };
        if name.as_encoded_bytes().contains(&b'/') {
            let file = PathBuf::from(&name);
            return match (file.is_file(), can_run(&file)) {
                (true, true) => Ok(Self { file, words }),
                (true, false) => Err(missing("permission denied")),
                (false, _) => Err(missing("no such file")),
            };
        }
        let path =
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        let found = std::env::split_paths(&path)
            .map(|folder| folder.join(&name))
            .find(|f| can_run(f));
        match found {
            Some(file) if !name.is_empty() => Ok(Self { file, words }),
            _ => Err(missing("not found in PATH")),
        }
    }

    /// The name without folders.
    pub(crate) fn name(&self) -> String {
        let name = self.file.file_name().unwrap_or(OsStr::new("program"));
        name.to_string_lossy().into_owned()
    }

    /// Replaces this process with the program. Returns only if that fails.
    pub(crate) fn become_it<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &self,
        env: impl IntoIterator<Item = (N, V)>,
    ) -> CommandFailure {
        let mut command = Command::new(&self.file);
        if let Some((name, args)) = self.words.split_first() {
            command.arg0(name).args(args);
        }
        let error = command.envs(env).exec();
        CommandFailure::new(format!("failed to run {}", self.file.display())).because(error)
    }
}

fn can_run(file: &Path) -> bool {
    file.is_file() && access(file, AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> Result<String, String> {
        let found = ResolvedCommand::find(vec![name.into(), "-x".into()]);
        found
            .map(|program| program.name())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn finds_what_a_shell_would_find() {
        assert_eq!(find("sh"), Ok("sh".into()));
        assert_eq!(find("/bin/sh"), Ok("sh".into()));
    }

    #[test]
    fn says_why_a_command_cannot_run() {
        for (name, why) in [
            ("no-such-command-here", "not found in PATH"),
            ("/etc/hostname-of-nobody", "no such file"),
            ("/etc/passwd", "permission denied"),
            ("/etc", "no such file"),
            ("", "not found in PATH"),
        ] {
            assert!(find(name).unwrap_err().contains(why), "{name}");
        }
    }
}
