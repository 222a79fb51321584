//! What an address in this process is: a function of the driver, a hook, a position in a file, or anonymous memory.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::elf::{self, ExportedSymbol};

/// One line of `/proc/self/maps`.
struct ProcMapping {
    start: usize,
    end: usize,
    offset: usize,
    path: String,
}

fn mappings() -> Result<Vec<ProcMapping>> {
    let text = fs::read_to_string("/proc/self/maps").context("failed to read /proc/self/maps")?;
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let offset = words.nth(1)?;
            Some(ProcMapping {
                start: number(start)?,
                end: number(end)?,
                offset: number(offset)?,
                path: words.nth(2).unwrap_or_default().to_owned(),
            })
        })
        .collect())
}

/// A loaded library, with its own symbol table.
pub(crate) struct LoadedLibrary {
    pub(crate) exports: BTreeMap<String, ExportedSymbol>,
    base: usize,
}

impl LoadedLibrary {
    /// The loaded library whose file name starts with `name`. `None` if there is none.
    pub(crate) fn find(name: &str) -> Result<Option<Self>> {
        let mappings = mappings()?;
        let Some(first) = mappings.iter().find(|mapping| {
            let file = Path::new(&mapping.path).file_name().unwrap_or_default();
            mapping.offset == 0 && file.to_string_lossy().starts_with(name)
        }) else {
            return Ok(None);
        };
        let file =
            fs::read(&first.path).with_context(|| format!("failed to read {}", first.path))?;
        let exports =
            elf::exports(&file).with_context(|| format!("{} is no library", first.path))?;
        Ok(Some(Self {
            exports,
            base: first.start,
        }))
    }

    /// Every function with its address, by name.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&str, usize)> {
        let functions = self.exports.iter().filter(|(_, symbol)| symbol.is_function);
        functions.map(|(name, symbol)| (name.as_str(), self.base + symbol.offset))
    }

    fn addresses(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.exports.iter().rev();
        all.map(|(name, symbol)| (self.base + symbol.offset, name.as_str()))
    }
}

/// Names of addresses: `driver:` and `hook:` with the symbol.
pub(crate) struct AddressNames(HashMap<usize, String>);

impl AddressNames {
    pub(crate) fn of(drivers: &[&LoadedLibrary], hooks: Option<&LoadedLibrary>) -> Self {
        let mut names = HashMap::new();
        // If two symbols have the same address, the first one by name wins, because it is inserted last.
        for (kind, library) in drivers
            .iter()
            .map(|driver| ("driver", *driver))
            .chain(hooks.map(|hooks| ("hook", hooks)))
        {
            for (address, name) in library.addresses() {
                names.insert(address, format!("{kind}:{name}"));
            }
        }
        Self(names)
    }

    /// The name of the function at an address. `none` for a null pointer.
    pub(crate) fn name(&self, address: usize) -> &str {
        match address {
            0 => "none",
            _ => self.0.get(&address).map_or("elsewhere", String::as_str),
        }
    }
}

/// Decides which numbers are pointers in this process. Two processes have different addresses, but equal results print
/// equally.
pub(crate) struct ProcessPointers(Vec<ProcMapping>);

impl ProcessPointers {
    pub(crate) fn now() -> Result<Self> {
        Ok(Self(mappings()?))
    }

    /// A word of memory as a position in a file, as a pointer, or as a number.
    pub(crate) fn word(&self, word: u64) -> String {
        let address = usize::try_from(word).unwrap_or(usize::MAX);
        match self
            .0
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&address))
        {
            None => format!("{word:x}"),
            Some(mapping) if mapping.path.starts_with('/') => {
                let file = Path::new(&mapping.path).file_name().unwrap_or_default();
                let offset = address - mapping.start + mapping.offset;
                format!("{}+{offset:x}", file.to_string_lossy())
            }
            Some(_) => "pointer".to_owned(),
        }
    }
}
