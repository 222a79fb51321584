//! An account without an agent: the pages that an agent would create, with room for everything.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use apportion_abi::account::{BurstMap, LimitsMap, NewBurst, NewCard, UsageMap};
use apportion_abi::paths::{BURST_FILE, LIMITS_FILE, USAGE_FILE};
use apportion_abi::{Bytes, CardUuid};

fn at(folder: &Path, name: &str) -> Result<CString> {
    Ok(CString::new(folder.join(name).as_os_str().as_bytes())?)
}

fn bench_card(card: [u8; 16]) -> NewCard {
    NewCard {
        uuid: CardUuid(card),
        total: Bytes(Bytes::GIB << 10),
        limit: Bytes(Bytes::GIB << 9),
        context_reserve: Bytes(0),
    }
}

/// Creates an account for one card in an empty folder. `asks_about_calls` as for a share that sleeps when it is idle.
pub(crate) fn create(folder: &Path, card: [u8; 16], asks_about_calls: bool) -> Result<()> {
    let card = bench_card(card);
    let (limits, usage) = (at(folder, LIMITS_FILE)?, at(folder, USAGE_FILE)?);
    let limits = LimitsMap::create(&limits, &[card]).map_err(|error| anyhow!("{error}"))?;
    if asks_about_calls {
        limits.calls().begin_epoch();
    }
    UsageMap::create(&usage, 1).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

/// Creates an account of an elastic share with the same limit: its allowance, which no worker exceeds. So nobody asks, and
/// there is nobody to wake.
pub(crate) fn create_elastic(folder: &Path, card: [u8; 16]) -> Result<()> {
    let card = bench_card(card);
    let burst = NewBurst {
        guaranteed: card.limit,
        ceiling: card.total,
    };
    let path = |name| at(folder, name);
    LimitsMap::create_elastic(&path(LIMITS_FILE)?, &[card]).map_err(|error| anyhow!("{error}"))?;
    UsageMap::create(&path(USAGE_FILE)?, 1).map_err(|error| anyhow!("{error}"))?;
    BurstMap::create(&path(BURST_FILE)?, &[burst]).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

/// Fails if nothing was charged: a hook that does nothing is fast.
pub(crate) fn was_charged(folder: &Path) -> Result<()> {
    let usage = UsageMap::open(&at(folder, USAGE_FILE)?).map_err(|error| anyhow!("{error}"))?;
    let peak = usage.usage().used(0).peak;
    ensure!(
        peak > Bytes::ZERO,
        "the library charged nothing, so its figures mean nothing"
    );
    Ok(())
}
