//! Compares the privileges table of docs/security.md with what the kernel reports for a running program.

use std::fs;
use std::path::Path;

/// The page, relative to this crate's folder.
const PAGE: &str = "../../docs/security.md";
/// The Linux capabilities, by bit.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The privileges of a process, in the table's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessPrivileges {
    /// `CapPrm`, which must equal `CapEff`.
    pub capabilities: String,
    /// `CapBnd`: the capabilities that it could ever get.
    pub bounding: String,
    /// `NoNewPrivs`: 1 if it cannot gain any by executing a program.
    pub no_new_privileges: String,
    /// `Seccomp`: 2 if a filter refuses system calls.
    pub seccomp: String,
}

impl ProcessPrivileges {
    /// The privileges of a process or a thread, by its folder in `/proc`.
    ///
    /// # Panics
    /// If it is gone, or its effective capabilities differ from the permitted ones.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join("status"));
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(field, _)| *field == name);
            found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        assert_eq!(field("CapPrm"), field("CapEff"), "{}", folder.display());
        Self {
            capabilities: named(&field("CapPrm")),
            bounding: named(&field("CapBnd")),
            no_new_privileges: field("NoNewPrivs"),
            seccomp: field("Seccomp"),
        }
    }

    /// The privileges of a program in the table.
    ///
    /// # Panics
    /// If the table has no such row.
    #[must_use]
    pub fn documented(program: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        let text = fs::read_to_string(path).expect("the page is there");
        row(&text, program).unwrap_or_else(|| panic!("docs/security.md has no row \"{program}\""))
    }
}

fn row(text: &str, program: &str) -> Option<ProcessPrivileges> {
    let rows = text.lines().map(|line| line.split('|').map(str::trim));
    let mut cells = rows
        .map(Iterator::collect::<Vec<_>>)
        .find(|cells| cells.len() == 7 && cells[1] == program)?
        .into_iter()
        .skip(2)
        .map(|cell| cell.replace('`', ""));
    Some(ProcessPrivileges {
        capabilities: cells.next()?,
        bounding: cells.next()?,
        no_new_privileges: cells.next()?,
        seccomp: cells.next()?,
    })
}

/// The names of the capabilities in a set, from the kernel's format.
fn named(set: &str) -> String {
    let bits = u64::from_str_radix(set, 16).expect("a set is a hexadecimal number");
    let names = CAPABILITIES.iter().enumerate();
    let names = names.filter(|(bit, _)| bits & 1 << bit != 0);
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_names_and_a_row_its_cells() {
        assert_eq!(named("0000000000080000"), "SYS_PTRACE");
        assert_eq!(
            named("0000000008080022"),
            "DAC_OVERRIDE KILL SYS_PTRACE MKNOD"
        );
        assert_eq!(named("0"), "none");
        let rights = row("| agent | `KILL` | none | 1 | 2 |", "agent").unwrap();
        assert_eq!(
            (rights.capabilities.as_str(), rights.seccomp.as_str()),
            ("KILL", "2")
        );
    }
}
