//! How a function is exported: one row makes the symbol and, if it has one, its variant for per-thread default streams.
//!
//! ```text
//! context cudaName | cudaName_ptsz (arguments) = handler;
//! context cudaName | cudaName_ptsz (arguments) => cuName "base name" @ version;
//! ```
//! The first word is what the function requires: `context` a current context, `driver` an initialised driver, `nothing`
//! nothing. The second form passes its arguments to a driver function with the same parameters.

macro_rules! entry_points {
    ($( $start:ident $name:ident $(| $thread:ident)? ($($arguments:tt)*) = $handler:path; )*) => { $(
        $crate::entry::both_entry_points! {
            $start $name $($thread)? ($($arguments)*) $handler
        }
    )* };
}

macro_rules! both_entry_points {
    ($start:ident $name:ident $arguments:tt $handler:path) => {
        $crate::entry::entry_point! { $start $name $arguments $handler }
    };
    ($start:ident $name:ident $thread:ident $arguments:tt $handler:path) => {
        $crate::entry::entry_point! { $start $name $arguments $handler }
        $crate::entry::entry_point_on_thread! { $start $thread $arguments $handler }
    };
}

macro_rules! entry_point {
    ($start:ident $name:ident ($($argument:ident: $type:ty),* $(,)?) $handler:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> i32 {
            $crate::error::finish(
                $crate::context::$start().and_then(|()| $handler($($argument),*))
            )
        }
    };
}

macro_rules! entry_point_on_thread {
    ($start:ident $name:ident ($($argument:ident: $type:ty),* $(,)?) $handler:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> i32 {
            use $crate::default_stream::PerThreadDefault;
            $crate::error::finish(
                $crate::context::$start().and_then(|()| $handler($($argument.on_thread()),*))
            )
        }
    };
}

macro_rules! passed_on {
    ($(
        $start:ident $name:ident $(| $thread:ident)? ($($arguments:tt)*)
            => $driver:literal @ $version:literal;
    )*) => { $(
        const _: () = {
            $crate::driver::driver_functions! { ask ($($arguments)*) => $driver @ $version; }
            $crate::entry::both_entry_points! { $start $name $($thread)? ($($arguments)*) ask }
        };
    )* };
}

pub(crate) use {both_entry_points, entry_point, entry_point_on_thread, entry_points, passed_on};
