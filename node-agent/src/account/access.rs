//! Who may open the files of an account that its programs write.
//!
//! | allocation of | owner and mode of the file |
//! |---|---|
//! | a process, agent runs as root | the process's user, 0600 |
//! | the same, with processes of several users | the first user, and an ACL entry for each other user |
//! | a process, agent runs as an ordinary user | that user, 0600 |
//! | a pod | root, 0666: the image decides the user of its programs, and only the pod's containers see the file |
//!
//! The file is in a folder of the agent, so no other user can replace it. Root may always open it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{OFlags, XattrFlags, fremovexattr, fsetxattr};

const ROOT: u32 = 0;
const EVERYBODY: u32 = 0o006;
/// The extended attribute in which Linux keeps a file's access control list (ACL).
const LIST: &str = "system.posix_acl_access";

/// Who may open the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccountAccess {
    /// Every user who can see it.
    Everybody,
    /// These users, and root.
    Users(BTreeSet<u32>),
}

impl AccountAccess {
    /// Reads the access from disk. Users in the ACL are added again when the agent sees their processes.
    pub(crate) fn of(usage: &Path) -> Self {
        match std::fs::symlink_metadata(usage) {
            Ok(found) if found.mode() & EVERYBODY == EVERYBODY => Self::Everybody,
            Ok(found) => Self::Users([found.uid()].into()),
            Err(_) => Self::Users(BTreeSet::new()),
        }
    }

    /// Whether a process of this user may open it.
    pub(crate) fn admits(&self, user: u32) -> bool {
        match self {
            Self::Everybody => true,
            Self::Users(users) => user == ROOT || users.contains(&user),
        }
    }

    /// Sets the access on disk.
    pub(crate) fn apply(&self, usage: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        // One of the files is a FIFO, on which opening could wait.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = options.read(true).custom_flags(flags).open(usage)?;
        let own = rustix::process::geteuid().as_raw();
        if file.metadata()?.uid() != own {
            // Only the owner may change the mode and the ACL.
            fchown(&file, Some(own), None)?;
        }
        match self {
            Self::Everybody => file.set_permissions(Permissions::from_mode(0o666)),
            Self::Users(users) => {
                let others = users.iter().filter(|user| ![own, ROOT].contains(user));
                restrict(&file, &others.copied().collect::<Vec<_>>())
            }
        }
    }
}

/// Allows these users and the owner, and nobody else.
fn restrict(file: &File, users: &[u32]) -> io::Result<()> {
    let _ = fremovexattr(file, LIST);
    file.set_permissions(Permissions::from_mode(0o600))?;
    let Some((first, rest)) = users.split_first() else {
        return Ok(());
    };
    if !rest.is_empty() {
        enter(file, users)?;
    }
    match fchown(file, Some(*first), None) {
        // Without CAP_CHOWN, as in a container, the file keeps its owner.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => enter(file, users),
        outcome => outcome,
    }
}

/// Writes the ACL in the format of the attribute: a version, then 8 bytes for each entry.
fn enter(file: &File, users: &[u32]) -> io::Result<()> {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    const READ_WRITE: u16 = 6;
    let (owner, user, group, mask, other) = (0x01, 0x02, 0x04, 0x10, 0x20);
    let mut list = VERSION.to_le_bytes().to_vec();
    let mut entry = |tag: u16, rights: u16, id: u32| {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    };
    entry(owner, READ_WRITE, NOBODY);
    users.iter().for_each(|id| entry(user, READ_WRITE, *id));
    entry(group, 0, NOBODY);
    entry(mask, READ_WRITE, NOBODY);
    entry(other, 0, NOBODY);
    Ok(fsetxattr(file, LIST, &list, XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(of: &[u32]) -> AccountAccess {
        AccountAccess::Users(of.iter().copied().collect())
    }

    #[test]
    fn a_file_is_its_users_alone_and_a_pods_is_for_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = || {
            let found = file.path().metadata().unwrap();
            (found.uid(), found.mode() & 0o777)
        };
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(AccountAccess::of(file.path()), users(&[own]));
        AccountAccess::Everybody.apply(file.path()).unwrap();
        assert_eq!(found(), (own, 0o666));
        assert_eq!(AccountAccess::of(file.path()), AccountAccess::Everybody);
        users(&[own]).apply(file.path()).unwrap();
        assert_eq!(found(), (own, 0o600));
        if own != ROOT {
            return;
        }
        users(&[0, 4711]).apply(file.path()).unwrap();
        assert_eq!(found(), (4711, 0o600));
        assert_eq!(AccountAccess::of(file.path()), users(&[4711]));
        AccountAccess::Everybody.apply(file.path()).unwrap();
        assert_eq!(found(), (0, 0o666));
    }

    #[test]
    fn who_is_not_named_is_not_admitted() {
        let access = users(&[4711]);
        assert!(access.admits(4711) && access.admits(ROOT) && !access.admits(4712));
        assert!(AccountAccess::Everybody.admits(4712));
    }
}
