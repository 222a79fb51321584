//! Notifications from the driver: memory runs short, a core dump begins or ends. None of these happen here, so a
//! callback is registered, never called, and unregistered.

use std::collections::HashMap;

use crate::driver::{driver, tables};
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::Out;

/// The registered callbacks by handle.
pub(crate) type Notifications = HashMap<u64, NotificationKind>;

/// What a callback is registered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotificationKind {
    Device(i32),
    DumpBegins,
    DumpEnds,
}

exports! {
    cuDeviceRegisterAsyncNotification(device: i32, function: u64, data: u64, out: Out<u64>) = register_device => "cuDeviceRegisterAsyncNotification" @ 12040;
    cuDeviceUnregisterAsyncNotification(device: i32, callback: u64) = unregister_device => "cuDeviceUnregisterAsyncNotification" @ 12040;
    cuCoredumpRegisterStartCallback(function: u64, data: u64, out: Out<u64>) = register_start => "cuCoredumpRegisterStartCallback" @ 13020;
    cuCoredumpRegisterCompleteCallback(function: u64, data: u64, out: Out<u64>) = register_end => "cuCoredumpRegisterCompleteCallback" @ 13020;
    cuCoredumpDeregisterStartCallback(callback: u64) = unregister_start => "cuCoredumpDeregisterStartCallback" @ 13020;
    cuCoredumpDeregisterCompleteCallback(callback: u64) = unregister_end => "cuCoredumpDeregisterCompleteCallback" @ 13020;
}

fn register(occasion: NotificationKind, function: u64, out: Out<u64>) -> Outcome {
    out.check()?;
    if function == 0 {
        return Err(INVALID_VALUE);
    }
    let mut tables = tables();
    let handle = tables.fresh();
    tables.notifications.insert(handle, occasion);
    out.put(handle)
}

fn unregister(occasion: NotificationKind, callback: u64) -> Outcome {
    let mut tables = tables();
    if tables.notifications.get(&callback) != Some(&occasion) {
        return Err(INVALID_VALUE);
    }
    tables.notifications.remove(&callback);
    Ok(())
}

fn register_device(device: i32, function: u64, _data: u64, out: Out<u64>) -> Outcome {
    driver()?.card(device)?;
    register(NotificationKind::Device(device), function, out)
}

fn unregister_device(device: i32, callback: u64) -> Outcome {
    driver()?.card(device)?;
    unregister(NotificationKind::Device(device), callback)
}

fn register_start(function: u64, _data: u64, out: Out<u64>) -> Outcome {
    register(NotificationKind::DumpBegins, function, out)
}

fn register_end(function: u64, _data: u64, out: Out<u64>) -> Outcome {
    register(NotificationKind::DumpEnds, function, out)
}

fn unregister_start(callback: u64) -> Outcome {
    unregister(NotificationKind::DumpBegins, callback)
}

fn unregister_end(callback: u64) -> Outcome {
    unregister(NotificationKind::DumpEnds, callback)
}
