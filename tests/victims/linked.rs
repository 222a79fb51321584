//! `victim-linked`: the same program as `victim`, but linked with the driver, like most C programs.

mod arrays;
mod cards;
mod children;
mod churn;
mod code;
mod contents;
mod denials;
mod driver;
mod graphs;
mod holds;
mod launches;
mod memory;
mod nvml;
mod objects;
mod script;
mod shared;
mod symbols;

/// The linked functions by name.
mod linked {
    use std::ffi::{c_int, c_void};

    use crate::driver::{AccessDesc, AllocationNode, AllocationProperties, Array3dDescriptor};
    use crate::driver::{
        IpcHandle, KernelNode, LaunchConfig, PoolProperties, SingleThreadLaunch, WholeArrayMap,
    };

    macro_rules! functions {
        ($($name:ident($($arg:ident: $type:ty),*) = $base:literal @ $version:literal;)*) => {
            unsafe extern "C" { $(fn $name($($arg: $type),*) -> c_int;)* }

            pub(crate) fn address(name: &str) -> *mut c_void {
                match name {
                    $(stringify!($name) => $name as *mut c_void,)*
                    _ => std::ptr::null_mut(),
                }
            }
        };
    }
    include!("functions.in");
}

fn main() {
    script::run(Some(driver::Driver::new(|name, _, _| {
        linked::address(name)
    })));
}
