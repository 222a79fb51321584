//! An account without an agent: the pages that an agent would have made, with room for everything.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, anyhow};
use apportion_abi::account::{LimitsMap, NewCard, UsageMap};
use apportion_abi::place::{LIMITS_FILE, USAGE_FILE};
use apportion_abi::{Bytes, CardUuid};

/// Makes an account of one card in an empty folder.
pub(crate) fn create(folder: &Path, card: [u8; 16]) -> Result<()> {
    let card = NewCard {
        uuid: CardUuid(card),
        total: Bytes(Bytes::GIB << 10),
        limit: Bytes(Bytes::GIB << 9),
        context_reserve: Bytes(0),
    };
    let at = |name| CString::new(folder.join(name).as_os_str().as_bytes());
    LimitsMap::create(&at(LIMITS_FILE)?, &[card]).map_err(|error| anyhow!("{error}"))?;
    UsageMap::create(&at(USAGE_FILE)?, 1).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}
